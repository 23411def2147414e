#include "runtime/engine/control/descriptor_channel.h"

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

DescriptorInbox::~DescriptorInbox() {
  absl::MutexLock lock(&mu_);
  for (const auto& [token, fd] : unclaimed_) close(fd);
}

absl::StatusOr<int> DescriptorInbox::Receive(uint64_t token) {
  absl::MutexLock lock(&mu_);
  while (true) {
    if (const auto found = unclaimed_.find(token); found != unclaimed_.end()) {
      const int fd = found->second;
      unclaimed_.erase(found);
      return fd;
    }
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
      got = recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
      return absl::NotFoundError(absl::StrCat("no descriptor came with token ", token));
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    int fd = -1;
    memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    if (got != static_cast<ssize_t>(sizeof(received)) || !unclaimed_.emplace(received, fd).second) {
      close(fd);
    }
    if (received != token && unclaimed_.size() > kMostUnclaimed) {
      close(unclaimed_.begin()->second);  // Tokens rise: the lowest is the oldest.
      unclaimed_.erase(unclaimed_.begin());
    }
  }
}

}  // namespace resident
