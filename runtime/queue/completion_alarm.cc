#include "runtime/queue/completion_alarm.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

namespace resident {
namespace {

void FutexWait(uint32_t* word, uint32_t value, std::chrono::nanoseconds timeout) {
  timespec time{};
  time.tv_sec = timeout.count() / 1'000'000'000;
  time.tv_nsec = timeout.count() % 1'000'000'000;
  syscall(SYS_futex, word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void FutexWake(uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

void CompletionAlarm::Set(const std::shared_ptr<HostRing>& ring) {
  if (ring == ring_) return;
  Clear();
  if (ring == nullptr) return;
  ring_ = ring;
  control_ = ring_->region().control();
  std::atomic_ref<uint32_t>(control_->completion_waiters).fetch_add(1, std::memory_order_seq_cst);
  seen_ = std::atomic_ref<uint32_t>(control_->completion_event).load(std::memory_order_acquire);
}

void CompletionAlarm::Clear() {
  if (ring_ == nullptr) return;
  std::atomic_ref<uint32_t>(control_->completion_waiters).fetch_sub(1, std::memory_order_relaxed);
  ring_ = nullptr;
}

void CompletionAlarm::Await(std::chrono::nanoseconds timeout) {
  FutexWait(&control_->completion_event, seen_, timeout);
  seen_ = std::atomic_ref<uint32_t>(control_->completion_event).load(std::memory_order_acquire);
}

void CompletionAlarm::Raise(ControlBlock* control) {
  std::atomic_ref<uint32_t>(control->completion_event).fetch_add(1);
  FutexWake(&control->completion_event);
}

void CompletionAlarm::RingDoorbell(ControlBlock* control) {
  std::atomic_ref<uint32_t>(control->doorbell).fetch_add(1, std::memory_order_seq_cst);
  if (std::atomic_ref<uint32_t>(control->sleepers).load(std::memory_order_seq_cst) > 0) {
    FutexWake(&control->doorbell);
  }
}

}  // namespace resident
