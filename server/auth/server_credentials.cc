#include "server/auth/server_credentials.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace resident {
namespace {

// gRPC's watcher accepts only whole seconds.
constexpr unsigned kWatchEverySeconds = 1;

}  // namespace

absl::Status ServerCredentials::SetCertificates(const Certificates& certificates) {
  absl::Status status =
      identity_.Set(absl::StrCat(certificates.key, "\n", certificates.chain, "\n"));
  if (status.ok() && !certificates.client_ca.empty()) {
    status = client_ca_.Set(certificates.client_ca);
  }
  return status;
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials::Make(
    const AccessOptions& options) const {
  if (!options.credentials()) return grpc::InsecureServerCredentials();
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (!options.tls()) {
    // Also plain TCP; gRPC refuses peers that are not on this machine.
    credentials = grpc::experimental::LocalServerCredentials(LOCAL_TCP);
  } else {
    const bool clients = !options.tls_client_ca.empty();
    const std::string identity = identity_.path();
    auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        identity, identity, clients ? client_ca_.path() : "", kWatchEverySeconds);
    grpc::experimental::TlsServerCredentialsOptions tls(provider);
    tls.watch_identity_key_cert_pairs();
    if (clients) tls.watch_root_certs();
    tls.set_cert_request_type(!clients ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                              : options.tls_require_client_cert
                                  ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                  : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    credentials = grpc::experimental::TlsServerCredentials(tls);
  }
  return credentials;
}

}  // namespace resident
