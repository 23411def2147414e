#include "client/local_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/process/descriptor_message.h"

namespace resident::client {
namespace {

// An answer consists of a code, and a token or a message.
constexpr size_t kMaxAnswerBytes = 4096;

absl::Status NoAnswer(const std::string& path, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("the daemon's local socket ", path, ": ", why,
                                             ". Fix: check that the daemon runs, and try again"));
}

// Sets the timeout of both directions. Infinite: none.
void SetTimeout(int socket, absl::Duration timeout) {
  const timeval limit =
      absl::ToTimeval(timeout == absl::InfiniteDuration() ? absl::ZeroDuration() : timeout);
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

bool Send(int socket, const std::string& packet, int fd) {
  ssize_t sent;
  do {
    sent = SendDescriptorMessage(socket, packet, fd);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(packet.size());
}

}  // namespace

absl::StatusOr<std::string> SendDescriptor(const std::string& path, std::string_view magic,
                                           const std::string& session, int fd,
                                           absl::Duration timeout) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the local address ", path,
                                                   " is too long for a socket's path. Fix: give a "
                                                   "shorter one, for instance a symbolic link"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connection < 0) return NoAnswer(path, strerror(errno));
  const absl::Cleanup close_connection = [connection] { close(connection); };
  SetTimeout(connection, timeout);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == ENOENT || errno == EACCES || errno == ENOTDIR) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot connect to the daemon's local socket ", path, ": ", strerror(errno),
                       ". Fix: run on the daemon's machine, where the path can be reached (or give "
                       "Options::local_address), or upload"));
    }
    return NoAnswer(path, strerror(errno));
  }
  if (!Send(connection, std::string(magic) + session, fd)) {
    if (errno == EBADF) {
      return absl::InvalidArgumentError(
          absl::StrCat(fd, " is not an open descriptor. Fix: pass a descriptor of the memory"));
    }
    // If the daemon refuses the connection itself, its answer arrives before the packet is sent.
    if (errno != EPIPE && errno != ECONNRESET) return NoAnswer(path, strerror(errno));
  }
  char answer[kMaxAnswerBytes];
  ssize_t bytes;
  bool reset = false;
  do {
    bytes = recv(connection, answer, sizeof(answer), 0);
    // If the daemon did not read the packet, recv fails once, and then returns the answer.
    reset = bytes < 0 && errno == ECONNRESET && !reset;
  } while (bytes < 0 && (errno == EINTR || reset));
  if (bytes < 0) return NoAnswer(path, strerror(errno));
  if (bytes < 4) return NoAnswer(path, "the daemon closed the connection");
  uint32_t code = 0;
  for (int byte = 3; byte >= 0; --byte) code = code << 8 | static_cast<uint8_t>(answer[byte]);
  std::string text(answer + 4, static_cast<size_t>(bytes) - 4);
  if (code == 0) return text;
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

}  // namespace resident::client
