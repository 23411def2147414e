#include "runtime/base/process/descriptor_message.h"

#include <string.h>
#include <sys/socket.h>

namespace resident {
namespace {

// Room for `count` descriptors, aligned as the macros of control messages require.
template <size_t count>
union ControlBuffer {
  char bytes[CMSG_SPACE(count * sizeof(int))];
  cmsghdr align;
};

}  // namespace

ssize_t SendDescriptorMessage(int socket, absl::string_view bytes, int fd) {
  iovec payload{const_cast<char*>(bytes.data()), bytes.size()};
  ControlBuffer<1> control = {};
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  return sendmsg(socket, &message, MSG_NOSIGNAL);
}

ssize_t ReceiveDescriptorMessage(int socket, void* to, size_t size, int flags,
                                 DescriptorMessage* received) {
  iovec payload{to, size};
  ControlBuffer<kMaxReceivedDescriptors> control = {};
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  const ssize_t bytes = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  if (bytes < 0) return bytes;
  received->truncated = (message.msg_flags & MSG_TRUNC) != 0;
  received->fds_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      received->fds.emplace_back(fd);
    }
  }
  return bytes;
}

}  // namespace resident
