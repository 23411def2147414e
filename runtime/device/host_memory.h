// HostMemory: counts the bytes of the daemon's own memory that copies of durable buffers use, with
// a limit for each client and one for all clients. (server/admission/budget.h limits the memory of
// batches, responses and transfers.)
//
// Hold fails if a limit would be exceeded. Count always succeeds: it is for the buffers that a
// restart restores.
//
// Thread safety: all members may be called from any thread.
//
//   HostMemory host(client_limit, limit);
//   auto own = std::make_shared<HostUsage>();
//   absl::StatusOr<HostMemory::Charge> charge = host.Hold(own, bytes);
#ifndef RESIDENT_RUNTIME_DEVICE_HOST_MEMORY_H_
#define RESIDENT_RUNTIME_DEVICE_HOST_MEMORY_H_

#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace resident {

// The bytes that one client uses.
class HostUsage {
 public:
  uint64_t bytes() const { return bytes_.load(); }

 private:
  friend class HostMemory;
  std::atomic<uint64_t> bytes_{0};
};

class HostMemory {
 public:
  // 0: no limit.
  HostMemory(uint64_t client_limit_bytes, uint64_t limit_bytes)
      : client_limit_(client_limit_bytes == 0 ? UINT64_MAX : client_limit_bytes),
        limit_(limit_bytes == 0 ? UINT64_MAX : limit_bytes) {}
  ~HostMemory() { assert(used_bytes() == 0); }

  // Bytes that are counted until it is destroyed. REQUIRES: it is destroyed before the HostMemory.
  class Charge {
   public:
    Charge() = default;
    ~Charge() { Clear(); }
    Charge(Charge&& other) noexcept { *this = std::move(other); }
    Charge& operator=(Charge&& other) noexcept {
      Clear();
      host_ = std::exchange(other.host_, nullptr);
      own_ = std::move(other.own_);
      bytes_ = other.bytes_;
      return *this;
    }
    void Clear() {
      if (host_ != nullptr) std::exchange(host_, nullptr)->Release(*own_, bytes_);
      own_ = nullptr;
    }

   private:
    friend class HostMemory;
    HostMemory* host_ = nullptr;
    std::shared_ptr<HostUsage> own_;
    uint64_t bytes_ = 0;
  };

  Charge Count(std::shared_ptr<HostUsage> own, uint64_t bytes);
  // RESOURCE_EXHAUSTED: it would exceed the client's limit, or the limit for all clients.
  absl::StatusOr<Charge> Hold(std::shared_ptr<HostUsage> own, uint64_t bytes);

  uint64_t used_bytes() const { return all_.load(std::memory_order_relaxed); }

 private:
  Charge MakeCharge(std::shared_ptr<HostUsage> own, uint64_t bytes);
  void Release(HostUsage& own, uint64_t bytes);

  const uint64_t client_limit_;
  const uint64_t limit_;
  std::atomic<uint64_t> all_{0};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_HOST_MEMORY_H_
