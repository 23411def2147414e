// Errors of access control and quotas.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_AUTH_ERRORS_H_
#define RESIDENT_SERVER_AUTH_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status NoCredential();
absl::Status NoBearer();
absl::Status ManyTokens();
absl::Status TokenTooLong(size_t bytes, size_t limit);
absl::Status UnknownToken();
absl::Status RevokedToken(const std::string& identity);
absl::Status BadCertificateName(const std::string& name);
absl::Status UriWithoutScheme(const std::string& name);
absl::Status CommonNameLikeUri(const std::string& name);
// `roles`: "'submit' or 'admin'"; `call`: the call that needs one of them.
absl::Status LacksRole(const std::string& identity, const std::string& roles,
                       const std::string& call);
// The role 'install_confined' does not suffice for an operator: `why`.
absl::Status NotOwnOperator(const std::string& identity, const std::string& operator_name,
                            const std::string& why);

// `role`: "submit" or "install". Its list of prefixes has none for the operator.
absl::Status LacksOperator(const std::string& identity, const std::string& role,
                           const std::string& operator_name);
absl::Status UnlistedMethod(const std::string& identity, const std::string& method);
absl::Status TaskQuota(const std::string& identity, uint64_t tasks, uint64_t in_flight,
                       uint64_t quota);
absl::Status BufferQuota(const std::string& identity, uint64_t bytes, uint64_t used,
                         uint64_t quota);
absl::Status InstallQuota(const std::string& identity, uint64_t quota, int64_t wait_s);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_AUTH_ERRORS_H_
