#include "runtime/ring/doorbell.h"

#include <atomic>

#include "runtime/base/futex.h"

namespace resident {

uint32_t Doorbell::BeginWait() {
  std::atomic_ref<u32>(*waiters_).fetch_add(1, std::memory_order_seq_cst);
  return std::atomic_ref<u32>(*event_).load(std::memory_order_seq_cst);
}

uint32_t Doorbell::Wait(uint32_t seen, std::optional<std::chrono::nanoseconds> timeout) {
  FutexWait(event_, seen, timeout);
  return std::atomic_ref<u32>(*event_).load(std::memory_order_acquire);
}

void Doorbell::EndWait() {
  std::atomic_ref<u32>(*waiters_).fetch_sub(1, std::memory_order_relaxed);
}

void Doorbell::Ring() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (std::atomic_ref<u32>(*waiters_).load(std::memory_order_relaxed) != 0) RingForAll();
}

void Doorbell::RingForAll() {
  std::atomic_ref<u32>(*event_).fetch_add(1, std::memory_order_seq_cst);
  FutexWake(event_);
}

}  // namespace resident
