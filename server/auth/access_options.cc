#include "server/auth/access_options.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "runtime/base/host_port.h"

namespace resident {
namespace {

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  if (address.sa_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  return false;
}

}  // namespace

bool OnLoopback(const std::string& address) {
  const std::string host(WithoutBrackets(HostPart(address)));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  bool all = found != nullptr;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    all = all && IsLoopback(*entry->ai_addr);
  }
  freeaddrinfo(found);
  return all;
}

std::string DescribeAccess(const AccessOptions& options) {
  return absl::StrCat(options.tls() ? "TLS" : "no TLS",
                      options.tls_client_ca.empty()     ? ""
                      : options.tls_require_client_cert ? ", client certificates"
                                                        : ", client certificates or tokens",
                      options.policy.empty() ? ", every caller has all roles" : ", policy");
}

std::string AccessWarning(const AccessOptions& options, const std::string& address) {
  if (options.requires_client_certificates() || OnLoopback(address)) return "";
  if (!options.tls()) {
    return absl::StrCat("--insecure_non_loopback: anyone who can reach ", address,
                        " may run, install and read everything, and can read and change the "
                        "data of other clients");
  }
  return absl::StrCat("--allow_clients_without_certificates: anyone who can reach ", address,
                      options.policy.empty()
                          ? " may run, install and read everything"
                          : " can connect and send headers before a credential is checked");
}

absl::Status CheckAccessOptions(const AccessOptions& options, const std::string& address) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.tls_cert.empty() ? "--tls_key without --tls_cert" : "--tls_cert without --tls_key",
        ": TLS needs both. Fix: set both flags"));
  }
  if (!options.tls_client_ca.empty() && !options.tls()) {
    return absl::InvalidArgumentError(
        "--tls_client_ca without --tls_cert: client certificates need TLS. "
        "Fix: set --tls_cert and --tls_key too");
  }
  if (!options.token_file.empty() && options.policy.empty()) {
    return absl::InvalidArgumentError(
        "--token_file without --policy: tokens would have no effect. "
        "Fix: set --policy to a file that lists the rights of the tokens' names");
  }
  if (OnLoopback(address)) return absl::OkStatus();
  if (options.tls()) {
    if (options.requires_client_certificates() || options.allow_clients_without_certificates) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "--address=", address,
        " can be reached from other machines, and clients need no certificate: "
        "anyone who can reach it can make the daemon read and store headers before a credential is "
        "checked. Fix: set --tls_client_ca, or serve other machines through a proxy "
        "(docs/operations.md) from 127.0.0.1, or set --allow_clients_without_certificates"));
  }
  if (!options.policy.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--policy with --address=", address,
                     " and no TLS: tokens would be sent unencrypted over the network. "
                     "Fix: set --tls_cert and --tls_key, or use an address of this machine "
                     "(127.0.0.1)"));
  }
  if (!options.insecure_non_loopback) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--address=", address,
        " can be reached from other machines, and without TLS anyone who can reach it may run, "
        "install and read everything. Fix: set --tls_cert and --tls_key, or use an address of this "
        "machine (127.0.0.1), or set --insecure_non_loopback if the network is trusted"));
  }
  return absl::OkStatus();
}

}  // namespace resident
