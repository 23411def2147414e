// WindowGate: shares a device's window memory among clients.
//
// Batches that carry tensors inline hold window memory until they are answered,
// transfers until a piece is copied. A client may hold at most as much as is left free
// after it (so n greedy clients get 1/(n+1) each, and 1/(n+1) stays free for the next
// one), except that a window nobody uses takes anything that fits.
//
// Who can wait stands in line (WindowWaiter), and is woken, in the order of arrival,
// once what it asked for fits. Who holds nothing and waits goes before those who hold
// something already; after kMostPasses have passed it, before everybody. Newcomers of one
// client pass what waits of its own so often, too.
//
//   not in line ──Allocate: full──▶ in line ──memory given back, WakeAll──▶ woken
//        ▲  ▲                          │                                      │
//        │  └────────Withdraw──────────┘     Allocate, or Leave               │
//        └────────────────────────────────────────────────────────────────────┘
//
// Thread safety: all members may be called from any thread; of one waiter, Allocate and
// Leave by one at a time, and not while it is in line.
//
// Memory ordering: `given_back` is counted before `in_line` is read, and a waiter is
// counted in `in_line` before it looks at `given_back` again: one of the two sees the
// other, so that nobody is left in line by memory that was given back meanwhile. Without
// anybody in line no lock is taken.
#ifndef RESIDENT_SERVER_TRANSLATION_WINDOW_GATE_H_
#define RESIDENT_SERVER_TRANSLATION_WINDOW_GATE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/device/device.h"

namespace resident {

// Who waits for a window's memory, and how much of it is held (window_gate.cc).
struct WindowLine;

// Bytes held, by one client or by all.
class WindowUse {
 public:
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  void Add(uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void Subtract(uint64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> bytes_{0};
};

// Somebody who can wait for window memory: a stream, or a transfer. Waits in one line at
// a time, for one piece of memory.
class WindowWaiter {
 public:
  virtual ~WindowWaiter() = default;

 protected:
  // Called when it gets in line: what to call once when it is woken. Keeps the waiter
  // alive. It is called from any thread, with whatever locks that holds: all it may do
  // is post work.
  virtual std::function<void()> WindowWake() = 0;

 private:
  friend class WindowGate;
  friend struct WindowLine;
  // Its number in line and who has passed it, kept over tries until it gets its memory.
  uint64_t place_ = 0;
  uint32_t passed_ = 0;
  std::shared_ptr<WindowLine> line_;  // Where it was in line last.
};

class WindowGate {
 public:
  // How often one who waits may be passed.
  static constexpr uint32_t kMostPasses = 256;

  explicit WindowGate(uint64_t window_bytes);

  // Memory that counts as `own` until the last reference goes. RESOURCE_EXHAUSTED: over
  // the client's share, or nothing free in one piece. With a waiter, `*waits` says
  // whether it is in line now; then it belongs to whoever wakes it.
  absl::StatusOr<std::shared_ptr<const WindowMemory>> Allocate(
      EngineSession& session, const std::shared_ptr<WindowUse>& own, uint64_t bytes,
      WindowWaiter* waiter = nullptr, bool* waits = nullptr);

  // Takes the waiter out of the line. False: it was not in line, or has been woken.
  bool Withdraw(const WindowWaiter& waiter);
  // The waiter was woken, or withdrawn, and wants nothing any more: the next one's turn.
  static void Leave(WindowWaiter& waiter);
  // Wakes everybody in line, e.g. to be told that the daemon drains.
  void WakeAll();

  // How much of `most` bytes a transfer moves at a time: small enough that several fit.
  uint64_t PieceBytes(uint64_t most) const;

  uint64_t used_bytes() const;
  uint64_t in_line() const;

 private:
  // Puts the waiter in line, unless memory was given back since `seen`.
  bool GetInLine(WindowWaiter& waiter, const std::shared_ptr<WindowUse>& own, uint64_t bytes,
                 uint64_t seen);

  const std::shared_ptr<WindowLine> line_;  // Memory that is held may outlive the gate.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_TRANSLATION_WINDOW_GATE_H_
