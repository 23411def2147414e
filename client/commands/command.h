// The commands of residentctl.
//
// A command is a file here with an AddXxx(), which declares the command, its flags and what it
// runs; AddXxx() is declared below and called in command.cc.
#ifndef RESIDENT_CLIENT_COMMANDS_COMMAND_H_
#define RESIDENT_CLIENT_COMMANDS_COMMAND_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "client/residentd_client.h"
#include "runtime/base/command_line.h"

namespace resident::cli {

using Words = Command::Words;

void AddStatus(Command& program);
void AddHealth(Command& program);
void AddOps(Command& program);
void AddBuffers(Command& program);
void AddRun(Command& program);
void AddFlux(Command& program);
void AddBench(Command& program);
void AddDemo(Command& program);
void AddTop(Command& program);
void AddAdmin(Command& program);
void AddToken(Command& program);
void AddState(Command& program);
void AddVersion(Command& program);
void AddHelp(Command& program);

// Actions of `residentctl ops`: `ops install`; `ops watch` and `ops audit`.
void AddOpsInstall(Command& ops);
void AddOpsWatch(Command& ops);
// `residentctl flux check`.
void AddFluxCheck(Command& flux);

// Flags that several commands take.
void AddDeviceFlag(Command& command, std::optional<uint32_t>* device);
void AddOpVersionFlag(Command& command, uint32_t* version);
void AddOutFlag(Command& command, std::string* path);
void AddRevisionFlag(Command& command, std::optional<uint64_t>* revision);

// Prints the command's help, or with --json its description. Returns the exit code.
int PrintHelp(const Command& command);

// Connects as the common flags say.
absl::StatusOr<std::unique_ptr<client::Client>> Connect(bool session = true);

// Parses the command line and runs what it says.
int Main(std::span<const std::string> arguments);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_COMMAND_H_
