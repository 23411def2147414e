#include "client/commands/shared_flags.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

ABSL_FLAG(resident::cli::DeviceFlag, device, {},
          "device to use, an index as in residentctl status; without it the daemon chooses");
ABSL_FLAG(uint32_t, op_version, 0, "version of the operator; 0 is the active one");
ABSL_FLAG(std::string, out, "", "file to write the result to");

namespace resident::cli {

bool AbslParseFlag(absl::string_view text, DeviceFlag* flag, std::string* error) {
  flag->index.reset();
  if (text.empty()) return true;
  uint32_t index;
  if (!absl::SimpleAtoi(text, &index)) {
    *error = "not an index";
    return false;
  }
  flag->index = index;
  return true;
}

std::string AbslUnparseFlag(const DeviceFlag& flag) {
  return flag.index.has_value() ? absl::StrCat(*flag.index) : "";
}

}  // namespace resident::cli
