#include "runtime/base/completion.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace resident {
namespace {

// A command where it is reached, with all flags that it takes there.
struct Place {
  // "/ops/install"; empty: the program.
  std::string at;
  const Command* command;
  std::vector<const Command::FlagInfo*> flags;
};

void Collect(const Command& command, Place place, std::vector<Place>& places) {
  for (const Command::FlagInfo& flag : command.flags()) place.flags.push_back(&flag);
  places.push_back(place);
  for (const auto& below : command.commands()) {
    Collect(*below, {absl::StrCat(place.at, "/", below->name()), below.get(), place.flags}, places);
  }
}

std::vector<Place> Places(const Command& program) {
  std::vector<Place> places;
  Collect(program, {"", &program, {}}, places);
  return places;
}

// As a word of bash and zsh.
std::string Quote(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string FishQuote(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// The places below the program, as alternatives of a pattern.
std::string Alternatives(const std::vector<Place>& places, const char* separator) {
  std::vector<std::string> names;
  for (const Place& place : places) {
    if (!place.at.empty()) names.push_back(place.at);
  }
  return absl::StrJoin(names, separator);
}

std::string BashScript(const Command& program) {
  const std::vector<Place> places = Places(program);
  std::string cases;
  std::string choices;
  for (const Place& place : places) {
    std::vector<std::string> commands;
    std::vector<std::string> flags = {"--help"};
    for (const auto& command : place.command->commands()) commands.push_back(command->name());
    for (const Command::FlagInfo* flag : place.flags) {
      flags.push_back(absl::StrCat("--", flag->name, flag->is_bool ? "" : "="));
      if (flag->choices.empty()) continue;
      absl::StrAppend(&choices, "    ", place.at, "/--", flag->name, ") words='",
                      absl::StrJoin(flag->choices, " "), "' ;;\n");
    }
    absl::StrAppend(&cases, "    ", Quote(place.at), ") words='", absl::StrJoin(commands, " "),
                    "' flags='", absl::StrJoin(flags, " "), "' ;;\n");
  }
  return absl::StrReplaceAll(
      R"(# Completion of PROGRAM in bash: source <(PROGRAM completion bash)
_PROGRAM() {
  local at= i words= flags= current=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]}
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case $at/${COMP_WORDS[i]} in
      PLACES) at+=/${COMP_WORDS[i]} ;;
    esac
  done
  case $at in
CASES  esac
  [[ $current == -* ]] && words=$flags
  # bash makes "=" a word.
  [[ $current == = ]] && current=
  [[ $flag == = ]] && flag=${COMP_WORDS[COMP_CWORD - 2]}
  case $at/$flag in
CHOICES  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [[ ${COMPREPLY[*]} == --*= ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o default -F _PROGRAM PROGRAM
)",
      {{"PROGRAM", program.name()},
       {"PLACES", Alternatives(places, " | ")},
       {"CASES", cases},
       {"CHOICES", choices}});
}

std::string ZshScript(const Command& program) {
  const std::vector<Place> places = Places(program);
  // A colon ends the name, unless there is a backslash before it.
  const auto described = [](const std::string& name, const std::string& text) {
    return Quote(absl::StrCat(name, ":", absl::StrReplaceAll(text, {{":", "\\:"}})));
  };
  std::string cases;
  for (const Place& place : places) {
    std::vector<std::string> commands;
    std::vector<std::string> flags = {described("--help", "what there is")};
    for (const auto& command : place.command->commands()) {
      commands.push_back(described(command->name(), command->summary()));
    }
    for (const Command::FlagInfo* flag : place.flags) {
      flags.push_back(described(absl::StrCat("--", flag->name), flag->help));
    }
    absl::StrAppend(&cases, "    (", Quote(place.at), ")\n      commands=(",
                    absl::StrJoin(commands, " "), ")\n      flags=(", absl::StrJoin(flags, " "),
                    ") ;;\n");
  }
  return absl::StrReplaceAll(
      R"(#compdef PROGRAM
# Completion of PROGRAM in zsh: source <(PROGRAM completion zsh)
_PROGRAM() {
  local at= i
  local -a commands flags
  for ((i = 2; i < CURRENT; ++i)); do
    case $at/${words[i]} in
      (PLACES) at+=/${words[i]} ;;
    esac
  done
  case $at in
CASES  esac
  if [[ ${words[CURRENT]} == -* ]]; then
    _describe -o flag flags
  elif ((${#commands})); then
    _describe command commands
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _PROGRAM ]]; then _PROGRAM "$@"; else compdef _PROGRAM PROGRAM; fi
)",
      {{"PROGRAM", program.name()}, {"PLACES", Alternatives(places, "|")}, {"CASES", cases}});
}

std::string FishScript(const Command& program) {
  const std::vector<Place> places = Places(program);
  std::string lines;
  for (const Place& place : places) {
    const std::string here = absl::StrCat("complete -c ", program.name(), " -n '__", program.name(),
                                          "_at \"", place.at, "\"' ");
    for (const auto& command : place.command->commands()) {
      absl::StrAppend(&lines, here, "-f -a ", command->name(), " -d ",
                      FishQuote(command->summary()), "\n");
    }
    for (const Command::FlagInfo* flag : place.flags) {
      const std::string value =
          flag->choices.empty()
              ? " -r"
              : absl::StrCat(" -x -a ", FishQuote(absl::StrJoin(flag->choices, " ")));
      absl::StrAppend(&lines, here, "-l ", flag->name, flag->is_bool ? "" : value, " -d ",
                      FishQuote(flag->help), "\n");
    }
  }
  return absl::StrReplaceAll(
      R"(# Completion of PROGRAM in fish: PROGRAM completion fish | source
function __PROGRAM_at
  set -l at ''
  for word in (commandline -opc)[2..-1]
    switch "$at/$word"
      case PLACES
        set at "$at/$word"
    end
  end
  test "$at" = "$argv[1]"
end
LINES)",
      {{"PROGRAM", program.name()}, {"PLACES", Alternatives(places, " ")}, {"LINES", lines}});
}

}  // namespace

void AddCompletionCommand(Command& program) {
  Command& completion = program.Add(
      "completion", "a script that completes commands and flags in a shell",
      absl::StrCat("  source <(", program.name(), " completion bash)    # also in ~/.bashrc\n"));
  const auto add = [&](const char* shell, std::string (*script)(const Command&)) {
    completion.Add(shell, absl::StrCat("for ", shell)).Run("", [&program, script](const auto&) {
      std::fputs(script(program).c_str(), stdout);
      return 0;
    });
  };
  add("bash", BashScript);
  add("zsh", ZshScript);
  add("fish", FishScript);
}

}  // namespace resident
