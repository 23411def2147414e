#include "runtime/compile/message_pipe.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

absl::Status Gone(const char* what, int error) {
  return absl::UnavailableError(
      absl::StrCat("the compile process is gone: ", what, ": ", strerror(error)));
}

// Reads exactly `size` bytes. `*got` is how many there were before the end.
absl::Status ReadAll(int fd, char* to, uint64_t size, uint64_t* got, const WaitForFd& wait) {
  for (*got = 0; *got < size;) {
    RETURN_IF_ERROR(wait(fd, POLLIN));
    const ssize_t some = read(fd, to + *got, size - *got);
    if (some == 0) return Gone("read", EPIPE);
    if (some < 0 && errno != EINTR && errno != EAGAIN) return Gone("read", errno);
    if (some > 0) *got += static_cast<uint64_t>(some);
  }
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, const char* from, uint64_t size, const WaitForFd& wait) {
  for (uint64_t done = 0; done < size;) {
    RETURN_IF_ERROR(wait(fd, POLLOUT));
    const ssize_t some = write(fd, from + done, size - done);
    if (some < 0 && errno != EINTR && errno != EAGAIN) return Gone("write", errno);
    if (some > 0) done += static_cast<uint64_t>(some);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WaitForever(int fd, short events) {
  pollfd ready{fd, events, 0};
  while (poll(&ready, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

absl::Status WriteMessage(int fd, const std::string& message, const WaitForFd& wait) {
  const uint64_t size = message.size();
  char header[sizeof(size)];
  memcpy(header, &size, sizeof(size));
  RETURN_IF_ERROR(WriteAll(fd, header, sizeof(header), wait));
  return WriteAll(fd, message.data(), message.size(), wait);
}

absl::StatusOr<std::string> ReadMessage(int fd, uint64_t most, const WaitForFd& wait) {
  uint64_t size = 0;
  uint64_t got = 0;
  char header[sizeof(size)];
  if (absl::Status status = ReadAll(fd, header, sizeof(header), &got, wait); !status.ok()) {
    if (got == 0 && status.code() == absl::StatusCode::kUnavailable) {
      return absl::OutOfRangeError(status.message());
    }
    return status;
  }
  memcpy(&size, header, sizeof(size));
  if (size > most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", size, " bytes is over the limit of ", most));
  }
  std::string message(size, '\0');
  RETURN_IF_ERROR(ReadAll(fd, message.data(), size, &got, wait));
  return message;
}

}  // namespace resident
