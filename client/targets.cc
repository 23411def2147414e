#include "client/targets.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/host_port.h"

namespace resident::client {
namespace {

absl::Status NoAddress(const std::string& host, const char* why) {
  return absl::UnavailableError(absl::StrCat("cannot find the addresses of ", host, ": ", why,
                                             ". Fix: check the name, and the machine's DNS"));
}

}  // namespace

absl::StatusOr<Targets> ResolveTargets(const std::string& target) {
  if (!IsServerAddress(target)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", target, "' is no target. Fix: give dns:///NAME:PORT, or ipv4:HOST:PORT,HOST:PORT"));
  }
  for (const char* scheme : {"unix:", "unix-abstract:", "vsock:", "xds:"}) {
    if (absl::StartsWith(target, scheme)) return Targets{.addresses = {target}};
  }
  absl::string_view text = target;
  if (absl::ConsumePrefix(&text, "ipv4:") || absl::ConsumePrefix(&text, "ipv6:")) {
    text.remove_prefix(text.rfind('/') + 1);
    return Targets{.addresses = absl::StrSplit(text, ',')};
  }
  const bool server = absl::ConsumePrefix(&text, "dns://") && !absl::StartsWith(text, "/");
  if (!server) absl::ConsumePrefix(&text, "dns:");
  text.remove_prefix(text.rfind('/') + 1);
  if (server) {
    return absl::FailedPreconditionError(
        absl::StrCat(target, " names a DNS server, which only gRPC can ask. Fix: use dns:///", text,
                     ", which the system's resolver finds"));
  }
  const size_t colon = text.rfind(':');
  const std::string port(text.substr(colon + 1));
  std::string host(text.substr(0, colon));
  if (absl::StartsWith(host, "[")) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0)
    return NoAddress(host, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
  const absl::Cleanup free = [found] { freeaddrinfo(found); };
  Targets targets{.name = std::string(text), .host = host};
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    char numeric[NI_MAXHOST];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, numeric, sizeof(numeric), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    std::string address = each->ai_family == AF_INET6 ? absl::StrCat("[", numeric, "]:", port)
                                                      : absl::StrCat(numeric, ":", port);
    if (std::ranges::find(targets.addresses, address) == targets.addresses.end()) {
      targets.addresses.push_back(std::move(address));
    }
  }
  if (targets.addresses.empty()) return NoAddress(host, "the answer has none");
  return targets;
}

}  // namespace resident::client
