#include "client/commands/command.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "runtime/base/completion.h"
#include "runtime/base/status_macros.h"

namespace resident::cli {
namespace {

// The largest limit that gRPC accepts.
constexpr uint32_t kMaxMessageMib = 2047;
constexpr size_t kMaxNodesAtOnce = 64;

// The commands, in the order of the help text.
constexpr void (*kCommands[])(Command&) = {AddStatus,
                                           AddHealth,
                                           AddOps,
                                           AddApply,
                                           AddDiff,
                                           AddBuffers,
                                           AddRun,
                                           AddFlux,
                                           AddGraph,
                                           AddLane,
                                           AddModel,
                                           AddBench,
                                           AddDemo,
                                           AddTop,
                                           AddAdmin,
                                           AddToken,
                                           AddState,
                                           AddVersion,
                                           AddHelp,
                                           AddCompletionCommand,
                                           [](Command& program) { AddManualCommand(program, 1); }};

}  // namespace

void AddDeviceFlag(Command& command, std::optional<uint32_t>* device) {
  command.Flag("device", device,
               "index of the device, as in residentctl status; without it the daemon chooses",
               {.fix = "give an index as in the DEVICE column of residentctl status"});
}

void AddOpVersionFlags(Command& command, OpVersion* version) {
  command.Flag("op_version", &version->version, "version of the operator; 0: the active one");
  command.Flag("op_hash", &version->content_hash,
               "the version whose content hash begins with these 12 to 64 digits");
  command.Flag("op_label", &version->label, "the version with this label");
}

void AddOutFlag(Command& command, std::string* path) {
  command.Flag("out", path, "file to write the result to");
}

void AddRevisionFlag(Command& command, std::optional<uint64_t>* revision) {
  command.Flag("revision", revision,
               "change it only if this is its revision; 0: only if it does not exist");
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(bool session) {
  return Connect(session, Common().server, "");
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(bool session, const std::string& address,
                                                        const std::string& tls_name,
                                                        std::optional<absl::Duration> timeout) {
  const CommonOptions& common = Common();
  client::Options options;
  options.client_name = "residentctl";
  options.call_timeout = common.timeout.value_or(timeout.value_or(common.call_timeout()));
  options.connect_timeout = std::min(options.call_timeout, absl::Seconds(5));
  options.session = session;
  // Only the daemon's --max_message_mib limits messages.
  options.max_message_mib = kMaxMessageMib;
  ASSIGN_OR_RETURN(client::Credentials credentials, client::LoadCredentials(common.credentials));
  options.credentials = std::move(credentials);
  if (options.credentials.tls_server_name.empty()) options.credentials.tls_server_name = tls_name;
  return client::Client::Connect(address, std::move(options));
}

std::optional<int> ResolveNodes(const std::string& target, client::Targets* nodes) {
  absl::StatusOr<client::Targets> targets = client::ResolveTargets(target);
  if (absl::IsUnavailable(targets.status())) {
    (void)CallError(targets.status());
    return kExitUnreachable;
  }
  if (!targets.ok()) return UsageError(targets.status());
  *nodes = *std::move(targets);
  return std::nullopt;
}

void ForEachNode(
    const client::Targets& nodes,
    absl::FunctionRef<void(size_t, const absl::StatusOr<std::unique_ptr<client::Client>>&)> ask) {
  const size_t count = nodes.addresses.size();
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      ask(i, Connect(/*session=*/false, nodes.addresses[i], nodes.host));
    }
  };
  std::vector<std::thread> threads(std::min(count, kMaxNodesAtOnce));
  for (std::thread& thread : threads) thread = std::thread(work);
  for (std::thread& thread : threads) thread.join();
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

// help: describes the commands.

namespace {

constexpr std::string_view kExitCodes =
    "\nExit status\n"
    "  0  done\n"
    "  1  a check found a difference, a task or program ended with an error, or the daemon\n"
    "     does not serve (health)\n"
    "  2  the command line, or a file that it names, is invalid; nothing was sent\n"
    "  3  no server answered\n"
    "  4  the server refused the request, or did not answer within --timeout\n"
    "  5  the work was done, but its result could not be written on this machine\n"
    "  6  a roll-out (apply) has ended with a node that is neither in the old nor in the\n"
    "     new state\n"
    "\nFor details run: residentctl help COMMAND\n";

Json Describe(const Command& command) {
  Json flags = Json::array();
  for (const Command::FlagInfo& flag : command.flags()) {
    flags.push_back({{"name", flag.name}, {"help", flag.help}, {"default", flag.default_text}});
  }
  Json json = {{"name", command.name()},
               {"usage", command.usage()},
               {"summary", command.summary()},
               {"flags", std::move(flags)}};
  for (const auto& below : command.commands()) json["commands"].push_back(Describe(*below));
  return json;
}

}  // namespace

int PrintHelp(const Command& command) {
  if (Common().json) {
    PrintJson(Describe(command));
    return kExitOk;
  }
  Print(command.HelpText());
  if (command.name() == command.path()) Print(kExitCodes);  // Only for the program itself.
  return kExitOk;
}

void AddHelp(Command& program) {
  program.Add("help", "print this text, or details of one command")
      .Run("[COMMAND]...", [&program](const Words& words) {
        const absl::StatusOr<const Command*> command = program.Find(words);
        return command.ok() ? PrintHelp(**command) : UsageError(command.status());
      });
}

}  // namespace resident::cli
