#include "client/credentials.h"

#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace resident::client {
namespace {

absl::Status Read(const std::string& path, std::string* contents) {
  if (path.empty()) return absl::OkStatus();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  *contents = text.str();
  if (file && !contents->empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cannot read ", path, ", or it is empty. Fix: give a file with contents"));
}

// Whether data that is sent to the address does not leave this machine.
bool IsLocal(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  std::string host = address.substr(0, address.rfind(':'));
  host = host.substr(host.rfind('/') + 1);  // "ipv4:", "dns:///".
  for (const char* scheme : {"ipv4:", "ipv6:", "dns:"}) {
    if (absl::StartsWith(host, scheme)) host = host.substr(std::char_traits<char>::length(scheme));
  }
  // A host that begins with "127." must be an IPv4 address.
  const bool v4 =
      absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == std::string::npos;
  return v4 || host == "localhost" || host == "[::1]";
}

}  // namespace

absl::StatusOr<Credentials> LoadCredentials(const CredentialFiles& files) {
  Credentials credentials;
  credentials.tls = files.tls || !files.tls_ca.empty() || !files.tls_cert.empty();
  credentials.tls_server_name = files.tls_server_name;
  absl::Status status = Read(files.tls_ca, &credentials.tls_ca);
  if (status.ok()) status = Read(files.tls_cert, &credentials.tls_cert);
  if (status.ok()) status = Read(files.tls_key, &credentials.tls_key);
  std::string token;
  if (status.ok()) status = Read(files.token_file, &token);
  if (!status.ok()) return status;
  credentials.token = std::string(absl::StripAsciiWhitespace(token.substr(0, token.find('\n'))));
  if (!files.token_file.empty() && credentials.token.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        files.token_file, " has no token in its first line. Fix: put only the token there"));
  }
  return credentials;
}

absl::Status CheckCredentials(const Credentials& credentials, const std::string& address) {
  if (credentials.tls_cert.empty() != credentials.tls_key.empty()) {
    return absl::InvalidArgumentError(
        "a certificate needs its key, and one of them is missing. Fix: give both "
        "(residentctl --tls_cert and --tls_key), or neither");
  }
  const bool printable = std::all_of(credentials.token.begin(), credentials.token.end(),
                                     [](char c) { return c > ' ' && c < 0x7f; });
  if (!printable) {
    return absl::InvalidArgumentError(
        "the token contains invalid bytes. Fix: give the token that residentctl token new "
        "wrote");
  }
  if (credentials.token.empty() || credentials.tls || IsLocal(address)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the token would be sent to ", address,
                   " in the clear. Fix: use TLS (residentctl --tls_ca or --tls)"));
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const Credentials& credentials) {
  if (!credentials.tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = credentials.tls_ca;
  options.pem_cert_chain = credentials.tls_cert;
  options.pem_private_key = credentials.tls_key;
  return grpc::SslCredentials(options);
}

}  // namespace resident::client
