#include "runtime/compile/ptx/ptx_rules.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "kernels/layout/confine.h"
#include "runtime/base/sha256.h"

namespace resident {
namespace {

// Increase it when the rewriter or the verifier changes.
constexpr char kVersion[] = "2";

constexpr size_t kMeetings = __builtin_offsetof(Confine, meetings);

using Words = std::unordered_set<std::string>;

Words Split(std::string_view words) {
  return absl::StrSplit(absl::string_view(words.data(), words.size()), ' ', absl::SkipEmpty());
}

const std::unordered_map<std::string, PtxOpcode>& Opcodes() {
  static const auto* const opcodes = new std::unordered_map<std::string, PtxOpcode>{
#define PTX_OPCODE(name, opcode_class, access) {#name, {PtxClass::opcode_class, PtxAccess::access}},
#include "runtime/compile/ptx/ptx_rules.inc"
  };
  return *opcodes;
}

const Words& Modifiers() {
  static const auto* const words = new Words(Split(
#define PTX_MODIFIERS(words) words
#include "runtime/compile/ptx/ptx_rules.inc"
      ));
  return *words;
}

struct Refused {
  absl::string_view prefix;
  absl::string_view rule;
  absl::string_view why;
};

constexpr Refused kRefused[] = {
#define PTX_REFUSED(prefix, rule, why) {prefix, rule, why},
#include "runtime/compile/ptx/ptx_rules.inc"
};

struct Rule {
  absl::string_view name;
  absl::string_view fix;
};

constexpr Rule kRules[] = {
#define PTX_RULE(name, fix) {name, fix},
#include "runtime/compile/ptx/ptx_rules.inc"
};

struct Form {
  PtxForm form;
  absl::string_view text;
};

constexpr Form kForms[] = {
#define PTX_FORM(name, text) {PtxForm::name, text},
#include "runtime/compile/ptx/ptx_rules.inc"
};

bool HasPrefix(absl::string_view opcode, absl::string_view prefix) {
  return absl::StartsWith(opcode, prefix) &&
         (opcode.size() == prefix.size() || opcode[prefix.size()] == '.');
}

bool IsWordCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '%' || c == '$' ||
         c == '!' || c == '-';
}

bool IsReserved(absl::string_view word) {
  if (absl::StartsWith(word, "!")) word.remove_prefix(1);
  return absl::StartsWith(word, kPtxReservedRegister) || absl::StartsWith(word, kPtxReservedLabel);
}

}  // namespace

std::optional<PtxOpcode> FindPtxOpcode(std::string_view opcode, std::string* rule,
                                       std::string* why) {
  const absl::string_view text(opcode.data(), opcode.size());
  for (const Refused& refused : kRefused) {
    if (!HasPrefix(text, refused.prefix)) continue;
    *rule = std::string(refused.rule);
    *why = absl::StrCat("'", text, "' ", refused.why);
    return std::nullopt;
  }
  *rule = "O1";
  size_t end = std::min(text.find('.'), text.size());
  const auto found = Opcodes().find(std::string(text.substr(0, end)));
  if (found == Opcodes().end()) {
    *why = absl::StrCat("'", text, "' is not an operation that operators may use");
    return std::nullopt;
  }
  while (end < text.size()) {
    const size_t begin = end + 1;
    end = std::min(text.find('.', begin), text.size());
    const std::string modifier(text.substr(begin, end - begin));
    if (Modifiers().contains(modifier)) continue;
    *why = absl::StrCat("'", text, "' has the modifier '", modifier, "', which is not known");
    return std::nullopt;
  }
  const bool sync = absl::StrContains(text, ".sync");
  if (found->second.opcode_class == PtxClass::kWarp && !sync) {
    *why = absl::StrCat("'", text, "' does not name the lanes that take part");
    return std::nullopt;
  }
  return found->second;
}

bool IsPtxSpecialRegister(std::string_view name) {
  static const auto* const words = new Words(Split(
#define PTX_SPECIAL_REGISTERS(words) words
#include "runtime/compile/ptx/ptx_rules.inc"
      ));
  return words->contains(std::string(name));
}

absl::Status PtxRefused(std::string_view where, std::string_view rule, std::string_view what) {
  std::string fix;
  for (const Rule& known : kRules) {
    if (known.name == absl::string_view(rule.data(), rule.size()))
      fix = absl::StrCat(known.fix, ", or ");
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(where), where.empty() ? "" : ": ",
                   "this operator cannot be made stoppable: ", std::string(what), " (rule ",
                   std::string(rule), "). Fix: ", fix, "install it with --isolation=trusted"));
}

std::vector<std::string> PtxRefusingRules() {
  std::vector<std::string> rules;
  for (const Rule& rule : kRules) rules.emplace_back(rule.name);
  return rules;
}

std::string FindRefusingPtxRule(std::string_view message) {
  for (const Rule& rule : kRules) {
    const std::string named = absl::StrCat(" (rule ", rule.name, "). Fix: ");
    if (message.find(named) != std::string_view::npos) {
      return std::string(rule.name);
    }
  }
  return "";
}

const std::string* PtxNames::Find(std::string_view name) const {
  for (const auto& [known, text] : texts_) {
    if (known == name) return &text;
  }
  return nullptr;
}

const std::string& PtxNames::operator[](std::string_view name) const {
  static const std::string* const none = new std::string();
  const std::string* const text = Find(name);
  return text == nullptr ? *none : *text;
}

int64_t PtxNames::Number(std::string_view name) const {
  int64_t number = 0;
  return absl::SimpleAtoi((*this)[name], &number) ? number : 0;
}

const std::vector<std::string>& PtxFormStatements(PtxForm form) {
  static const auto* const forms = [] {
    auto* const split = new std::vector<std::vector<std::string>>(std::size(kForms));
    for (const Form& of : kForms) {
      const std::string text = absl::StrReplaceAll(
          of.text,
          {{"<stop>", absl::StrCat(__builtin_offsetof(Confine, stop))},
           {"<arrivals>", absl::StrCat(kMeetings + __builtin_offsetof(MeetingWords, arrivals))},
           {"<site>", absl::StrCat(kMeetings + __builtin_offsetof(MeetingWords, site))},
           {"<disagreement>",
            absl::StrCat(kMeetings + __builtin_offsetof(MeetingWords, disagreement))},
           {"<meeting_bytes>", absl::StrCat(sizeof(MeetingWords))},
           {"<budget>", absl::StrCat(kPtxBudget)}});
      (*split)[static_cast<size_t>(of.form)] = absl::StrSplit(text, '\n', absl::SkipEmpty());
    }
    return split;
  }();
  return (*forms)[static_cast<size_t>(form)];
}

void AppendPtxForm(PtxForm form, const PtxNames& names, std::string* text) {
  for (const std::string& statement : PtxFormStatements(form)) {
    absl::string_view rest = statement;
    while (!rest.empty()) {
      const size_t begin = std::min(rest.find('<'), rest.size());
      absl::StrAppend(text, rest.substr(0, begin));
      rest.remove_prefix(begin);
      if (rest.empty()) break;
      const size_t end = rest.find('>');
      absl::StrAppend(text, names[std::string_view(rest.data() + 1, end - 1)]);
      rest.remove_prefix(end + 1);
    }
    *text += '\n';
  }
}

bool MatchPtxStatement(std::string_view with_placeholders, std::string_view statement,
                       PtxNames* names) {
  absl::string_view form(with_placeholders.data(), with_placeholders.size());
  absl::string_view text(statement.data(), statement.size());
  while (!form.empty()) {
    if (form.front() != '<') {
      const size_t literal = std::min(form.find('<'), form.size());
      if (!absl::StartsWith(text, form.substr(0, literal))) return false;
      form.remove_prefix(literal);
      text.remove_prefix(literal);
      continue;
    }
    const size_t end = form.find('>');
    const std::string_view name(form.data() + 1, end - 1);
    form.remove_prefix(end + 1);
    size_t length = 0;
    // The character behind the placeholder ends its text: "<k>_0".
    const char behind = form.empty() ? '\0' : form.front();
    while (length < text.size() && IsWordCharacter(text[length]) && text[length] != behind) {
      ++length;
    }
    const absl::string_view word = text.substr(0, length);
    if (word.empty() || IsReserved(word)) return false;
    const std::string* const before = names->Find(name);
    if (before == nullptr) names->Set(name, std::string_view(word.data(), word.size()));
    if (before != nullptr && *before != word) return false;
    text.remove_prefix(length);
  }
  return text.empty();
}

const std::string& PtxRulesHash() {
  static const std::string* const hash = [] {
    Sha256 sha;
    sha.Field(kVersion);
    for (const auto& [name, opcode] : std::vector<std::pair<std::string, int>>{
#define PTX_OPCODE(name, opcode_class, access) {#name, static_cast<int>(PtxClass::opcode_class)},
#include "runtime/compile/ptx/ptx_rules.inc"
         }) {
      sha.Field(name).Field(absl::StrCat(opcode));
    }
    for (const Refused& refused : kRefused) sha.Field(std::string(refused.prefix));
    std::vector<std::string> modifiers(Modifiers().begin(), Modifiers().end());
    std::sort(modifiers.begin(), modifiers.end());
    for (const std::string& modifier : modifiers) sha.Field(modifier);
    for (const Form& form : kForms) {
      for (const std::string& statement : PtxFormStatements(form.form)) sha.Field(statement);
    }
    return new std::string(sha.Hex());
  }();
  return *hash;
}

}  // namespace resident
