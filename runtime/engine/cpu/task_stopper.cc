#include "runtime/engine/cpu/task_stopper.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <limits>

#include "runtime/base/futex.h"
#include "runtime/base/time_source.h"

namespace resident {
namespace {

constexpr int kStopSignal = SIGUSR1;
constexpr uint64_t kReasonMask = 0xff;
// The longest sleep: an operator with a limit is seen early enough, because a sleep is also at most
// a quarter of the shortest limit.
constexpr int64_t kMaxSleepNs = 500'000'000;
// A signal that arrives before the operator is called has no effect, and is sent again.
constexpr int64_t kAgainNs = 200'000;

int64_t NowNs() { return static_cast<int64_t>(SteadyNs()); }

}  // namespace

thread_local TaskStopper::Worker* TaskStopper::current_ = nullptr;

TaskStopper::~TaskStopper() {
  if (!thread_.joinable()) return;
  ending_ = true;
  std::atomic_ref<u32>(*event_).fetch_add(1);
  FutexWake(event_);
  thread_.join();
}

void TaskStopper::Start(const SharedRegion& region, uint32_t workers) {
  stop_words_ = region.stop_words();
  mask_ = region.layout().slots - 1;
  event_ = &region.control()->stop_event;
  for (uint32_t w = 0; w < workers; ++w) workers_.push_back(std::make_unique<Worker>());
  struct sigaction action {};
  action.sa_handler = &HandleSignal;
  // The handler does not return to the code that it interrupts, so the signal must not stay
  // blocked.
  action.sa_flags = SA_NODEFER;
  sigaction(kStopSignal, &action, nullptr);
  thread_ = std::thread([this] { Watch(); });
}

void TaskStopper::SetMinTimeLimit(std::chrono::nanoseconds limit) {
  min_limit_ns_ = limit.count();
  std::atomic_ref<u32>(*event_).fetch_add(1);
  FutexWake(event_);
}

StopReason TaskStopper::Call(uint32_t index, uint32_t token, const CpuGeneration::Slot& slot,
                             BlockState* state) {
  assert(slot.stoppable);
  Worker& worker = *workers_[index];
  if (current_ != &worker) {
    current_ = &worker;
    worker.thread = static_cast<pid_t>(syscall(SYS_gettid));
  }
  worker.token.store(token, std::memory_order_relaxed);
  const int64_t limit = slot.time_limit.count();
  worker.until_ns.store(limit == 0 ? std::numeric_limits<int64_t>::max() : NowNs() + limit,
                        std::memory_order_relaxed);
  // The signal mask is not saved: the signal is never blocked.
  if (sigsetjmp(worker.back, 0) != 0) {
    const uint64_t call = worker.call.exchange(0, std::memory_order_relaxed);
    return static_cast<StopReason>(call & kReasonMask);
  }
  worker.call.store(++worker.calls << kReasonBits, std::memory_order_release);
  slot.function(state);
  worker.call.store(0, std::memory_order_release);
  return StopReason::kNone;
}

void TaskStopper::HandleSignal(int) {
  Worker* const worker = current_;
  if (worker == nullptr) return;
  if ((worker->call.load(std::memory_order_relaxed) & kReasonMask) == 0) return;
  siglongjmp(worker->back, 1);
}

void TaskStopper::Watch() {
  pthread_setname_np(pthread_self(), "stopper");
  while (!ending_.load()) {
    const u32 seen = std::atomic_ref<u32>(*event_).load();
    const int64_t now = NowNs();
    const int64_t limit = min_limit_ns_.load();
    int64_t until = now + (limit == 0 ? kMaxSleepNs : std::min(kMaxSleepNs, limit / 4));
    for (const auto& worker : workers_) until = std::min(until, Look(*worker, now));
    FutexWait(event_, seen, std::chrono::nanoseconds(std::max<int64_t>(until - now, kAgainNs)));
  }
}

int64_t TaskStopper::Look(Worker& worker, int64_t now_ns) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  uint64_t call = worker.call.load(std::memory_order_acquire);
  if (call == 0) return kNever;
  if ((call & kReasonMask) == 0) {
    StopReason reason = Asked(worker.token.load(std::memory_order_relaxed));
    const int64_t until = worker.until_ns.load(std::memory_order_relaxed);
    if (reason == StopReason::kNone && now_ns >= until) reason = StopReason::kTimeLimit;
    if (reason == StopReason::kNone) return until;
    // Fails if the worker calls another operator meanwhile.
    if (!worker.call.compare_exchange_strong(call, call | static_cast<uint64_t>(reason))) {
      return now_ns;
    }
  }
  syscall(SYS_tgkill, getpid(), worker.thread.load(), kStopSignal);
  return now_ns + kAgainNs;
}

}  // namespace resident
