#include "runtime/base/process/wake_event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace resident {

WakeEvent::WakeEvent() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) {
    std::perror("residentd: eventfd");
    std::abort();
  }
}

WakeEvent::~WakeEvent() { close(fd_); }

void WakeEvent::Signal() {
  const uint64_t one = 1;
  // Fails only after 2^64 - 2 signals without a Drain.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
}

void WakeEvent::Drain() {
  uint64_t count;
  // Fails if there was no signal.
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof(count));
}

}  // namespace resident
