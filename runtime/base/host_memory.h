// HostMemory: bytes of the daemon's own memory that copies of durable buffers take, with a limit
// for each client and one for all. (What batches, answers and transfers take is limited by
// server/admission/budget.h.)
//
// Hold refuses what is over a limit. Count takes note of what has to be there: what a restart
// brings back.
//
// Thread safety: all members may be called from any thread.
//
//   HostMemory host(client_limit, limit);
//   auto own = std::make_shared<HostUse>();
//   absl::StatusOr<HostMemory::Charge> charge = host.Hold(own, bytes);
#ifndef RESIDENT_RUNTIME_BASE_HOST_MEMORY_H_
#define RESIDENT_RUNTIME_BASE_HOST_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace resident {

// Bytes that one client takes.
class HostUse {
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

  // What counts until it goes. REQUIRES: goes before the HostMemory.
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
      if (host_ != nullptr) std::exchange(host_, nullptr)->GiveBack(*own_, bytes_);
      own_ = nullptr;
    }

   private:
    friend class HostMemory;
    HostMemory* host_ = nullptr;
    std::shared_ptr<HostUse> own_;
    uint64_t bytes_ = 0;
  };

  Charge Count(std::shared_ptr<HostUse> own, uint64_t bytes);
  // RESOURCE_EXHAUSTED: over the client's limit, or that of all.
  absl::StatusOr<Charge> Hold(std::shared_ptr<HostUse> own, uint64_t bytes);

  uint64_t used_bytes() const { return all_.load(std::memory_order_relaxed); }

 private:
  Charge Charged(std::shared_ptr<HostUse> own, uint64_t bytes);
  void GiveBack(HostUse& own, uint64_t bytes);

  const uint64_t client_limit_;
  const uint64_t limit_;
  std::atomic<uint64_t> all_{0};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_HOST_MEMORY_H_
