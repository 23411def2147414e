// This header describes the command line of a program: its commands, their flags, and their
// positional arguments, which this file calls words.
//
//   resident::Command program("residentctl", "talks to residentd");
//   resident::Command& bench = program.Add("bench", "measures latency and throughput");
//   bench.Flag("batch", &options.batch, "tasks in a batch", {.low = 1});
//   bench.Run("", [&](const std::vector<std::string>& words) { return Bench(options); });
//   auto call = program.Parse(arguments);
//   return call.ok() ? call->command->RunWith(call->words) : UsageError(call.status());
//
// A flag is written as --name=value or --name value, and a bool also as --name or --noname. A
// command takes its own flags and those of the commands above it; flags and words may be mixed.
// "--" ends the flags; "-" and negative numbers are words. If a flag has several values, the last
// one is used.
//
// CLI11 parses the line. Only command_line.cc includes it, because it takes seconds to compile.
// Values are converted by absl::ParseFlag, so a type of the project's own needs AbslParseFlag and
// AbslUnparseFlag.
//
// Thread safety: none; Flag() keeps pointers to the values, which must outlive Parse().
#ifndef RESIDENT_RUNTIME_BASE_COMMAND_LINE_H_
#define RESIDENT_RUNTIME_BASE_COMMAND_LINE_H_

#include <algorithm>
#include <cassert>
#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace resident {

// Conditions on a flag's value in addition to its type.
template <typename T>
struct FlagRule {
  // Inclusive bounds.
  std::optional<T> low = {};
  std::optional<T> high = {};
  std::function<bool(const T&)> holds = {};
  // If not empty, only these texts are accepted.
  std::vector<std::string> one_of = {};
  // The fix in an error message. If empty, it is made from the bounds, the texts, or the help.
  std::string fix = {};
  // The environment variable that sets the value if the flag is not given; empty: none.
  std::string environment = {};
};

class Command {
 public:
  using Words = std::vector<std::string>;

  // A flag of any type.
  struct FlagInfo {
    std::string name;
    std::string help;
    std::string default_text;
    std::string fix;
    std::string environment;
    std::vector<std::string> choices;
    bool is_bool = false;
    // Sets the variable; returns whether the value is valid. If not, *error may contain a reason.
    std::function<bool(const std::string& text, std::string* error)> set;
    const Command* owner = nullptr;
    CLI::Option* option = nullptr;

    // The help, with what else sets the value, and the default.
    std::string Describe() const;
  };

  // The result of parsing a command line.
  struct Call {
    const Command* command;
    Words words;
    // --help or -h: print the command's help instead of running it.
    bool help;
  };

  // Constructs the program, which is the root command.
  Command(std::string name, std::string summary);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Adds a subcommand. `details` is text for its help, in whole lines.
  Command& Add(std::string name, std::string summary, std::string details = "");

  // Adds another name for the command.
  Command& Alias(const std::string& name);

  // Adds a flag --name that sets *value. The current content of *value is the default.
  template <typename T>
  void Flag(std::string name, T* value, std::string help,
            const std::type_identity_t<FlagRule<T>>& rule = {}) {
    FlagAs<T>(std::move(name), value, std::move(help), rule);
  }

  // The same if the flag's type differs from the variable's.
  template <typename As, typename T>
  void FlagAs(std::string name, T* value, std::string help, const FlagRule<As>& rule = {});

  // Sets the function that runs the command: `run` receives the words and returns the exit code.
  // `usage` names the words: "NAME [VERSION]", "ID...", "[FILE]...". A command without Run()
  // requires one of its subcommands.
  void Run(std::string usage, std::function<int(const Words&)> run);

  // Sets the flags from the arguments (without the program's name) and from the environment.
  // INVALID_ARGUMENT: an unknown command or flag, a missing or invalid value, too few or too many
  // words. The message ends with "Fix: ...".
  //
  // REQUIRES: this is the program, and it has not parsed before.
  absl::StatusOr<Call> Parse(std::span<const std::string> arguments);

  // REQUIRES: Parse() returned this command.
  int RunWith(const Words& words) const {
    assert(run_ != nullptr);
    return run_(words);
  }

  // Finds a command by its names below this one. INVALID_ARGUMENT: there is none.
  absl::StatusOr<const Command*> Find(const Words& words) const;

  // The complete help of the command, in lines.
  std::string HelpText() const;

  const std::string& name() const { return name_; }
  // The names from the program to this command: "residentctl ops install".
  std::string path() const;
  const std::string& summary() const { return summary_; }
  const std::string& details() const { return details_; }
  const std::string& usage() const { return usage_; }
  // The command's usage with the names before it, as HelpText shows it.
  std::string UsageLine() const;
  const std::vector<FlagInfo>& flags() const { return flags_; }
  const std::vector<std::unique_ptr<Command>>& commands() const { return commands_; }

 private:
  Command(Command* parent, std::string name, std::string summary, std::string details);
  void AddFlag(FlagInfo flag);
  const Command& program() const { return parent_ == nullptr ? *this : parent_->program(); }
  Command& program() { return parent_ == nullptr ? *this : parent_->program(); }
  const FlagInfo* FindFlag(const std::string& name) const;
  absl::Status UnknownFlag(const std::string& argument) const;
  // `word` may be empty: a command is missing.
  absl::Status UnknownCommand(const std::string& word) const;
  absl::Status SetFlags() const;
  absl::Status CheckWords(const Words& words) const;

  Command* const parent_;  // Null: this is the program.
  const std::string name_;
  const std::string summary_;
  const std::string details_;
  std::string usage_;
  std::function<int(const Words&)> run_;
  std::vector<FlagInfo> flags_;
  std::vector<std::unique_ptr<Command>> commands_;
  // Set in the program only. The apps of the other commands are part of it.
  std::unique_ptr<CLI::App> owned_app_;
  CLI::App* app_;
  bool help_ = false;
  // Set in the program only: a word before a command's name that does not name a command, and the
  // command that has no such subcommand.
  const Command* unknown_word_parent_ = nullptr;
  std::string unknown_word_;
};

// Implementation details follow.

namespace flag_value {

template <typename T>
bool Parse(const std::string& text, T* value, std::string* error) {
  return absl::ParseFlag(absl::string_view(text), value, error);
}
template <typename T>
std::string Text(const T& value) {
  return absl::UnparseFlag(value);
}
inline std::string Text(const absl::Duration& value) { return absl::FormatDuration(value); }

// Durations are written as in "1m30s", and are rounded up.
template <typename Rep, typename Period>
bool Parse(const std::string& text, std::chrono::duration<Rep, Period>* value, std::string* error) {
  absl::Duration duration;
  if (!absl::ParseFlag(absl::string_view(text), &duration, error)) return false;
  *value =
      std::chrono::ceil<std::chrono::duration<Rep, Period>>(absl::ToChronoNanoseconds(duration));
  return true;
}
template <typename Rep, typename Period>
std::string Text(const std::chrono::duration<Rep, Period>& value) {
  return absl::FormatDuration(absl::FromChrono(value));
}

template <typename T>
std::string FixText(const FlagRule<T>& rule) {
  if (!rule.fix.empty()) return rule.fix;
  if (!rule.one_of.empty()) {
    const auto last = rule.one_of.end() - 1;
    return absl::StrCat("give ", absl::StrJoin(rule.one_of.begin(), last, ", "), " or ", *last);
  }
  if (rule.low.has_value() && rule.high.has_value()) {
    return absl::StrCat("give ", Text(*rule.low), " to ", Text(*rule.high));
  }
  if (rule.low.has_value()) return absl::StrCat("give at least ", Text(*rule.low));
  if (rule.high.has_value()) return absl::StrCat("give at most ", Text(*rule.high));
  return "";
}

template <typename T>
bool IsValid(const FlagRule<T>& rule, const T& value) {
  if constexpr (std::totally_ordered<T>) {  // A NaN is outside of all bounds.
    if (rule.low.has_value() && !(value >= *rule.low)) return false;
    if (rule.high.has_value() && !(value <= *rule.high)) return false;
  }
  return rule.holds == nullptr || rule.holds(value);
}

}  // namespace flag_value

template <typename As, typename T>
void Command::FlagAs(std::string name, T* value, std::string help, const FlagRule<As>& rule) {
  FlagInfo flag;
  flag.name = std::move(name);
  flag.help = std::move(help);
  flag.default_text = flag_value::Text(As{*value});
  flag.fix = flag_value::FixText(rule);
  flag.environment = rule.environment;
  flag.choices = rule.one_of;
  flag.is_bool = std::is_same_v<As, bool>;
  flag.set = [value, rule](const std::string& text, std::string* error) {
    As parsed{};
    const bool valid = (rule.one_of.empty() || std::ranges::count(rule.one_of, text) > 0) &&
                       flag_value::Parse(text, &parsed, error) && flag_value::IsValid(rule, parsed);
    if (valid) *value = parsed;
    return valid;
  };
  AddFlag(std::move(flag));
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_COMMAND_LINE_H_
