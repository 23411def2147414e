// token: creates tokens for the daemon's token file.
#include <sys/random.h>
#include <sys/stat.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "runtime/base/sha256.h"

namespace resident::cli {
namespace {

constexpr size_t kTokenBytes = 32;
// Makes tokens recognizable in places where they must not be, such as logs and commits.
constexpr std::string_view kTokenPrefix = "residentd_";
constexpr size_t kMaxNameBytes = 256;

std::string NewToken() {
  char bits[kTokenBytes];
  size_t have = 0;
  while (have < sizeof(bits)) {
    const ssize_t got = getrandom(bits + have, sizeof(bits) - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  return absl::StrCat(absl::string_view(kTokenPrefix.data(), kTokenPrefix.size()),
                      absl::WebSafeBase64Escape(absl::string_view(bits, sizeof(bits))));
}

bool IsValidName(const std::string& name) {
  for (const char c : name) {
    if (c <= ' ' || c >= 0x7f || c == '#') return false;
  }
  return !name.empty() && name.size() <= kMaxNameBytes && name != "residentd";
}

int MakeToken(const std::string& name, const std::string& out) {
  if (!IsValidName(name)) {
    return UsageError(absl::StrCat("'", absl::CHexEscape(name), "' is not an identity's name"),
                      "give 1 to 256 printable ASCII characters without spaces and '#', not "
                      "residentd");
  }
  const std::string token = NewToken();
  const std::string line = absl::StrCat(name, " ", Sha256Hex(token));
  if (!out.empty()) {
    umask(077);  // Only its owner may read a token.
    if (absl::Status written = WriteFile(out, token + "\n"); !written.ok()) {
      return UsageError(written);
    }
  }
  if (Common().json) {
    Json json = {{"name", name}, {"line", line}};
    if (out.empty()) json["token"] = token;
    PrintJson(json);
    return kExitOk;
  }
  Print(absl::StrCat("token, for the client (--token_file): ", out.empty() ? token : out,
                     "\nline, for the daemon's --token_file:  ", line, "\n"));
  return kExitOk;
}

}  // namespace

void AddToken(Command& program) {
  Command& token = program.Add(
      "token", "create a token for an identity",
      "Prints a new token for the client, and the line for the daemon's token file (it contains\n"
      "only the token's hash). With --out the token is written to that file, readable only by its\n"
      "owner, and is not printed.\n");
  Command& make = token.Add("new", "create a token");
  auto out = std::make_shared<std::string>();
  AddOutFlag(make, out.get());
  make.Run("NAME", [out](const Words& words) { return MakeToken(words[0], *out); });
}

}  // namespace resident::cli
