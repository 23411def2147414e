#include "runtime/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace resident {

void FutexWait(uint32_t* word, uint32_t value, std::optional<std::chrono::nanoseconds> timeout) {
  timespec time{};
  if (timeout.has_value()) {
    time.tv_sec = timeout->count() / 1'000'000'000;
    time.tv_nsec = timeout->count() % 1'000'000'000;
  }
  syscall(SYS_futex, word, FUTEX_WAIT, value, timeout.has_value() ? &time : nullptr, nullptr, 0);
}

void FutexWake(uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace resident
