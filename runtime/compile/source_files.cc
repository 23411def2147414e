#include "runtime/compile/source_files.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/limits.h"
#include "runtime/compile/errors.h"

namespace resident {

absl::Status CheckFileName(const std::string& name) {
  const auto refuse = [&](const std::string& why) { return errors::InstallFileName(name, why); };
  if (name.empty()) return refuse("it is empty");
  if (name.size() > kMaxInstallFileNameBytes) {
    return refuse(
        absl::StrCat(name.size(), " bytes are over the limit of ", kMaxInstallFileNameBytes));
  }
  for (const unsigned char c : name) {
    if (!(absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/')) {
      return refuse("it has a character that is not a letter, a digit or one of _-./");
    }
  }
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    if (part.empty()) return refuse("it begins or ends with '/', or has two in a row");
    if (part == "." || part == "..") return refuse("it has '.' or '..' as a folder");
  }
  if (absl::StartsWith(name, "kernels/") || absl::StartsWith(name, "resident/")) {
    return refuse("kernels/ and resident/ are folders of the SDK");
  }
  return absl::OkStatus();
}

absl::Status CheckMainFile(const std::map<std::string, std::string>& files,
                           const std::string& main_file) {
  if (files.contains(main_file)) return absl::OkStatus();
  return errors::InstallMissingFile(main_file, files.size());
}

}  // namespace resident
