#include "runtime/base/process/frames.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/process/descriptor_message.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"

namespace resident {
namespace {

absl::Status Gone(const char* call, int error) {
  return absl::UnavailableError(
      absl::StrCat("the other process has closed its socket: ", call, ": ", strerror(error)));
}

ssize_t ReceiveWithDescriptor(int socket, char* to, uint64_t size, UniqueFd* received) {
  DescriptorMessage message;
  const ssize_t got = ReceiveDescriptorMessage(socket, to, size, 0, &message);
  if (!message.fds.empty()) *received = std::move(message.fds.front());
  return got;
}

bool MayTryAgain(int error) { return error == EINTR || error == EAGAIN; }

// Too many descriptors are in flight, or the system lacks memory for one: the socket is intact.
bool CannotPass(int error) { return error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM; }

absl::Status WriteAll(int socket, const char* from, uint64_t size, const WaitForFd& wait, int fd) {
  for (uint64_t done = 0; done < size;) {
    // The descriptor goes with the first byte.
    const ssize_t some = fd >= 0 && done == 0
                             ? SendDescriptorMessage(socket, {from, size}, fd)
                             : send(socket, from + done, size - done, MSG_NOSIGNAL);
    if (some >= 0) {
      done += static_cast<uint64_t>(some);
    } else if (fd >= 0 && done == 0 && CannotPass(errno)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot pass a descriptor: ", strerror(errno), ". Fix: try again in a moment"));
    } else if (!MayTryAgain(errno)) {
      return Gone("write", errno);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(wait(socket, POLLOUT));
    }
  }
  return absl::OkStatus();
}

// Reads exactly `size` bytes. `*got` counts those that came before an error.
absl::Status ReadAll(int socket, char* to, uint64_t size, uint64_t* got, const WaitForFd& wait,
                     UniqueFd* received) {
  for (*got = 0; *got < size;) {
    const ssize_t some = received != nullptr
                             ? ReceiveWithDescriptor(socket, to + *got, size - *got, received)
                             : read(socket, to + *got, size - *got);
    if (some > 0) {
      *got += static_cast<uint64_t>(some);
    } else if (some == 0) {
      return Gone("read", EPIPE);
    } else if (!MayTryAgain(errno)) {
      return Gone("read", errno);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(wait(socket, POLLIN));
    }
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

absl::Status WriteFrame(int socket, absl::string_view message, const WaitForFd& wait, int fd) {
  const uint64_t size = message.size();
  char header[sizeof(size)];
  memcpy(header, &size, sizeof(size));
  RETURN_IF_ERROR(WriteAll(socket, header, sizeof(header), wait, fd));
  return WriteAll(socket, message.data(), message.size(), wait, -1);
}

absl::StatusOr<std::string> ReadFrame(int socket, uint64_t max_bytes, const WaitForFd& wait,
                                      UniqueFd* received) {
  uint64_t size = 0;
  uint64_t got = 0;
  char header[sizeof(size)];
  if (absl::Status status = ReadAll(socket, header, sizeof(header), &got, wait, received);
      !status.ok()) {
    if (got == 0 && absl::IsUnavailable(status)) return absl::OutOfRangeError(status.message());
    return status;
  }
  memcpy(&size, header, sizeof(size));
  if (size > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", size, " bytes is over the limit of ", max_bytes));
  }
  std::string message(size, '\0');
  RETURN_IF_ERROR(ReadAll(socket, message.data(), size, &got, wait, nullptr));
  return message;
}

void SetStatus(const absl::Status& status, internal::Status* to) {
  to->set_code(static_cast<int32_t>(status.code()));
  to->set_message(ToUtf8(status.message()));
}

absl::Status GetStatus(const internal::Status& from) {
  return absl::Status(static_cast<absl::StatusCode>(from.code()), from.message());
}

}  // namespace resident
