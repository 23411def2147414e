// Messages on Unix sockets that carry file descriptors (SCM_RIGHTS).
//
// Thread safety: one thread at a time for each direction of a socket.
//
//   DescriptorMessage received;
//   if (ReceiveDescriptorMessage(socket, buffer, sizeof(buffer), 0, &received) > 0) ...
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_DESCRIPTOR_MESSAGE_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_DESCRIPTOR_MESSAGE_H_

#include <sys/types.h>

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/base/process/unique_fd.h"

namespace resident {

// Sends the bytes, and `fd` with the first of them; the caller keeps its descriptor. Returns the
// number of bytes sent, or -1 with errno, as sendmsg(2) does; never raises SIGPIPE.
ssize_t SendDescriptorMessage(int socket, absl::string_view bytes, int fd);

struct DescriptorMessage {
  std::vector<UniqueFd> fds;
  // The system dropped descriptors: more than kMaxReceivedDescriptors came, or the process has no
  // room for them.
  bool fds_lost = false;
  // Sockets that preserve messages: the message was longer than the buffer.
  bool truncated = false;
};
inline constexpr size_t kMaxReceivedDescriptors = 2;

// Receives at most `size` bytes and the descriptors that came with them, which are closed on exec.
// `flags`: of recvmsg(2). Returns the number of bytes, or -1 with errno, as recvmsg(2) does.
ssize_t ReceiveDescriptorMessage(int socket, void* to, size_t size, int flags,
                                 DescriptorMessage* received);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_DESCRIPTOR_MESSAGE_H_
