// What the tests of access control share: files of policies and tokens, and calls with credentials.
#ifndef RESIDENT_TESTS_AUTH_AUTH_SUPPORT_H_
#define RESIDENT_TESTS_AUTH_AUTH_SUPPORT_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/daemon/daemon.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {

// Tokens of the identities of kFourIdentities, by role.
inline constexpr char kSubmitToken[] = "submit-token";
inline constexpr char kInstallToken[] = "install-token";
inline constexpr char kAdminToken[] = "admin-token";
inline constexpr char kNothingToken[] = "nothing-token";

// A policy, and the token file for it.
inline constexpr char kFourIdentities[] = R"({"identities": {
  "submitter": {"roles": ["submit"]}, "installer": {"roles": ["install"]},
  "admin": {"roles": ["admin"]}, "nobody": {"roles": []}}})";
std::string FourTokens();

// A method that every role may call.
inline constexpr char kStatus[] = "/resident.v1.Admin/Status";

class Folder {
 public:
  // `root`: "/tmp" for a folder with a socket, since Bazel's folder may be too deep for its path.
  explicit Folder(const std::string& root = TempFolder::Root()) : folder_("resident-auth", root) {}
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  // Replaces the file atomically, and returns its path.
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  const TempFolder folder_;
};

// A line of a token file.
std::string TokenLine(const std::string& name, const std::string& token);

// The value of the metadata entry "authorization" for a token.
inline std::string Bearer(const std::string& token) { return "Bearer " + token; }

// Returns a channel with a connection of its own.
std::shared_ptr<grpc::Channel> Open(const Daemon& daemon,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials =
                                        grpc::InsecureChannelCredentials());

// One unary call; an `authorization` metadata entry for each element of `authorizations`.
grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::vector<std::string>& authorizations = {},
                  std::chrono::seconds deadline = std::chrono::seconds(60));

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_AUTH_AUTH_SUPPORT_H_
