// Credentials: how a client authenticates itself, and checks the server's identity.
//
//   auto credentials = resident::client::LoadCredentials({.tls_ca = "ca.pem",
//                                                         .token_file = "token"});
//   options.credentials = *credentials;
//
// Thread safety: values; functions without state.
#ifndef RESIDENT_CLIENT_CREDENTIALS_H_
#define RESIDENT_CLIENT_CREDENTIALS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class ChannelCredentials;
}  // namespace grpc

namespace resident::client {

struct Credentials {
  // Encrypts, and checks the server's certificate.
  bool tls = false;
  // PEM: authorities that may have issued the server's certificate; empty: the system's.
  std::string tls_ca;
  // PEM: the client's certificate with those that issued it, and its key; or neither.
  std::string tls_cert;
  std::string tls_key;
  // Name that the server's certificate must contain; empty: the host in the address.
  std::string tls_server_name;
  // Sent with every call; empty: none.
  std::string token;
};

// Paths; empty: none. A CA or a certificate turns TLS on.
struct CredentialFiles {
  bool tls = false;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_server_name;
  // Its first line is the token.
  std::string token_file;
};

// Errors name the file.
absl::StatusOr<Credentials> LoadCredentials(const CredentialFiles& files);

// INVALID_ARGUMENT: a certificate without a key. FAILED_PRECONDITION: a token would be sent
// in the clear, that is, without TLS to another machine.
absl::Status CheckCredentials(const Credentials& credentials, const std::string& address);

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const Credentials& credentials);

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_CREDENTIALS_H_
