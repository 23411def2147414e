// The flags that control access (server/flags.cc has their texts).
//
// Thread safety: a value, and functions without state.
#ifndef RESIDENT_SERVER_AUTH_ACCESS_OPTIONS_H_
#define RESIDENT_SERVER_AUTH_ACCESS_OPTIONS_H_

#include <string>

#include "absl/status/status.h"

namespace resident {

struct AccessOptions {
  // --tls_cert, --tls_key, --tls_client_ca: PEM files; empty: none.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  // --tls_require_client_cert: whether a client without a certificate is refused, when
  // there is a client CA.
  bool tls_require_client_cert = true;
  // --policy, --token_file: empty: none.
  std::string policy;
  std::string token_file;
  // --insecure_non_loopback.
  bool insecure_non_loopback = false;
  // --allow_clients_without_certificates.
  bool allow_clients_without_certificates = false;

  bool tls() const { return !tls_cert.empty(); }
  // Whether a peer without a client certificate is refused in the TLS handshake, before it can
  // send anything that gRPC stores.
  bool requires_client_certificates() const {
    return tls() && !tls_client_ca.empty() && tls_require_client_cert;
  }
  // Whether callers' credentials are checked.
  bool credentials() const { return tls() || !policy.empty(); }
};

// Whether the address (host:port) can be reached only from this machine; false if it cannot
// be resolved.
bool OnLoopback(const std::string& address);

// INVALID_ARGUMENT, FAILED_PRECONDITION: flags that contradict each other, or that would
// serve other machines unencrypted, or without requiring certificates, unless a flag allows
// it. `address`: host:port.
absl::Status CheckAccessOptions(const AccessOptions& options, const std::string& address);

// What checked options allow other machines to do; empty: nothing.
std::string AccessWarning(const AccessOptions& options, const std::string& address);

// For the daemon's first line: "TLS, client certificates, policy".
std::string DescribeAccess(const AccessOptions& options);

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_ACCESS_OPTIONS_H_
