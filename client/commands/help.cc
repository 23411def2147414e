// help: describes the commands.
#include "client/cli/common_options.h"
#include "client/cli/exit_codes.h"
#include "client/cli/output.h"
#include "client/commands/command.h"

namespace resident::cli {
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
