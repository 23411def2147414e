#include "server/auth/token_file.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/errors/quote.h"
#include "server/auth/policy.h"

namespace resident {
namespace {

absl::Status BadLine(size_t line, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line, ": ", what,
                   ". Fix: write NAME and 64 hex digits, as printed by residentctl token new"));
}

}  // namespace

TokenHash HashToken(std::string_view token) {
  // This runs for every call with a token. Looking up the algorithm and creating a context
  // would take three times as long as the hash itself.
  static const EVP_MD* const kSha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(
      EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  TokenHash hash;
  EVP_DigestInit_ex(context.get(), kSha256, nullptr);
  EVP_DigestUpdate(context.get(), token.data(), token.size());
  EVP_DigestFinal_ex(context.get(), hash.data(), nullptr);
  return hash;
}

absl::StatusOr<TokenFile> ParseTokenFile(std::string_view text) {
  if (text.size() > kMaxTokenFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the file has ", text.size(),
                                                   " bytes, but the limit is ", kMaxTokenFileBytes,
                                                   ". Fix: remove unused tokens"));
  }
  TokenFile file;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (words.size() != 2) return BadLine(number, absl::StrCat(words.size(), " words, not 2"));
    const std::string name(words[0]);
    if (const absl::Status usable = CheckIdentityName(name); !usable.ok()) {
      return BadLine(number, std::string(usable.message()));
    }
    const bool hex =
        words[1].size() == 2 * std::tuple_size_v<TokenHash> &&
        words[1].find_first_not_of("0123456789abcdefABCDEF") == absl::string_view::npos;
    // The word is not part of the message: it may be a token that was pasted by mistake.
    if (!hex) return BadLine(number, "the second word is not a SHA-256 hash in hex");
    const std::string bytes = absl::HexStringToBytes(words[1]);
    TokenHash hash;
    std::copy(bytes.begin(), bytes.end(), hash.begin());
    if (const auto [at, added] = file.names.emplace(hash, name); !added) {
      return BadLine(
          number, absl::StrCat("the same token as that of ", errors::Quote(at->second), " above"));
    }
  }
  return file;
}

}  // namespace resident
