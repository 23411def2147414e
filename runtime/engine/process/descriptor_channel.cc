#include "runtime/engine/process/descriptor_channel.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

// A control message with room for one descriptor, aligned as the macros want it.
union OneDescriptor {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

}  // namespace

absl::Status SendDescriptor(int socket, int fd, uint64_t token) {
  iovec payload{&token, sizeof(token)};
  OneDescriptor control = {};
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof(fd));

  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(sizeof(token))) return absl::OkStatus();
  if (errno == EAGAIN || errno == ETOOMANYREFS) {
    return absl::ResourceExhaustedError(
        "too many descriptors are on their way to the engine. Fix: try again in a moment");
  }
  if (errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED) {
    return absl::UnavailableError("the engine has ended. Fix: try again in a moment");
  }
  return absl::InternalError(absl::StrCat("passing a descriptor: ", strerror(errno)));
}

absl::StatusOr<int> ReceiveDescriptor(int socket, uint64_t token) {
  while (true) {
    uint64_t received = 0;
    iovec payload{&received, sizeof(received)};
    OneDescriptor control = {};
    msghdr message = {};
    message.msg_iov = &payload;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    ssize_t got;
    do {
      got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
      return absl::NotFoundError(absl::StrCat("no descriptor came with token ", token));
    }
    int fd = -1;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    }
    if (fd >= 0 && got == static_cast<ssize_t>(sizeof(received)) && received == token) return fd;
    if (fd >= 0) close(fd);
  }
}

}  // namespace resident
