// ServerCredentials: the credentials of the daemon's port, and its certificates.
//
//   neither TLS nor a policy   plain
//   a policy without TLS       plain, and refused by gRPC to peers on other machines
//   TLS                        TLS, with or without client certificates
//
// Certificates can be replaced while the server runs: open connections are not affected,
// new ones get the new certificate.
//
// Thread safety: call SetCertificates from one thread at a time.
#ifndef RESIDENT_SERVER_AUTH_SERVER_CREDENTIALS_H_
#define RESIDENT_SERVER_AUTH_SERVER_CREDENTIALS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/security/server_credentials.h"
#include "server/auth/access_options.h"
#include "server/auth/certificate_files.h"

namespace resident {

// PublishedFile: contents in memory that can be read under a file path, and are replaced as
// a whole.
//
// For libraries that watch a file by its path (gRPC's certificate provider): they see only
// checked contents, never a partly written file, and nothing is written to a disk. The path
// is valid only in this process (/proc/self/fd/N).
//
// Each version is a separate anonymous file; dup3() atomically replaces the previous one.
// The modification time increases by a second with each version, so that a reader of
// several paths can detect that one has changed.
//
// Thread safety: call Set from one thread at a time; reads may be concurrent.
class PublishedFile {
 public:
  PublishedFile() = default;
  ~PublishedFile();
  PublishedFile(const PublishedFile&) = delete;
  PublishedFile& operator=(const PublishedFile&) = delete;

  absl::Status Set(const std::string& contents);
  // REQUIRES: Set was called.
  std::string path() const;

 private:
  int fd_ = -1;
  int versions_ = 0;
};

class ServerCredentials {
 public:
  // Sets certificates that were checked. gRPC uses them within two seconds.
  absl::Status SetCertificates(const Certificates& certificates);

  // Credentials for the port. REQUIRES: SetCertificates was called if the options enable
  // TLS; this object must outlive the server.
  std::shared_ptr<grpc::ServerCredentials> Make(const AccessOptions& options) const;

 private:
  // Key and chain in one file, so that a reader always gets a matching pair.
  PublishedFile identity_;
  PublishedFile client_ca_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_SERVER_CREDENTIALS_H_
