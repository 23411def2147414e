#include "runtime/base/command_line.h"

#include <CLI/CLI.hpp>
#include <cassert>
#include <cctype>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "runtime/base/nearest.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

bool IsNegativeNumber(const std::string& word) {
  return word.size() > 1 && word[0] == '-' &&
         (std::isdigit(static_cast<unsigned char>(word[1])) != 0 || word[1] == '.');
}

bool IsFlag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && !IsNegativeNumber(word);
}

// "batch" for "--batch=1"; empty for an argument with one dash.
std::string ParseFlagName(const std::string& argument) {
  if (!absl::StartsWith(argument, "--")) return "";
  const std::string flag = argument.substr(2);
  return flag.substr(0, flag.find('='));
}

std::string Columns(const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t width = 0;
  for (const auto& [left, right] : rows) width = std::max(width, left.size());
  std::string text;
  for (const auto& [left, right] : rows) {
    absl::StrAppend(&text, "  ", left, std::string(width - left.size() + 2, ' '), right, "\n");
  }
  return text;
}

std::string DefaultText(const Command::FlagInfo& flag) {
  const bool shown = !flag.default_text.empty() && flag.default_text != "false";
  return shown ? absl::StrCat(" (default ", flag.default_text, ")") : "";
}

std::string FlagTable(const std::vector<Command::FlagInfo>& flags) {
  std::vector<std::pair<std::string, std::string>> rows;
  rows.reserve(flags.size());
  for (const Command::FlagInfo& flag : flags) {
    rows.emplace_back(absl::StrCat("--", flag.name), flag.Describe());
  }
  return Columns(rows);
}

}  // namespace

std::string Command::FlagInfo::Describe() const {
  std::string text = help;
  if (!environment.empty()) absl::StrAppend(&text, "; overrides $", environment);
  return absl::StrCat(text, DefaultText(*this));
}

Command::Command(std::string name, std::string summary)
    : parent_(nullptr),
      name_(std::move(name)),
      summary_(std::move(summary)),
      owned_app_(std::make_unique<CLI::App>(summary_, name_)),
      app_(owned_app_.get()) {
  app_->set_help_flag();  // HelpText() replaces CLI11's help.
  app_->fallthrough();
  app_->require_subcommand(0, 1);
  app_->allow_extras();
  app_->add_flag_callback("-h,--help", [this] { help_ = true; });
}

Command::Command(Command* parent, std::string name, std::string summary, std::string details)
    : parent_(parent),
      name_(std::move(name)),
      summary_(std::move(summary)),
      details_(std::move(details)),
      app_(parent->app_->add_subcommand(name_, summary_)) {
  app_->require_subcommand(0, 1);
  app_->allow_extras(false);  // The program collects them.
  app_->preparse_callback([this](size_t) {
    Command& program = this->program();
    const std::vector<std::string> before = program.app_->remaining();
    if (before.empty() || program.unknown_word_parent_ != nullptr) return;
    program.unknown_word_parent_ = parent_;
    program.unknown_word_ = before.front();
  });
}

Command::~Command() = default;

Command& Command::Add(std::string name, std::string summary, std::string details) {
  commands_.emplace_back(
      new Command(this, std::move(name), std::move(summary), std::move(details)));
  return *commands_.back();
}

Command& Command::Alias(const std::string& name) {
  app_->alias(name);
  return *this;
}

void Command::AddFlag(FlagInfo flag) {
  const std::string option = absl::StrCat("--", flag.name);
  flag.option = flag.is_bool ? app_->add_flag(absl::StrCat(option, ",!--no", flag.name))
                             : app_->add_option(option)->take_last();
  if (!flag.environment.empty()) flag.option->envname(flag.environment);
  flag.owner = this;
  flags_.push_back(std::move(flag));
}

void Command::Run(std::string usage, std::function<int(const Words&)> run) {
  usage_ = std::move(usage);
  run_ = std::move(run);
}

std::string Command::path() const {
  return parent_ == nullptr ? name_ : absl::StrCat(parent_->path(), " ", name_);
}

absl::StatusOr<Command::Call> Command::Parse(std::span<const std::string> arguments) {
  assert(parent_ == nullptr && !app_->parsed());
  // The words are passed to CLI11 first, so that a command's flags may be written before its name.
  // Each value is passed as a separate argument, because CLI11 does not accept "--name=" as an
  // empty value.
  std::vector<std::string> line;
  std::vector<std::string> flags;
  const auto end = std::ranges::find(arguments, "--");
  for (auto argument = arguments.begin(); argument != end; ++argument) {
    if (!IsFlag(*argument)) {
      line.push_back(*argument);
      continue;
    }
    flags.push_back(*argument);
    const FlagInfo* const flag = FindFlag(ParseFlagName(*argument));
    if (flag == nullptr || flag->is_bool) continue;
    if (const size_t equals = argument->find('='); equals != std::string::npos) {
      flags.back().resize(equals);
      flags.push_back(argument->substr(equals + 1));
    } else if (argument + 1 != end) {
      flags.push_back(*++argument);
    }
  }
  line.insert(line.end(), flags.begin(), flags.end());
  std::ranges::reverse(line);  // CLI11 expects the arguments in reverse order.
  try {
    app_->parse(line);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::vector<std::string> parts = absl::StrSplit(error.what(), ':');
    return absl::InvalidArgumentError(
        absl::StrCat("flag ", parts[0], " has no value. Fix: ", parts[0], "=VALUE"));
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), ". Fix: see ", name_, " --help"));
  }

  if (unknown_word_parent_ != nullptr) return unknown_word_parent_->UnknownCommand(unknown_word_);
  const Command* command = this;
  for (bool deeper = true; deeper;) {
    const auto next =
        std::ranges::find_if(command->commands_, [](const auto& c) { return c->app_->parsed(); });
    deeper = next != command->commands_.end();
    if (deeper) command = next->get();
  }
  Words words;
  for (std::string& word : app_->remaining()) {
    if (IsFlag(word)) return command->UnknownFlag(word);
    words.push_back(std::move(word));
  }
  if (end != arguments.end()) words.insert(words.end(), end + 1, arguments.end());
  RETURN_IF_ERROR(command->SetFlags());
  if (!help_) RETURN_IF_ERROR(command->CheckWords(words));
  return Call{command, std::move(words), help_};
}

absl::Status Command::SetFlags() const {
  for (const FlagInfo& flag : flags_) {
    if (flag.option->count() == 0) continue;
    const std::string text = flag.option->results().back();
    std::string error;
    if (flag.set(text, &error)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "invalid value for --", flag.name, ": '", text, "'", error.empty() ? "" : ": ", error,
        ". Fix: ",
        flag.fix.empty() ? absl::StrCat("give: ", flag.help, DefaultText(flag)) : flag.fix));
  }
  return parent_ == nullptr ? absl::OkStatus() : parent_->SetFlags();
}

absl::Status Command::CheckWords(const Words& words) const {
  const std::vector<std::string> named = absl::StrSplit(usage_, ' ', absl::SkipEmpty());
  const auto optional = [](const std::string& word) { return word[0] == '['; };
  const auto many = [](const std::string& word) { return absl::EndsWith(word, "..."); };
  const size_t min_words = named.size() - std::ranges::count_if(named, optional);
  const bool too_many = words.size() > named.size() && std::ranges::none_of(named, many);
  if (!commands_.empty() && (run_ == nullptr || too_many)) {
    return UnknownCommand(words.empty() ? "" : words[0]);
  }
  if (words.size() >= min_words && !too_many) return absl::OkStatus();
  if (named.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path(), " takes no arguments, but got '", words[0], "'. Fix: ", path()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path(), " takes ", usage_, ", but got ", words.size(),
                   words.size() == 1 ? " argument" : " arguments", ". Fix: ", path(), " ", usage_));
}

const Command::FlagInfo* Command::FindFlag(const std::string& name) const {
  for (const FlagInfo& own : flags_) {
    if (own.name == name || (own.is_bool && absl::StrCat("no", own.name) == name)) return &own;
  }
  for (const auto& command : commands_) {
    if (const FlagInfo* flag = command->FindFlag(name); flag != nullptr) return flag;
  }
  return nullptr;
}

absl::Status Command::UnknownFlag(const std::string& argument) const {
  const std::string name = ParseFlagName(argument);
  std::vector<std::string_view> known;
  for (const Command* command = this; command != nullptr; command = command->parent_) {
    for (const FlagInfo& own : command->flags_) known.push_back(own.name);
  }
  const std::string nearest = Nearest(name, known);
  std::string fix = absl::StrCat(path(), " --help lists its flags");
  if (const FlagInfo* const other = program().FindFlag(name); other != nullptr) {
    fix = absl::StrCat("it is a flag of ", other->owner->path());
  } else if (!nearest.empty()) {
    fix = absl::StrCat("did you mean --", nearest, "?");
  }
  return absl::InvalidArgumentError(absl::StrCat(path(), ": unknown flag ",
                                                 name.empty() ? argument : absl::StrCat("--", name),
                                                 ". Fix: ", fix));
}

absl::Status Command::UnknownCommand(const std::string& word) const {
  std::vector<std::string_view> known;
  for (const auto& command : commands_) known.push_back(command->name_);
  const std::string nearest = word.empty() ? "" : Nearest(word, known);
  std::string fix = absl::StrCat("did you mean ", nearest, "?");
  if (nearest.empty()) {
    fix = "one of";
    for (const auto& command : commands_) absl::StrAppend(&fix, " ", command->name_);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path(), word.empty() ? " needs a command" : absl::StrCat(": unknown command '", word, "'"),
      ". Fix: ", fix));
}

absl::StatusOr<const Command*> Command::Find(const Words& words) const {
  const Command* found = this;
  for (const std::string& word : words) {
    const auto next =
        std::ranges::find_if(found->commands_, [&](const auto& c) { return c->name_ == word; });
    if (next == found->commands_.end()) return found->UnknownCommand(word);
    found = next->get();
  }
  return found;
}

std::string Command::UsageLine() const {
  std::string text = path();
  if (!commands_.empty()) absl::StrAppend(&text, run_ == nullptr ? " COMMAND" : " [COMMAND]");
  if (!usage_.empty()) absl::StrAppend(&text, " ", usage_);
  return absl::StrCat(text, " [--FLAG=VALUE]...");
}

std::string Command::HelpText() const {
  std::string text = absl::StrCat(path(), ": ", summary_, "\n\nUsage: ", UsageLine(), "\n");
  if (!details_.empty()) absl::StrAppend(&text, "\n", details_);
  if (!commands_.empty()) {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const auto& command : commands_) {
      const bool shown = parent_ != nullptr && !command->usage_.empty();
      rows.emplace_back(shown ? absl::StrCat(command->name_, " ", command->usage_) : command->name_,
                        command->summary_);
    }
    absl::StrAppend(&text, "\nCommands\n", Columns(rows));
  }
  if (!flags_.empty() && parent_ != nullptr) absl::StrAppend(&text, "\nFlags\n", FlagTable(flags_));
  for (const auto& command : commands_) {
    if (parent_ == nullptr || command->flags_.empty()) continue;
    absl::StrAppend(&text, "\nFlags of ", command->name_, "\n", FlagTable(command->flags_));
  }
  for (const Command* above = parent_; above != nullptr && above->parent_ != nullptr;
       above = above->parent_) {
    if (above->flags_.empty()) continue;
    absl::StrAppend(&text, "\nFlags of ", above->path(), "\n", FlagTable(above->flags_));
  }
  if (!program().flags_.empty()) {
    absl::StrAppend(&text, "\nFlags of every command\n", FlagTable(program().flags_));
  }
  return text;
}

}  // namespace resident
