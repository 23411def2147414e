// Policy: the policy file, read and checked.
//
//   {
//     "identities": {
//       "anonymous": {"roles": []},
//       "ranking":   {"roles": ["submit"],
//                     "operators": {"submit": ["rank.", "add"]},
//                     "quotas": {"tasks_in_flight": 100000, "buffer_mib": 512, "sessions": 8}},
//       "spiffe://corp/deployer":
//                    {"roles": ["submit", "install"],
//                     "operators": {"install": ["rank."]},
//                     "quotas": {"installs_per_minute": 6}},
//       "oncall":    {"roles": ["submit", "install", "admin"]}
//     }
//   }
//
// An identity is a token's name, a certificate's URI or its common name; one with ':' is never a
// common name (access.h). Operators are named by prefix; a list that is not there stands for all
// operators. A quota that is not there is not limited. Comments (// and /* */) are allowed. A field
// that is not known, or is there twice, is an error: a policy with a spelling mistake
// must not allow more than was meant.
//
// Thread safety: a value.
#ifndef RESIDENT_SERVER_AUTH_POLICY_H_
#define RESIDENT_SERVER_AUTH_POLICY_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/auth/account.h"

namespace resident {

inline constexpr size_t kMaxPolicyBytes = 4u << 20;
inline constexpr size_t kMaxIdentityNameBytes = 256;

struct Policy {
  std::map<std::string, Rights> identities;
};

// INVALID_ARGUMENT names the line, or the field by its path
// ("identities.ranking.quotas.buffer_mib").
absl::StatusOr<Policy> ParsePolicy(std::string_view text);

// OK for a name that policies and token files may have. INVALID_ARGUMENT: empty, too
// long, not printable, or the daemon's own.
absl::Status CheckIdentityName(std::string_view name);

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_POLICY_H_
