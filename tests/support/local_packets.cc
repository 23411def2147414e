#include "tests/support/local_packets.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace resident::testing {

int ConnectLocal(const std::string& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return -1;
  }
  memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  // Longer than any operation of the tests takes.
  const timeval minute{60, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &minute, sizeof(minute));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

bool SendLocal(int connection, const std::string& packet, const std::vector<int>& fds) {
  std::string copy = packet;
  iovec payload{copy.data(), copy.size()};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(connection, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

LocalAnswer ReceiveLocal(int connection) {
  unsigned char packet[4096];
  ssize_t bytes = recv(connection, packet, sizeof(packet), 0);
  // The daemon has closed the connection without reading all data; its answer can still be
  // read.
  if (bytes < 0 && errno == ECONNRESET) bytes = recv(connection, packet, sizeof(packet), 0);
  LocalAnswer answer;
  if (bytes < 4) return answer;
  answer.code = packet[0] | packet[1] << 8 | packet[2] << 16 | packet[3] << 24;
  answer.text.assign(reinterpret_cast<char*>(packet) + 4, static_cast<size_t>(bytes) - 4);
  return answer;
}

LocalAnswer PassDescriptors(const std::string& path, const std::string& packet,
                            const std::vector<int>& fds) {
  const int connection = ConnectLocal(path);
  if (connection < 0) return {-1, strerror(errno)};
  SendLocal(connection, packet, fds);
  LocalAnswer answer = ReceiveLocal(connection);
  close(connection);
  return answer;
}

int NewMemory(uint64_t bytes, bool shrink_sealed) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      (shrink_sealed && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)) {
    std::perror("memfd_create");
    std::abort();
  }
  return fd;
}

}  // namespace resident::testing
