// What a command of residentctl is, and the table of all of them.
//
// A new command is a file here with one `int RunXxx(const std::vector<std::string>&)`,
// declared below, and one entry in commands.cc.
#ifndef RESIDENT_CLIENT_COMMANDS_COMMAND_H_
#define RESIDENT_CLIENT_COMMANDS_COMMAND_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/residentd_client.h"

namespace resident::cli {

struct Command {
  std::string_view name;
  // Words after the name, e.g. "[NAME]".
  std::string_view usage;
  // One line for the list of commands.
  std::string_view summary;
  // More, for `help NAME`.
  std::string_view details;
  // Flags beyond the common ones.
  std::vector<std::string_view> flags;
  // Gets the words after the command's name; returns the exit code.
  int (*run)(const std::vector<std::string>& words);
};

// All commands, in the order in which help lists them.
std::span<const Command> Commands();

// Null: there is none of that name.
const Command* FindCommand(std::string_view name);

// Connects as the common flags say.
absl::StatusOr<std::unique_ptr<client::Client>> Connect(bool session = true);

// Device index in a word. INVALID_ARGUMENT: no number.
absl::StatusOr<uint32_t> ParseDevice(const std::string& word);

int RunState(const std::vector<std::string>& words);
int RunStatus(const std::vector<std::string>& words);
int RunHealth(const std::vector<std::string>& words);
int RunOps(const std::vector<std::string>& words);
int RunBuffers(const std::vector<std::string>& words);
int RunRun(const std::vector<std::string>& words);
int RunFlux(const std::vector<std::string>& words);
int RunBench(const std::vector<std::string>& words);
int RunDemo(const std::vector<std::string>& words);
int RunTop(const std::vector<std::string>& words);
int RunAdmin(const std::vector<std::string>& words);
int RunToken(const std::vector<std::string>& words);
int RunVersion(const std::vector<std::string>& words);
int RunHelp(const std::vector<std::string>& words);

// Parses the command line and runs what it says.
int Main(std::span<const std::string> arguments);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_COMMAND_H_
