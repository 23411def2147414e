#include "client/commands/command.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "runtime/base/nearest.h"
#include "runtime/base/status_macros.h"

namespace resident::cli {
namespace {

// The most that gRPC can be told.
constexpr uint32_t kMostMessageMib = 2047;

}  // namespace

const Command* FindCommand(std::string_view name) {
  for (const Command& command : Commands()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(bool session) {
  client::Options options;
  options.client_name = "residentctl";
  options.call_timeout = absl::GetFlag(FLAGS_timeout);
  options.connect_timeout = std::min(options.call_timeout, absl::Seconds(5));
  options.session = session;
  // The daemon's --max_message_mib is the limit, and no other.
  options.max_message_mib = kMostMessageMib;
  ASSIGN_OR_RETURN(
      client::Credentials credentials,
      client::LoadCredentials(
          {.tls = absl::GetFlag(FLAGS_tls),
           .tls_ca = FlagOrEnvironment(absl::GetFlag(FLAGS_tls_ca), "RESIDENTD_TLS_CA"),
           .tls_cert = FlagOrEnvironment(absl::GetFlag(FLAGS_tls_cert), "RESIDENTD_TLS_CERT"),
           .tls_key = FlagOrEnvironment(absl::GetFlag(FLAGS_tls_key), "RESIDENTD_TLS_KEY"),
           .tls_server_name =
               FlagOrEnvironment(absl::GetFlag(FLAGS_tls_server_name), "RESIDENTD_TLS_SERVER_NAME"),
           .token_file =
               FlagOrEnvironment(absl::GetFlag(FLAGS_token_file), "RESIDENTD_TOKEN_FILE")}));
  options.credentials = std::move(credentials);
  return client::Client::Connect(ServerAddress(), std::move(options));
}

absl::StatusOr<uint32_t> ParseDevice(const std::string& word) {
  uint32_t device;
  if (absl::SimpleAtoi(word, &device)) return device;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", word, "' is no device. Fix: an index as in the DEVICE column of residentctl status"));
}

int Main(std::span<const std::string> arguments) {
  absl::StatusOr<CommandLine> line = ParseCommandLine(arguments);
  if (!line.ok()) {
    // What comes after the wrong flag has not been read, and may have asked for JSON.
    if (std::ranges::count(arguments, "--json") > 0) absl::SetFlag(&FLAGS_json, true);
    return UsageError(line.status());
  }
  if (absl::GetFlag(FLAGS_timeout) <= absl::ZeroDuration()) {
    return UsageError("--timeout must be more than zero", "as in --timeout=5s");
  }
  if (line->words.empty()) {
    if (line->help) return RunHelp({});
    return UsageError("no command given", "residentctl help lists the commands");
  }
  const std::string name = line->words.front();
  const Command* command = FindCommand(name);
  if (command == nullptr) {
    std::vector<std::string_view> names;
    for (const Command& known : Commands()) names.push_back(known.name);
    const std::string nearest = Nearest(name, names);
    return UsageError(absl::StrCat("there is no command '", name, "'"),
                      nearest.empty() ? "residentctl help lists the commands"
                                      : absl::StrCat("did you mean ", nearest, "?"));
  }
  if (line->help) return RunHelp({name});
  if (absl::Status status = CheckFlags(*line, command->flags, name); !status.ok()) {
    return UsageError(status);
  }
  line->words.erase(line->words.begin());
  return FinishOutput(command->run(line->words));
}

}  // namespace resident::cli
