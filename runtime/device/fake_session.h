// FakeSession: an EngineSession on the heap, for tests without an engine.
//
// Thread safety: as EngineSession.
#ifndef RESIDENT_RUNTIME_DEVICE_FAKE_SESSION_H_
#define RESIDENT_RUNTIME_DEVICE_FAKE_SESSION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/device.h"
#include "runtime/engine/cpu/cpu_registration.h"

namespace resident {

class FakeSession : public EngineSession {
 public:
  FakeSession(uint64_t epoch, uint64_t memory_bytes, uint64_t staging_bytes)
      : epoch_(epoch), memory_(memory_bytes), staging_(staging_bytes) {
    info_.traits = CpuTraits();
    info_.workers = 4;
  }

  uint64_t epoch() const override { return epoch_; }
  const EngineInfo& info() const override { return info_; }

  absl::StatusOr<std::shared_ptr<const DeviceMemory>> AllocateMemory(uint64_t bytes) override {
    ASSIGN_OR_RETURN(auto block, Take(memory_, bytes));
    auto data = std::move(block);
    auto memory = std::make_shared<Held<DeviceMemory>>();
    memory->value = {reinterpret_cast<uint64_t>(data.get()), bytes};
    memory->data = std::move(data);
    return std::shared_ptr<const DeviceMemory>(memory, &memory->value);
  }
  uint64_t memory_used_bytes() const override { return *memory_.used; }

  absl::StatusOr<std::shared_ptr<const StagingMemory>> AllocateStaging(uint64_t bytes) override {
    ASSIGN_OR_RETURN(auto block, Take(staging_, bytes));
    auto data = std::move(block);
    auto memory = std::make_shared<Held<StagingMemory>>();
    memory->value = {data.get(), reinterpret_cast<uint64_t>(data.get()), bytes};
    memory->data = std::move(data);
    return std::shared_ptr<const StagingMemory>(memory, &memory->value);
  }

  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapShared(int, uint64_t bytes) override {
    return AllocateMemory(bytes);
  }

 private:
  struct Pool {
    explicit Pool(uint64_t bytes) : total(bytes) {}
    const uint64_t total;
    std::shared_ptr<std::atomic<uint64_t>> used = std::make_shared<std::atomic<uint64_t>>(0);
  };
  template <typename T>
  struct Held {
    T value;
    std::shared_ptr<uint8_t[]> data;
  };

  static absl::StatusOr<std::shared_ptr<uint8_t[]>> Take(Pool& pool, uint64_t bytes) {
    if (pool.used->fetch_add(bytes) + bytes > pool.total) {
      pool.used->fetch_sub(bytes);
      return absl::ResourceExhaustedError("fake memory is full. Fix: none");
    }
    // Not initialised, as real memory; exact, so that a sanitizer sees a step too far.
    return std::shared_ptr<uint8_t[]>(new uint8_t[bytes], [used = pool.used, bytes](uint8_t* data) {
      used->fetch_sub(bytes);
      delete[] data;
    });
  }

  const uint64_t epoch_;
  EngineInfo info_;
  Pool memory_;
  Pool staging_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_FAKE_SESSION_H_
