#include "runtime/base/process/wake_event.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace resident {

namespace {

int CreateDescriptor() { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

}  // namespace

absl::StatusOr<std::unique_ptr<WakeEvent>> WakeEvent::Create() {
  const int fd = CreateDescriptor();
  if (fd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create an event descriptor: ", strerror(errno),
                     ". Fix: raise the limit on open files of the service"));
  }
  return std::unique_ptr<WakeEvent>(new WakeEvent(fd));
}

WakeEvent::WakeEvent() : fd_(CreateDescriptor()) {
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
