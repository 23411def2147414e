// The larger actions of `residentctl ops`. Each gets the words after the action and
// returns the exit code.
#ifndef RESIDENT_CLIENT_COMMANDS_OPS_H_
#define RESIDENT_CLIENT_COMMANDS_OPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"

namespace resident::cli {

int InstallOperator(const std::vector<std::string>& words);
int WatchOperators(const std::vector<std::string>& words);
int AuditOperators(const std::vector<std::string>& words);

}  // namespace resident::cli

// The revision that an operator must have for a change of it.
ABSL_DECLARE_FLAG(std::optional<uint64_t>, revision);

#endif  // RESIDENT_CLIENT_COMMANDS_OPS_H_
