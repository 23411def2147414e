#include "server/translation/window_gate.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/errors/batch_errors.h"

namespace resident {
namespace {

// Pieces of transfers that a window holds, and the least that is worth a task.
constexpr uint64_t kPiecesInWindow = 16;
constexpr uint64_t kLeastPieceBytes = 64u << 10;

uint64_t NewPlace() {
  static std::atomic<uint64_t> places{0};
  return places.fetch_add(1, std::memory_order_relaxed) + 1;
}

struct Waiting {
  WindowWaiter* waiter;  // Kept alive by `wake`.
  std::shared_ptr<WindowUse> own;
  uint64_t bytes;
  std::function<void()> wake;
};

}  // namespace

struct WindowLine {
  explicit WindowLine(uint64_t bytes) : window_bytes(bytes) {}

  bool FitsShare(uint64_t own, uint64_t bytes) const;
  // The same for somebody who has waited: what no share allows must fit in the end.
  bool FitsWaiting(const WindowWaiter& waiter, uint64_t own, uint64_t bytes) const;
  // Whether it is the turn of whoever asks, and it fits.
  bool MayTake(const WindowUse& own, uint64_t bytes, WindowWaiter* waiter);
  void GaveBack();
  void WakeFitting();

  const uint64_t window_bytes;
  WindowUse all;
  std::atomic<uint64_t> given_back{0};  // Times.
  std::atomic<uint64_t> in_line{0};     // As many as `waiting`.
  absl::Mutex mu;
  std::map<uint64_t, Waiting> waiting ABSL_GUARDED_BY(mu);  // By place.
};

namespace {

struct Held {
  Held(std::shared_ptr<const WindowMemory> m, std::shared_ptr<WindowLine> l,
       std::shared_ptr<WindowUse> o)
      : memory(std::move(m)), line(std::move(l)), own(std::move(o)) {}
  ~Held();

  std::shared_ptr<const WindowMemory> memory;
  const std::shared_ptr<WindowLine> line;
  const std::shared_ptr<WindowUse> own;
};

}  // namespace

bool WindowLine::FitsShare(uint64_t own, uint64_t bytes) const {
  const uint64_t used = all.bytes();
  return used == 0 || own + 2 * bytes + used <= window_bytes;
}

bool WindowLine::FitsWaiting(const WindowWaiter& waiter, uint64_t own, uint64_t bytes) const {
  if (FitsShare(own, bytes)) return true;
  const bool beyond_shares = 2 * bytes > window_bytes || waiter.passed_ >= WindowGate::kMostPasses;
  return own == 0 && beyond_shares && all.bytes() + bytes <= window_bytes;
}

bool WindowLine::MayTake(const WindowUse& own, uint64_t bytes, WindowWaiter* waiter) {
  if (in_line.load() == 0 && (waiter == nullptr || waiter->place_ == 0)) {
    return FitsShare(own.bytes(), bytes);
  }
  absl::MutexLock lock(&mu);
  const bool waited = waiter != nullptr && waiter->place_ != 0;
  // Before whoever asks: the first of another client that holds nothing, and the first of
  // its own client.
  WindowWaiter* hungry = nullptr;
  WindowWaiter* elder = nullptr;
  for (const auto& [place, entry] : waiting) {
    if (waited && place > waiter->place_) break;
    if (entry.own.get() == &own) {
      if (elder == nullptr) elder = entry.waiter;
    } else if (hungry == nullptr && entry.own->bytes() == 0) {
      hungry = entry.waiter;
    }
  }
  if (elder != nullptr && elder->passed_ >= WindowGate::kMostPasses) return false;
  if (hungry != nullptr && (own.bytes() > 0 || hungry->passed_ >= WindowGate::kMostPasses))
    return false;
  const bool fits = waited && hungry == nullptr ? FitsWaiting(*waiter, own.bytes(), bytes)
                                                : FitsShare(own.bytes(), bytes);
  if (fits && hungry != nullptr) ++hungry->passed_;
  if (fits && elder != nullptr) ++elder->passed_;
  // It was woken, and others were quicker.
  if (!fits && waited) ++waiter->passed_;
  return fits;
}

void WindowLine::GaveBack() {
  given_back.fetch_add(1);
  if (in_line.load() != 0) WakeFitting();
}

void WindowLine::WakeFitting() {
  std::vector<std::function<void()>> woken;
  {
    absl::MutexLock lock(&mu);
    uint64_t promised = 0;
    const Waiting* hungry = nullptr;  // As in MayTake.
    for (auto it = waiting.begin(); it != waiting.end();) {
      const Waiting& entry = it->second;
      const uint64_t own = entry.own->bytes();
      const bool first = hungry == nullptr || hungry->own == entry.own;
      const bool may_pass = own == 0 && !first && hungry->waiter->passed_ < WindowGate::kMostPasses;
      const bool fits = first ? FitsWaiting(*entry.waiter, own, entry.bytes)
                              : may_pass && FitsShare(own, entry.bytes);
      if (fits && (promised == 0 || all.bytes() + promised + entry.bytes <= window_bytes)) {
        promised += entry.bytes;
        woken.push_back(std::move(it->second.wake));
        it = waiting.erase(it);
        in_line.fetch_sub(1);
        continue;
      }
      if (hungry == nullptr && own == 0) hungry = &entry;
      ++it;
    }
  }
  for (const std::function<void()>& wake : woken) wake();
}

Held::~Held() {
  const uint64_t bytes = memory->size_bytes;
  // Those who are woken look for it at once.
  memory.reset();
  line->all.Subtract(bytes);
  own->Subtract(bytes);
  line->GaveBack();
}

WindowGate::WindowGate(uint64_t window_bytes) : line_(std::make_shared<WindowLine>(window_bytes)) {}

uint64_t WindowGate::used_bytes() const { return line_->all.bytes(); }

uint64_t WindowGate::in_line() const { return line_->in_line.load(std::memory_order_relaxed); }

absl::StatusOr<std::shared_ptr<const WindowMemory>> WindowGate::Allocate(
    EngineSession& session, const std::shared_ptr<WindowUse>& own, uint64_t bytes,
    WindowWaiter* waiter, bool* waits) {
  if (waits != nullptr) *waits = false;
  if (bytes > line_->window_bytes) return errors::WindowFull(bytes, line_->window_bytes, false);
  while (true) {
    const uint64_t seen = line_->given_back.load();
    absl::Status full;
    if (line_->MayTake(*own, bytes, waiter)) {
      // Counted first: what is full because of others is seen to be.
      line_->all.Add(bytes);
      own->Add(bytes);
      absl::StatusOr<std::shared_ptr<const WindowMemory>> memory = session.AllocateWindow(bytes);
      if (memory.ok()) {
        if (waiter != nullptr) {
          // The next in line may have been left there for what this one did not take.
          if (waiter->line_ != nullptr && waiter->line_ != line_) Leave(*waiter);
          waiter->place_ = 0;
          waiter->passed_ = 0;
          waiter->line_ = nullptr;
        }
        auto held = std::make_shared<Held>(*std::move(memory), line_, own);
        const WindowMemory* const view = held->memory.get();
        return std::shared_ptr<const WindowMemory>(std::move(held), view);
      }
      line_->all.Subtract(bytes);
      own->Subtract(bytes);
      full = memory.status();
      // Nobody would wake those who got in line because of what was counted.
      if (line_->all.bytes() == 0) {
        line_->GaveBack();
        return full;
      }
    } else {
      full = errors::WindowFull(bytes, line_->window_bytes, true);
    }
    if (waiter == nullptr) return full;
    if (GetInLine(*waiter, own, bytes, seen)) {
      *waits = true;
      return full;
    }
  }
}

bool WindowGate::GetInLine(WindowWaiter& waiter, const std::shared_ptr<WindowUse>& own,
                           uint64_t bytes, uint64_t seen) {
  if (waiter.line_ != nullptr && waiter.line_ != line_) Leave(waiter);
  if (waiter.place_ == 0) waiter.place_ = NewPlace();
  waiter.line_ = line_;
  std::function<void()> wake = waiter.WindowWake();
  absl::MutexLock lock(&line_->mu);
  line_->in_line.fetch_add(1);
  if (line_->given_back.load() != seen) {
    line_->in_line.fetch_sub(1);
    return false;
  }
  line_->waiting.emplace(waiter.place_, Waiting{&waiter, own, bytes, std::move(wake)});
  return true;
}

bool WindowGate::Withdraw(const WindowWaiter& waiter) {
  std::function<void()> wake;  // Destroyed without the lock.
  absl::MutexLock lock(&line_->mu);
  for (auto it = line_->waiting.begin(); it != line_->waiting.end(); ++it) {
    if (it->second.waiter != &waiter) continue;
    wake = std::move(it->second.wake);
    line_->waiting.erase(it);
    line_->in_line.fetch_sub(1);
    return true;
  }
  return false;
}

void WindowGate::Leave(WindowWaiter& waiter) {
  const std::shared_ptr<WindowLine> line = std::move(waiter.line_);
  waiter.line_ = nullptr;
  waiter.place_ = 0;
  waiter.passed_ = 0;
  if (line != nullptr) line->GaveBack();
}

void WindowGate::WakeAll() {
  std::map<uint64_t, Waiting> woken;
  {
    absl::MutexLock lock(&line_->mu);
    woken.swap(line_->waiting);
    line_->in_line.store(0);
  }
  for (const auto& [place, entry] : woken) entry.wake();
}

uint64_t WindowGate::PieceBytes(uint64_t most) const {
  return std::min(most, std::max(kLeastPieceBytes, line_->window_bytes / kPiecesInWindow));
}

}  // namespace resident
