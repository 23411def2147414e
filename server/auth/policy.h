// Policy: reads and checks the policy file.
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
// An identity is a token's name, a certificate's URI or its common name; a name with ':' is
// never a common name (access.h). Operators are listed by prefix; an absent list means all
// operators. An absent quota means no limit. Comments (// and /* */) are allowed. A field
// that is unknown or repeated is an error: a spelling mistake in a policy must not grant
// more rights than intended.
//
// Thread safety: a value.
#ifndef RESIDENT_SERVER_AUTH_POLICY_H_
#define RESIDENT_SERVER_AUTH_POLICY_H_

#include <array>
#include <cstdint>
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

// INVALID_ARGUMENT: the message has the line, or the field's path
// ("identities.ranking.quotas.buffer_mib").
absl::StatusOr<Policy> ParsePolicy(std::string_view text);

// Checks a name of an identity in policies and token files. INVALID_ARGUMENT: empty, too
// long, not printable, or the daemon's own.
absl::Status CheckIdentityName(std::string_view name);

// TokenFile: names and the hashes of their tokens.
//
//   # Comment. One token a line: the name, then SHA-256 of the token in hex.
//   ranking   9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//
// A name may have several lines, so that a token can be replaced while both are valid. The
// tokens are 256 random bits (`residentctl token new`), so that a plain hash is a safe way
// to store them.
//
// Thread safety: a value.

inline constexpr size_t kMaxTokenFileBytes = 4u << 20;
// Longer tokens are refused without hashing them.
inline constexpr size_t kMaxTokenBytes = 512;

using TokenHash = std::array<uint8_t, 32>;

// The hash under which a token is stored.
TokenHash HashToken(std::string_view token);

struct TokenFile {
  std::map<TokenHash, std::string> names;
};

// INVALID_ARGUMENT: the message has the line.
absl::StatusOr<TokenFile> ParseTokenFile(std::string_view text);

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_POLICY_H_
