#include "client/commands/command.h"

#include <algorithm>

#include "client/cli/common_options.h"
#include "client/cli/exit_codes.h"
#include "client/cli/output.h"
#include "runtime/base/completion.h"
#include "runtime/base/status_macros.h"

namespace resident::cli {
namespace {

// The largest limit that gRPC accepts.
constexpr uint32_t kMaxMessageMib = 2047;

// The commands, in the order of the help text.
constexpr void (*kCommands[])(Command&) = {AddStatus,
                                           AddHealth,
                                           AddOps,
                                           AddBuffers,
                                           AddRun,
                                           AddFlux,
                                           AddGraph,
                                           AddLane,
                                           AddBench,
                                           AddDemo,
                                           AddTop,
                                           AddAdmin,
                                           AddToken,
                                           AddState,
                                           AddVersion,
                                           AddHelp,
                                           AddCompletionCommand};

}  // namespace

void AddDeviceFlag(Command& command, std::optional<uint32_t>* device) {
  command.Flag("device", device,
               "index of the device, as in residentctl status; without it the daemon chooses",
               {.fix = "give an index as in the DEVICE column of residentctl status"});
}

void AddOpVersionFlag(Command& command, uint32_t* version) {
  command.Flag("op_version", version, "version of the operator; 0: the active one");
}

void AddOutFlag(Command& command, std::string* path) {
  command.Flag("out", path, "file to write the result to");
}

void AddRevisionFlag(Command& command, std::optional<uint64_t>* revision) {
  command.Flag("revision", revision,
               "change the operator only if this is its revision; 0: only if it does not exist");
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(bool session) {
  const CommonOptions& common = Common();
  client::Options options;
  options.client_name = "residentctl";
  options.call_timeout = common.call_timeout();
  options.connect_timeout = std::min(options.call_timeout, absl::Seconds(5));
  options.session = session;
  // Only the daemon's --max_message_mib limits messages.
  options.max_message_mib = kMaxMessageMib;
  ASSIGN_OR_RETURN(client::Credentials credentials, client::LoadCredentials(common.credentials));
  options.credentials = std::move(credentials);
  return client::Client::Connect(common.server, std::move(options));
}

int Main(std::span<const std::string> arguments) {
  Command program("residentctl",
                  "controls residentd, the daemon that keeps a kernel resident on a GPU");
  AddCommonFlags(program);
  for (const auto add : kCommands) add(program);
  const absl::StatusOr<Command::Call> call = program.Parse(arguments);
  if (!call.ok()) {
    // The parser may have failed before it set this flag.
    if (std::ranges::count(arguments, "--json") > 0) Common().json = true;
    return UsageError(call.status());
  }
  return FinishOutput(call->help ? PrintHelp(*call->command) : call->command->RunWith(call->words));
}

}  // namespace resident::cli
