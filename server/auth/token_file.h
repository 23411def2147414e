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
#ifndef RESIDENT_SERVER_AUTH_TOKEN_FILE_H_
#define RESIDENT_SERVER_AUTH_TOKEN_FILE_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace resident {

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

#endif  // RESIDENT_SERVER_AUTH_TOKEN_FILE_H_
