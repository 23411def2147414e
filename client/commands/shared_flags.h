// Flags that several commands take.
#ifndef RESIDENT_CLIENT_COMMANDS_SHARED_FLAGS_H_
#define RESIDENT_CLIENT_COMMANDS_SHARED_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"

namespace resident::cli {

// --device: an index as in `residentctl status`, or absent.
struct DeviceFlag {
  std::optional<uint32_t> index;
};
bool AbslParseFlag(absl::string_view text, DeviceFlag* flag, std::string* error);
std::string AbslUnparseFlag(const DeviceFlag& flag);

}  // namespace resident::cli

ABSL_DECLARE_FLAG(resident::cli::DeviceFlag, device);
// Version of the operator that is run.
ABSL_DECLARE_FLAG(uint32_t, op_version);
// File that gets the command's result.
ABSL_DECLARE_FLAG(std::string, out);

#endif  // RESIDENT_CLIENT_COMMANDS_SHARED_FLAGS_H_
