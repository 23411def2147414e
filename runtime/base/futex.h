// Futexes: a thread sleeps until another thread or process changes a 32-bit word.
//
// Thread safety: may be called from any thread. The word may be in memory that processes share.
#ifndef RESIDENT_RUNTIME_BASE_FUTEX_H_
#define RESIDENT_RUNTIME_BASE_FUTEX_H_

#include <chrono>
#include <cstdint>
#include <optional>

namespace resident {

// Sleeps while `*word` is `value`, until FutexWake or the timeout. May return early.
void FutexWait(uint32_t* word, uint32_t value,
               std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

// Wakes all threads that sleep on the word.
void FutexWake(uint32_t* word);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_FUTEX_H_
