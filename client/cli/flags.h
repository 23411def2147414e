// The command line as flags and words.
//
// Flags are Abseil flags, defined beside the command that uses them; a command takes
// only those that its table entry names, so a flag of another command is an error and
// not silently ignored. Flags and words may be mixed. "--" ends the flags; "-" and
// negative numbers are words.
//
// Abseil's own parser is not used because it ends the process with status 1 on an
// unknown flag, where residentctl promises 2 and a hint.
#ifndef RESIDENT_CLIENT_CLI_FLAGS_H_
#define RESIDENT_CLIENT_CLI_FLAGS_H_

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

ABSL_DECLARE_FLAG(std::string, server);
ABSL_DECLARE_FLAG(bool, tls);
ABSL_DECLARE_FLAG(std::string, tls_ca);
ABSL_DECLARE_FLAG(std::string, tls_cert);
ABSL_DECLARE_FLAG(std::string, tls_key);
ABSL_DECLARE_FLAG(std::string, tls_server_name);
ABSL_DECLARE_FLAG(std::string, token_file);
ABSL_DECLARE_FLAG(bool, json);
ABSL_DECLARE_FLAG(absl::Duration, timeout);

namespace resident::cli {

struct CommandLine {
  // What is not a flag, in order.
  std::vector<std::string> words;
  // Names of the flags that were given.
  std::set<std::string> flags;
  // --help or -h.
  bool help = false;
};

// Sets the flags named in `arguments` (without the program's name).
// INVALID_ARGUMENT: unknown flag, missing or malformed value.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments);

// INVALID_ARGUMENT names a flag that was given and is not among `allowed`.
absl::Status CheckFlags(const CommandLine& line, std::span<const std::string_view> allowed,
                        std::string_view command);

// The flag's value, else the environment variable's; empty if there is neither.
std::string FlagOrEnvironment(const std::string& flag, const char* variable);

// --server, else $RESIDENTD_SERVER, else 127.0.0.1:50051.
std::string ServerAddress();

// Names of the flags that every command takes.
std::span<const std::string_view> CommonFlags();

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_FLAGS_H_
