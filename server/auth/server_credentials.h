// ServerCredentials: how the daemon's port is secured, and the certificates behind it.
//
//   neither TLS nor a policy   plain
//   a policy without TLS       plain, and refused by gRPC to peers on other machines
//   TLS                        TLS, with or without client certificates
//
// Certificates are replaced while the server runs: connections that are open stay as
// they are, new ones get the new certificate.
//
// Thread safety: SetCertificates belongs to one thread at a time.
#ifndef RESIDENT_SERVER_AUTH_SERVER_CREDENTIALS_H_
#define RESIDENT_SERVER_AUTH_SERVER_CREDENTIALS_H_

#include <memory>

#include "absl/status/status.h"
#include "grpcpp/security/server_credentials.h"
#include "server/auth/access_options.h"
#include "server/auth/certificate_files.h"
#include "server/auth/published_file.h"

namespace resident {

class ServerCredentials {
 public:
  // Checked certificates. gRPC takes them up within two seconds.
  absl::Status SetCertificates(const Certificates& certificates);

  // For the port. REQUIRES: SetCertificates, if the options say TLS; this object outlives the
  // server.
  std::shared_ptr<grpc::ServerCredentials> Make(const AccessOptions& options) const;

 private:
  // Key and chain in one, so that they cannot be read apart.
  PublishedFile identity_;
  PublishedFile client_ca_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_SERVER_CREDENTIALS_H_
