// help: what there is, from the table of commands and the flags' own texts.
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/table.h"
#include "client/commands/command.h"

namespace resident::cli {
namespace {

constexpr std::string_view kExitCodes =
    "Exit status\n"
    "  0  done\n"
    "  1  a check found a difference, a task or program ended with an error, or the daemon\n"
    "     does not serve (health)\n"
    "  2  the command line, or a file it names, is wrong; nothing was sent\n"
    "  3  no server answered\n"
    "  4  the server refused the request, or did not answer within --timeout\n"
    "  5  the work was done, but what it gave could not be written on this machine\n";

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

std::string FlagTable(std::span<const std::string_view> names) {
  Table table({});
  for (std::string_view name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(View(name));
    if (flag == nullptr) continue;
    std::string value = flag->DefaultValue();
    const bool show = !value.empty() && !flag->IsOfType<bool>();
    table.Add({absl::StrCat("  --", flag->Name()),
               absl::StrCat(flag->Help(), show ? absl::StrCat(" (default ", value, ")") : "")});
  }
  return table.ToString();
}

Json DescribeFlags(std::span<const std::string_view> names) {
  Json flags = Json::array();
  for (std::string_view name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(View(name));
    if (flag == nullptr) continue;
    flags.push_back({{"name", std::string(flag->Name())},
                     {"help", flag->Help()},
                     {"default", flag->DefaultValue()}});
  }
  return flags;
}

Json Describe(const Command& command) {
  return {{"name", command.name},
          {"usage", command.usage},
          {"summary", command.summary},
          {"flags", DescribeFlags(command.flags)}};
}

}  // namespace

int RunHelp(const std::vector<std::string>& words) {
  if (words.size() > 1) return UsageError("help takes one command", "residentctl help COMMAND");
  const bool json = absl::GetFlag(FLAGS_json);
  if (words.empty()) {
    if (json) {
      Json commands = Json::array();
      for (const Command& command : Commands()) commands.push_back(Describe(command));
      PrintJson({{"commands", commands}, {"flags", DescribeFlags(CommonFlags())}});
      return kExitOk;
    }
    Table table({});
    for (const Command& command : Commands()) {
      table.Add({absl::StrCat("  ", View(command.name)), std::string(command.summary)});
    }
    Print("residentctl talks to residentd, the daemon that keeps a kernel resident on a GPU.\n\n");
    Print("Usage: residentctl COMMAND [WORD]... [--FLAG=VALUE]...\n\nCommands\n");
    Print(table.ToString());
    Print("\nFlags of every command\n");
    Print(FlagTable(CommonFlags()));
    Print("\n");
    Print(kExitCodes);
    Print("\nresidentctl help COMMAND says more.\n");
    return kExitOk;
  }
  const Command* command = FindCommand(words[0]);
  if (command == nullptr) {
    return UsageError(absl::StrCat("there is no command '", words[0], "'"),
                      "residentctl help lists the commands");
  }
  if (json) {
    PrintJson(Describe(*command));
    return kExitOk;
  }
  Print(absl::StrCat("residentctl ", View(command->name), ": ", View(command->summary), "\n\n"));
  Print(absl::StrCat("Usage: residentctl ", View(command->name), command->usage.empty() ? "" : " ",
                     View(command->usage), " [--FLAG=VALUE]...", "\n\n"));
  if (!command->details.empty()) Print(absl::StrCat(View(command->details), "\n"));
  if (!command->flags.empty()) Print(absl::StrCat("Flags\n", FlagTable(command->flags), "\n"));
  Print(absl::StrCat("Flags of every command\n", FlagTable(CommonFlags())));
  return kExitOk;
}

}  // namespace resident::cli
