#include "runtime/base/completion.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace resident {
namespace {

// A command with its path and all flags that it accepts.
struct Node {
  // "/ops/install"; empty: the program.
  std::string path;
  const Command* command;
  std::vector<const Command::FlagInfo*> flags;
};

void Collect(const Command& command, Node node, std::vector<Node>& nodes) {
  for (const Command::FlagInfo& flag : command.flags()) node.flags.push_back(&flag);
  nodes.push_back(node);
  for (const auto& below : command.commands()) {
    Collect(*below, {absl::StrCat(node.path, "/", below->name()), below.get(), node.flags}, nodes);
  }
}

std::vector<Node> ListNodes(const Command& program) {
  std::vector<Node> nodes;
  Collect(program, {"", &program, {}}, nodes);
  return nodes;
}

// Quotes for bash and zsh.
std::string Quote(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string FishQuote(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// The paths below the program, as alternatives of a pattern.
std::string Alternatives(const std::vector<Node>& nodes, const char* separator) {
  std::vector<std::string> names;
  for (const Node& node : nodes) {
    if (!node.path.empty()) names.push_back(node.path);
  }
  return absl::StrJoin(names, separator);
}

std::string BashScript(const Command& program) {
  const std::vector<Node> nodes = ListNodes(program);
  std::string cases;
  std::string choices;
  for (const Node& node : nodes) {
    std::vector<std::string> commands;
    std::vector<std::string> flags = {"--help"};
    for (const auto& command : node.command->commands()) commands.push_back(command->name());
    for (const Command::FlagInfo* flag : node.flags) {
      flags.push_back(absl::StrCat("--", flag->name, flag->is_bool ? "" : "="));
      if (flag->choices.empty()) continue;
      absl::StrAppend(&choices, "    ", node.path, "/--", flag->name, ") words='",
                      absl::StrJoin(flag->choices, " "), "' ;;\n");
    }
    absl::StrAppend(&cases, "    ", Quote(node.path), ") words='", absl::StrJoin(commands, " "),
                    "' flags='", absl::StrJoin(flags, " "), "' ;;\n");
  }
  return absl::StrReplaceAll(
      R"(# Completion of PROGRAM in bash: source <(PROGRAM completion bash)
_PROGRAM() {
  local at= i words= flags= current=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]}
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case $at/${COMP_WORDS[i]} in
      PATHS) at+=/${COMP_WORDS[i]} ;;
    esac
  done
  case $at in
CASES  esac
  [[ $current == -* ]] && words=$flags
  # bash passes "=" as a separate word.
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
       {"PATHS", Alternatives(nodes, " | ")},
       {"CASES", cases},
       {"CHOICES", choices}});
}

std::string ZshScript(const Command& program) {
  const std::vector<Node> nodes = ListNodes(program);
  // A colon ends the name, unless there is a backslash before it.
  const auto described = [](const std::string& name, const std::string& text) {
    return Quote(absl::StrCat(name, ":", absl::StrReplaceAll(text, {{":", "\\:"}})));
  };
  std::string cases;
  for (const Node& node : nodes) {
    std::vector<std::string> commands;
    std::vector<std::string> flags = {described("--help", "print the help")};
    for (const auto& command : node.command->commands()) {
      commands.push_back(described(command->name(), command->summary()));
    }
    for (const Command::FlagInfo* flag : node.flags) {
      flags.push_back(described(absl::StrCat("--", flag->name), flag->help));
    }
    absl::StrAppend(&cases, "    (", Quote(node.path), ")\n      commands=(",
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
      (PATHS) at+=/${words[i]} ;;
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
      {{"PROGRAM", program.name()}, {"PATHS", Alternatives(nodes, "|")}, {"CASES", cases}});
}

std::string FishScript(const Command& program) {
  const std::vector<Node> nodes = ListNodes(program);
  std::string lines;
  for (const Node& node : nodes) {
    const std::string here = absl::StrCat("complete -c ", program.name(), " -n '__", program.name(),
                                          "_at \"", node.path, "\"' ");
    for (const auto& command : node.command->commands()) {
      absl::StrAppend(&lines, here, "-f -a ", command->name(), " -d ",
                      FishQuote(command->summary()), "\n");
    }
    for (const Command::FlagInfo* flag : node.flags) {
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
      case PATHS
        set at "$at/$word"
    end
  end
  test "$at" = "$argv[1]"
end
LINES)",
      {{"PROGRAM", program.name()}, {"PATHS", Alternatives(nodes, " ")}, {"LINES", lines}});
}

// Text of a manual page, in which some characters have a meaning.
std::string Troff(const std::string& text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\(rs"}, {"-", "\\-"}});
  // A line that begins with one of these would be a request.
  if (!escaped.empty() && (escaped[0] == '.' || escaped[0] == '\'')) escaped.insert(0, "\\&");
  return absl::StrReplaceAll(escaped, {{"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
}

std::string FormatManual(const Command& command) {
  std::string text =
      absl::StrCat(Troff(command.summary()), "\n.PP\n.B ", Troff(command.UsageLine()), "\n");
  // As it is written: it contains examples and tables.
  if (!command.details().empty()) {
    absl::StrAppend(&text, ".PP\n.nf\n", Troff(command.details()), ".fi\n");
  }
  for (const Command::FlagInfo& flag : command.flags()) {
    absl::StrAppend(&text, ".TP\n.B ", Troff(absl::StrCat("--", flag.name)), "\n",
                    Troff(flag.Describe()), "\n");
  }
  return text;
}

std::string Manual(const Command& program, int section) {
  std::string text =
      absl::StrCat(".TH ", absl::AsciiStrToUpper(program.name()), " ", section, "\n.SH NAME\n",
                   Troff(program.name()), " \\- ", Troff(program.summary()), "\n.SH DESCRIPTION\n",
                   FormatManual(program), ".SH COMMANDS\n");
  for (const Node& node : ListNodes(program)) {
    if (node.command == &program) continue;
    absl::StrAppend(&text, ".SS ", Troff(node.command->path()), "\n", FormatManual(*node.command));
  }
  return text;
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

void AddManualCommand(Command& program, int section) {
  program.Add("manual", "a manual page with all commands and flags, for man(1)")
      .Run("", [&program, section](const auto&) {
        std::fputs(Manual(program, section).c_str(), stdout);
        return 0;
      });
}

}  // namespace resident
