#include "server/auth/errors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

absl::Status NoCredential() {
  return absl::UnauthenticatedError(
      "the call has no credential, but this daemon requires one. Fix: send a token "
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
  return absl::UnauthenticatedError(StrCat("the token has ", bytes,
                                           " bytes, which is over the limit of ", limit,
                                           ". Fix: send only the token"));
}

absl::Status UnknownToken() {
  return absl::UnauthenticatedError(
      "unknown token. Fix: add the line that residentctl token new printed to the daemon's token "
      "file (--token_file)");
}

absl::Status RevokedToken(const std::string& identity) {
  return absl::UnauthenticatedError(StrCat("the token of ", Quote(identity),
                                           " was removed from the token file. Fix: call with a "
                                           "token that is in the file"));
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
             " has no scheme, so it could be mistaken for a common name. Fix: use a certificate "
             "whose URI begins with a scheme, such as spiffe://corp/name"));
}

absl::Status CommonNameLikeUri(const std::string& name) {
  return absl::UnauthenticatedError(
      StrCat("the client certificate's common name ", Quote(name),
             " contains ':', so it could be mistaken for a URI. Fix: use a certificate that has "
             "the URI among its alternative names, or a common name without ':'"));
}

absl::Status LacksRole(const std::string& identity, const std::string& roles,
                       const std::string& call) {
  return absl::PermissionDeniedError(StrCat("identity ", Quote(identity),
                                            " does not have the role ", roles, ", which ", call,
                                            " needs. Fix: give it the role in the daemon's policy "
                                            "(--policy), or call with an identity that has it"));
}

absl::Status NotOwnOperator(const std::string& identity, const std::string& operator_name,
                            const std::string& why) {
  return absl::PermissionDeniedError(
      StrCat("identity ", Quote(identity), " may not change operator ", Quote(operator_name),
             " with the role 'install_confined': ", why,
             ". Fix: use another name, or call with an identity that has the role 'install'"));
}

absl::Status LacksOperator(const std::string& identity, const std::string& role,
                           const std::string& operator_name) {
  return absl::PermissionDeniedError(StrCat(
      "identity ", Quote(identity), " may not ", role == "install" ? "change" : "run", " operator ",
      Quote(operator_name), ". Fix: add a prefix of its name to the identity's operators.", role,
      " in the daemon's policy (--policy)"));
}

absl::Status UnlistedMethod(const std::string& identity, const std::string& method) {
  return absl::PermissionDeniedError(
      StrCat("identity ", Quote(identity), " may not call ", Quote(method),
             ": this method is not served. Fix: call a method of resident.v1"));
}

absl::Status TaskQuota(const std::string& identity, uint64_t tasks, uint64_t in_flight,
                       uint64_t quota) {
  absl::Status status = absl::ResourceExhaustedError(
      StrCat(tasks, " tasks with ", in_flight, " in flight are more than the quota ", quota,
             " (tasks_in_flight) of identity ", Quote(identity),
             ". Fix: wait for results, send smaller batches, or raise the quota in the daemon's "
             "policy (--policy)"));
  if (tasks > quota) return status;
  return WithReason(std::move(status), {"TASK_QUOTA", {{"limit", StrCat(quota)}}});
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
