// HostMemory: bytes of the daemon's own memory that clients take for one purpose: requests
// that wait to be admitted, batches that are queued or under way, answers that are not read, or
// copies of durable buffers. Each has limits of its own, so that what one waits for is never
// held by another.
//
// Three ways to ask. Hold refuses what is over a limit. Share is for memory that is about to be
// made: it also refuses a client that holds some already what it has to leave to the others
// (as Count, below), and lets one that holds nothing have more than a client's limit, but
// never more than that of all. Count takes note of what is there
// already; whoever makes more of it looks first (WaitIfFull), and stops while it is full:
// the client has as much as one may have, or as is left after it of half of what all may
// have. What was under way then is counted all the same; the other half is for that, and for
// those who hold nothing, so that what greedy clients hold does not stop them.
//
// Thread safety: all members may be called from any thread.
//
// Memory ordering: bytes are subtracted before `waiting_count_` is read, and a waiter is
// counted in it before it looks at the bytes again: one of the two sees the other, so that
// nobody waits for memory that was given back meanwhile. Without anybody who waits no lock is
// taken.
//
//   HostMemory host(client_limit, limit);
//   auto own = std::make_shared<HostUse>();
//   HostMemory::Charge answer = host.Count(own, bytes);
//   if (host.WaitIfFull(own, this, wake)) return;  // `wake` follows.
#ifndef RESIDENT_RUNTIME_BASE_HOST_MEMORY_H_
#define RESIDENT_RUNTIME_BASE_HOST_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

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

  // RESOURCE_EXHAUSTED: see above; nothing is counted then.
  absl::StatusOr<Charge> Share(std::shared_ptr<HostUse> own, uint64_t bytes);
  // Whether Share could ever let so much in.
  bool MayFit(uint64_t bytes) const { return bytes <= limit_; }
  // False: Share would let `bytes` in, or never will. Else as WaitIfFull, once it would.
  bool WaitForRoom(const std::shared_ptr<HostUse>& own, uint64_t bytes, const void* key,
                   std::function<void()> wake);

  // False: not full. Else `wake` is called once, when it is not any more, by whoever gives
  // memory back: all it may do is post work. One for each key.
  bool WaitIfFull(const std::shared_ptr<HostUse>& own, const void* key, std::function<void()> wake);
  bool Full(const HostUse& own) const;
  // `wake` is not called any more, unless it was taken to be called already.
  void Withdraw(const void* key);

  uint64_t used_bytes() const { return all_.load(std::memory_order_relaxed); }

 private:
  struct Waiting {
    std::shared_ptr<HostUse> own;
    // Of Share; absent: until there is no longer too much.
    std::optional<uint64_t> bytes;
    std::function<void()> wake;
  };

  Charge Charged(std::shared_ptr<HostUse> own, uint64_t bytes);
  void GiveBack(HostUse& own, uint64_t bytes);
  void WakeThoseWithRoom();
  // What all may have once a client that has `own` bytes gets more; less than `own`: nothing.
  uint64_t SharedLimit(uint64_t own) const;
  bool HasRoom(const HostUse& own, uint64_t bytes) const;
  bool StillWaits(const HostUse& own, const std::optional<uint64_t>& bytes) const {
    return bytes.has_value() ? !HasRoom(own, *bytes) : Full(own);
  }
  bool Wait(const void* key, Waiting waiting);

  const uint64_t client_limit_;
  const uint64_t limit_;
  std::atomic<uint64_t> all_{0};
  std::atomic<uint64_t> waiting_count_{0};  // As many as `waiting_`.
  absl::Mutex mu_;
  absl::flat_hash_map<const void*, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_HOST_MEMORY_H_
