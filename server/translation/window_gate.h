// WindowGate: shares a device's window memory among clients.
//
// Batches that carry tensors inline hold window memory until they are answered. A
// client may hold at most as much as is left free after it (so n greedy clients get
// 1/(n+1) each, and 1/(n+1) stays free for the next one), except that a window
// nobody uses takes anything that fits.
//
// Thread safety: all members may be called from any thread. Counters are relaxed
// atomics: two clients that allocate at once may both be let in by the same free
// bytes; the allocator itself decides what there is.
#ifndef RESIDENT_SERVER_TRANSLATION_WINDOW_GATE_H_
#define RESIDENT_SERVER_TRANSLATION_WINDOW_GATE_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/errors/batch_errors.h"

namespace resident {

// Bytes held, by one client or by all.
class WindowUse {
 public:
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  void Add(uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void Subtract(uint64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> bytes_{0};
};

class WindowGate {
 public:
  explicit WindowGate(uint64_t window_bytes)
      : window_bytes_(window_bytes), all_(std::make_shared<WindowUse>()) {}

  // Memory that counts as `own` until the last reference goes. RESOURCE_EXHAUSTED:
  // over the client's share, or nothing free in one piece.
  absl::StatusOr<std::shared_ptr<const WindowMemory>> Allocate(
      EngineSession& session, const std::shared_ptr<WindowUse>& own, uint64_t bytes) {
    const uint64_t used = all_->bytes();
    if (bytes > window_bytes_) return errors::WindowFull(bytes, window_bytes_, false);
    if (used != 0 && own->bytes() + 2 * bytes + used > window_bytes_) {
      return errors::WindowFull(bytes, window_bytes_, true);
    }
    absl::StatusOr<std::shared_ptr<const WindowMemory>> memory = session.AllocateWindow(bytes);
    if (!memory.ok()) return memory.status();
    auto held = std::make_shared<Held>(*std::move(memory), all_, own);
    const WindowMemory* const view = held->memory.get();
    return std::shared_ptr<const WindowMemory>(std::move(held), view);
  }

  uint64_t used_bytes() const { return all_->bytes(); }

 private:
  struct Held {
    Held(std::shared_ptr<const WindowMemory> m, std::shared_ptr<WindowUse> a,
         std::shared_ptr<WindowUse> o)
        : memory(std::move(m)), all(std::move(a)), own(std::move(o)) {
      all->Add(memory->size_bytes);
      own->Add(memory->size_bytes);
    }
    ~Held() {
      all->Subtract(memory->size_bytes);
      own->Subtract(memory->size_bytes);
    }
    const std::shared_ptr<const WindowMemory> memory;
    const std::shared_ptr<WindowUse> all;
    const std::shared_ptr<WindowUse> own;
  };

  const uint64_t window_bytes_;
  const std::shared_ptr<WindowUse> all_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_TRANSLATION_WINDOW_GATE_H_
