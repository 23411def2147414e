// token: makes tokens for the daemon's token file.
#include <sys/random.h>
#include <sys/stat.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/shared_flags.h"
#include "runtime/base/sha256.h"

namespace resident::cli {
namespace {

constexpr size_t kTokenBytes = 32;
// So that a token is known for what it is where it should not be: in a log, in a commit.
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

bool IsName(const std::string& name) {
  for (const char c : name) {
    if (c <= ' ' || c >= 0x7f || c == '#') return false;
  }
  return !name.empty() && name.size() <= kMaxNameBytes && name != "residentd";
}

}  // namespace

int RunToken(const std::vector<std::string>& words) {
  if (words.size() != 2 || words[0] != "new") {
    return UsageError("token takes the word new and a name", "residentctl token new NAME");
  }
  const std::string& name = words[1];
  if (!IsName(name)) {
    return UsageError(absl::StrCat("'", absl::CHexEscape(name), "' is not an identity's name"),
                      "1 to 256 printable ASCII characters without spaces and '#', not residentd");
  }
  const std::string token = NewToken();
  const std::string line = absl::StrCat(name, " ", Sha256Hex(token));
  const std::string out = absl::GetFlag(FLAGS_out);
  if (!out.empty()) {
    umask(077);  // A token is its owner's alone.
    if (absl::Status written = WriteFile(out, token + "\n"); !written.ok()) {
      return UsageError(written);
    }
  }
  if (absl::GetFlag(FLAGS_json)) {
    Json json = {{"name", name}, {"line", line}};
    if (out.empty()) json["token"] = token;
    PrintJson(json);
    return kExitOk;
  }
  Print(absl::StrCat("token, for the client (--token_file): ", out.empty() ? token : out,
                     "\nline, for the daemon's --token_file:  ", line, "\n"));
  return kExitOk;
}

}  // namespace resident::cli
