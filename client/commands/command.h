// The commands of residentctl.
//
// Each command has a file in this folder with a function AddXxx(), which declares the command, its
// flags and its action. AddXxx() is declared below and called in command.cc.
#ifndef RESIDENT_CLIENT_COMMANDS_COMMAND_H_
#define RESIDENT_CLIENT_COMMANDS_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/residentd_client.h"
#include "client/targets.h"
#include "runtime/base/command_line.h"

namespace resident::cli {

using Words = Command::Words;

void AddStatus(Command& program);
void AddHealth(Command& program);
void AddOps(Command& program);
void AddApply(Command& program);
void AddDiff(Command& program);
void AddBuffers(Command& program);
void AddRun(Command& program);
void AddFlux(Command& program);
void AddGraph(Command& program);
void AddLane(Command& program);
void AddModel(Command& program);
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

// Flags of several commands.
void AddDeviceFlag(Command& command, std::optional<uint32_t>* device);
// Which version of an operator to run; none: the active one.
struct OpVersion {
  uint32_t version = 0;
  std::string content_hash;
  std::string label;
};
void AddOpVersionFlags(Command& command, OpVersion* version);
void AddOutFlag(Command& command, std::string* path);
void AddRevisionFlag(Command& command, std::optional<uint64_t>* revision);

// Prints the command's help, or with --json its description. Returns the exit code.
int PrintHelp(const Command& command);

// Connects with the options of the common flags. `address`: in place of --server, with the name
// that TLS verifies unless --tls_server_name is given. `timeout`: of each call, if --timeout is not
// given; nullopt: CommonOptions::call_timeout.
absl::StatusOr<std::unique_ptr<client::Client>> Connect(bool session = true);
absl::StatusOr<std::unique_ptr<client::Client>> Connect(bool session, const std::string& address,
                                                        const std::string& tls_name,
                                                        std::optional<absl::Duration> timeout = {});

// The nodes of --targets. ResolveNodes returns an exit code if it fails. ForEachNode calls `ask`
// with each node's number and its client, or why there is none, from up to 64 threads.
std::optional<int> ResolveNodes(const std::string& target, client::Targets* nodes);
void ForEachNode(
    const client::Targets& nodes,
    absl::FunctionRef<void(size_t, const absl::StatusOr<std::unique_ptr<client::Client>>&)> ask);

// Parses the command line and runs the command.
int Main(std::span<const std::string> arguments);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_COMMAND_H_
