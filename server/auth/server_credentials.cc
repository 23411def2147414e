#include "server/auth/server_credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace resident {
namespace {

absl::Status Failed(const char* call) {
  return absl::InternalError(
      absl::StrCat("cannot keep certificates in memory: ", call, ": ", strerror(errno),
                   ". Fix: check the system's memory and the process's limit of open files"));
}

}  // namespace

PublishedFile::~PublishedFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status PublishedFile::Set(const std::string& contents) {
  int fd = memfd_create("resident-published", MFD_CLOEXEC);
  if (fd < 0) return Failed("memfd_create");
  absl::Cleanup close_fd = [&fd] { close(fd); };
  if (fchmod(fd, 0600) != 0) return Failed("fchmod");
  for (size_t done = 0; done < contents.size();) {
    const ssize_t wrote = write(fd, contents.data() + done, contents.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Failed("write");
    done += static_cast<size_t>(wrote);
  }
  const timespec version{.tv_sec = ++versions_, .tv_nsec = 0};
  const timespec times[2] = {version, version};
  if (futimens(fd, times) != 0) return Failed("futimens");
  if (fd_ < 0) {
    std::move(close_fd).Cancel();
    fd_ = fd;
    return absl::OkStatus();
  }
  if (dup3(fd, fd_, O_CLOEXEC) < 0) return Failed("dup3");
  return absl::OkStatus();
}

std::string PublishedFile::path() const {
  assert(fd_ >= 0);
  return absl::StrCat("/proc/self/fd/", fd_);
}

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
