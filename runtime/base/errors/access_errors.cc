#include "runtime/base/errors/access_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status NoCredential() {
  return absl::UnauthenticatedError(
      "the call has no credential, and this daemon serves nobody without one. Fix: send a token "
      "(residentctl --token_file) or a client certificate (--tls_cert and --tls_key)");
}

absl::Status NoBearer() {
  return absl::UnauthenticatedError(
      "the metadata \"authorization\" has no token. Fix: send \"Bearer \" and the token");
}

absl::Status ManyTokens() {
  return absl::UnauthenticatedError(
      "the call has the metadata \"authorization\" more than once. Fix: send one token");
}

absl::Status TokenTooLong(size_t bytes, size_t limit) {
  return absl::UnauthenticatedError(StrCat("the token has ", bytes, " bytes, and none has over ",
                                           limit, ". Fix: send the token alone"));
}

absl::Status UnknownToken() {
  return absl::UnauthenticatedError(
      "the token is not known here. Fix: have the line that residentctl token new printed added "
      "to the daemon's token file (--token_file)");
}

absl::Status RevokedToken(const std::string& identity) {
  return absl::UnauthenticatedError(StrCat("the token of ", Quote(identity),
                                           " was taken out of the token file. Fix: call with a "
                                           "token that is in it"));
}

absl::Status BadCertificateName(const std::string& name) {
  return absl::UnauthenticatedError(
      StrCat("the client certificate's name ", Quote(name),
             " is not an identity. Fix: use a certificate whose URI or common name is 1 to 256 "
             "printable ASCII characters without spaces, and not 'residentd'"));
}

absl::Status UriWithoutScheme(const std::string& name) {
  return absl::UnauthenticatedError(
      StrCat("the client certificate's URI ", Quote(name),
             " has no scheme, so that it could be taken for a common name. Fix: use a certificate "
             "whose URI begins with one, as spiffe://corp/name does"));
}

absl::Status CommonNameLikeUri(const std::string& name) {
  return absl::UnauthenticatedError(
      StrCat("the client certificate's common name ", Quote(name),
             " contains ':', so that it could be taken for a URI. Fix: use a certificate that has "
             "the URI among its alternative names, or a common name without ':'"));
}

absl::Status LacksRole(const std::string& identity, const std::string& roles,
                       const std::string& call) {
  return absl::PermissionDeniedError(StrCat("identity ", Quote(identity),
                                            " does not have the role ", roles, ", which ", call,
                                            " needs. Fix: give it the role in the daemon's policy "
                                            "(--policy), or call as somebody who has it"));
}

absl::Status LacksOperator(const std::string& identity, const std::string& role,
                           const std::string& operator_name) {
  return absl::PermissionDeniedError(StrCat(
      "identity ", Quote(identity), " may not ", role == "install" ? "change" : "run", " operator ",
      Quote(operator_name), ". Fix: add a prefix of its name to the identity's operators.", role,
      " in the daemon's policy (--policy)"));
}

absl::Status UnlistedMethod(const std::string& identity, const std::string& method) {
  return absl::PermissionDeniedError(StrCat("identity ", Quote(identity), " may not call ",
                                            Quote(method),
                                            ": nobody may. Fix: call a method of resident.v1"));
}

absl::Status OthersSession(const std::string& identity) {
  return absl::PermissionDeniedError(StrCat("the session was not opened by ", Quote(identity),
                                            ". Fix: open a session (Sessions.Open) with the "
                                            "credential that uses it"));
}

absl::Status TaskQuota(const std::string& identity, uint64_t tasks, uint64_t in_flight,
                       uint64_t quota) {
  return absl::ResourceExhaustedError(
      StrCat(tasks, " tasks with ", in_flight, " in flight are more than the quota ", quota,
             " (tasks_in_flight) of identity ", Quote(identity),
             ". Fix: wait for answers, send smaller batches, or raise the quota in the daemon's "
             "policy (--policy)"));
}

absl::Status BufferQuota(const std::string& identity, uint64_t bytes, uint64_t used,
                         uint64_t quota) {
  return absl::ResourceExhaustedError(
      StrCat(bytes, " bytes with ", used, " in use are more than the quota ", quota,
             " (buffer_mib, in bytes) of identity ", Quote(identity),
             ". Fix: free buffers, or raise the quota in the daemon's policy (--policy)"));
}

absl::Status InstallQuota(const std::string& identity, uint64_t quota, int64_t wait_s) {
  return absl::ResourceExhaustedError(
      StrCat("identity ", Quote(identity), " has used its quota of ", quota,
             " installs a minute (installs_per_minute). Fix: wait ", wait_s,
             " s, or raise the quota in the daemon's policy (--policy)"));
}

}  // namespace resident::errors
