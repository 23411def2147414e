// FakeDevice: a DeviceControl without an engine, for tests of code that uses devices. Its
// session (FakeSession) allocates on the heap, its queue runs nothing, and a test sets its state,
// its figures and the results of loads of generations.
//
// Thread safety: see DeviceControl and EngineSession, except status() and the histograms.
//
//   FakeDevice device(/*index=*/0);
//   device.SetNextLoad([](const Generation&) { return absl::UnavailableError("it ended"); });
//   device.status().parks = 3;
#ifndef RESIDENT_RUNTIME_DEVICE_FAKE_DEVICE_H_
#define RESIDENT_RUNTIME_DEVICE_FAKE_DEVICE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/device_control.h"
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
  // Set them before others use the session.
  EngineTraits& traits() { return info_.traits; }

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
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapSharedDevice(const std::string&,
                                                                      uint64_t bytes) override {
    return AllocateMemory(bytes);
  }
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapDeviceDescriptor(int, uint64_t,
                                                                          uint64_t bytes) override {
    return AllocateMemory(bytes);
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
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
    // Not initialized and aligned, like real memory, and of the exact size, so that a sanitizer
    // detects an access beyond the end.
    return std::shared_ptr<uint8_t[]>(new (kAlignment) uint8_t[bytes],
                                      [used = pool.used, bytes](uint8_t* data) {
                                        used->fetch_sub(bytes);
                                        ::operator delete[](data, kAlignment);
                                      });
  }

  const uint64_t epoch_;
  EngineInfo info_;
  Pool memory_;
  Pool staging_;
};

// A session whose staging memory is always full.
class FullSession final : public FakeSession {
 public:
  // `meanwhile`: called in each request for staging memory, with the number of those before.
  explicit FullSession(std::function<void(int before)> meanwhile)
      : FakeSession(1, 0, 0), meanwhile_(std::move(meanwhile)) {}

  absl::StatusOr<std::shared_ptr<const StagingMemory>> AllocateStaging(uint64_t bytes) override {
    meanwhile_(requests_++);
    return FakeSession::AllocateStaging(bytes);
  }

 private:
  const std::function<void(int before)> meanwhile_;
  std::atomic<int> requests_{0};
};

class FakeDevice : public DeviceControl {
 public:
  using Load = std::function<absl::Status(const Generation&)>;

  explicit FakeDevice(uint32_t index = 0, uint64_t memory_bytes = 1 << 20,
                      uint64_t staging_bytes = 1 << 20, const DeviceQueue::Options& queue = {})
      : DeviceControl(index, queue) {
    absl::MutexLock lock(&mu_);
    session_ = std::make_shared<FakeSession>(1, memory_bytes, staging_bytes);
    status_.state = State::kResident;
    status_.engine_pid = 1;
    status_.info = session_->info();
    status_.info.generation = 1;
  }

  // Contents of snapshot() and the histograms. Set them before other threads use the device.
  Snapshot& status() ABSL_NO_THREAD_SAFETY_ANALYSIS { return status_; }
  DurationHistogram& generation_pauses() { return generation_pause_; }
  void set_session(std::shared_ptr<EngineSession> session) {
    absl::MutexLock lock(&mu_);
    session_ = std::move(session);
  }
  void set_state(State state) {
    absl::MutexLock lock(&mu_);
    status_.state = state;
    status_.engine_pid = state == State::kResident ? 1 : 0;
  }

  // Adds a result of a load. Each load takes the next one; without one it succeeds.
  void SetNextLoad(Load load) {
    absl::MutexLock lock(&mu_);
    script_.push_back(std::move(load));
  }
  // A new engine starts with this generation; null: with the device's.
  void Restart(const std::shared_ptr<const Generation>& generation) {
    absl::MutexLock lock(&mu_);
    if (generation != nullptr) next_ = generation;
    status_.info.generation = next_->number;
  }
  // Slots of the generation that a new engine would start with.
  std::vector<uint32_t> slots() const {
    absl::MutexLock lock(&mu_);
    return ListSlots(next_);
  }
  size_t loads() const {
    absl::MutexLock lock(&mu_);
    return loads_;
  }
  static std::vector<uint32_t> ListSlots(const std::shared_ptr<const Generation>& generation) {
    std::vector<uint32_t> slots;
    if (generation == nullptr) return slots;
    for (const GenerationOperator& op : generation->operators) slots.push_back(op.slot);
    return slots;
  }

  absl::Status LoadGeneration(std::shared_ptr<const Generation> generation,
                              std::chrono::milliseconds) override {
    Load load;
    {
      absl::MutexLock lock(&mu_);
      ++loads_;
      if (generation->number <= status_.info.generation) {
        return absl::FailedPreconditionError("not above");
      }
      if (!script_.empty()) {
        load = std::move(script_.front());
        script_.pop_front();
      }
    }
    const absl::Status status = load ? load(*generation) : absl::OkStatus();
    absl::MutexLock lock(&mu_);
    if (!status.ok() || generation->number <= status_.info.generation) return status;
    next_ = generation;
    status_.info.generation = generation->number;
    return status;
  }
  void SetGeneration(std::shared_ptr<const Generation> generation) override {
    absl::MutexLock lock(&mu_);
    next_ = std::move(generation);
  }
  void StartPark(Waiter waiter) override { waiter.settled(absl::OkStatus()); }
  void StartResume(Waiter waiter) override { waiter.settled(absl::OkStatus()); }
  void Shutdown() override {}

 private:
  std::deque<Load> script_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Generation> next_ ABSL_GUARDED_BY(mu_);
  size_t loads_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_FAKE_DEVICE_H_
