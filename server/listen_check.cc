#include "server/listen_check.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

// "host:port" or "[v6]:port".
bool Split(const std::string& address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) return false;
  *host = address.substr(0, colon);
  *port = address.substr(colon + 1);
  if (host->size() > 1 && host->front() == '[' && host->back() == ']') {
    *host = host->substr(1, host->size() - 2);
  }
  return !host->empty() && port->size() <= 5 &&
         port->find_first_not_of("0123456789") == std::string::npos && std::stoi(*port) <= 65535;
}

}  // namespace

absl::Status CannotListen(const std::string& flag, const std::string& address,
                          const std::string& why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why,
                                             ". Fix: stop what uses the address, or give another "
                                             "with --",
                                             flag));
}

absl::Status CheckListen(const std::string& flag, const std::string& address) {
  std::string host;
  std::string port;
  if (!Split(address, &host, &port)) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", address,
                                                   " is not host:port. Fix: give e.g. "
                                                   "127.0.0.1:50051"));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return CannotListen(flag, address, gai_strerror(error));
  }
  absl::Status status;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // As gRPC does.
  if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) {
    status = CannotListen(flag, address, strerror(errno));
  }
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return status;
}

}  // namespace resident
