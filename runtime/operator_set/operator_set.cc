#include "runtime/operator_set/operator_set.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/limits.h"
#include "runtime/base/nearest.h"
#include "runtime/base/sha256.h"
#include "runtime/base/share.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/expression/expression.h"
#include "runtime/flux/assembler.h"
#include "runtime/operator_set/source_notes.h"

namespace resident {
namespace {

using errors::Quote;

constexpr absl::Duration kMaxTaskTime = absl::Hours(24);
constexpr absl::Duration kMaxBakeTime = absl::Hours(30 * 24);
// Levels of lists and maps; a set needs four.
constexpr int kMaxDepth = 8;

// Abseil of Debian has a string_view of its own.
std::string Text(std::string_view text) { return std::string(text); }

struct Place {
  std::string_view file;
  int line = 0;  // From 1.
};

Place At(std::string_view file, const YAML::Mark& mark) { return {file, mark.line + 1}; }
Place At(std::string_view file, const YAML::Node& node) { return At(file, node.Mark()); }

absl::Status Wrong(const Place& place, const std::string& what, const std::string& fix) {
  return absl::InvalidArgumentError(
      absl::StrCat(Text(place.file), ":", place.line, ": ", what, ". Fix: ", fix));
}

// The first thing in a document that a set does not have: an alias, an anchor, a tag, a level too
// deep.
class FormCheck final : public YAML::EventHandler {
 public:
  explicit FormCheck(std::string_view file) : file_(file) {}
  const absl::Status& status() const { return status_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { Check(mark, "", anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Refuse(mark, "an alias", "write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string&) override {
    Check(mark, tag, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Check(mark, tag, anchor);
    Enter(mark);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Check(mark, tag, anchor);
    Enter(mark);
  }
  void OnMapEnd() override { --depth_; }

 private:
  void Refuse(const YAML::Mark& mark, const std::string& what, const std::string& fix) {
    if (status_.ok()) {
      status_ =
          Wrong(At(file_, mark), absl::StrCat("it has ", what, ", which a set does not have"), fix);
    }
  }
  void Check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) Refuse(mark, "an anchor", "leave it out");
    // "?" is a plain value, "!" one in quotes.
    if (!tag.empty() && tag != "?" && tag != "!") {
      Refuse(mark, absl::StrCat("the tag ", Quote(tag)), "leave it out");
    }
  }
  void Enter(const YAML::Mark& mark) {
    if (++depth_ > kMaxDepth) Refuse(mark, "more levels than 8", "write it as in docs/fleet.md");
  }

  const std::string_view file_;
  absl::Status status_;
  int depth_ = 0;
};

std::string List(const std::vector<std::string_view>& words) {
  std::string list;
  for (const std::string_view word : words) {
    list.append(list.empty() ? "" : ", ").append(word);
  }
  return list;
}

// A map of the file: its keys are known, and each occurs once.
class Map {
 public:
  // `what`: "an operator".
  static absl::StatusOr<Map> Of(std::string_view file, const YAML::Node& node,
                                const std::string& what, std::vector<std::string_view> known) {
    if (!node.IsMap()) {
      return Wrong(At(file, node), absl::StrCat(what, " is not a map of keys"),
                   "write it as in docs/fleet.md");
    }
    Map map{file, node, what};
    for (const auto& pair : node) {
      if (!pair.first.IsScalar()) {
        return Wrong(At(file, pair.first), absl::StrCat("a key of ", what, " is not a word"),
                     "write it as in docs/fleet.md");
      }
      const std::string& key = pair.first.Scalar();
      if (std::ranges::find(known, key) == known.end()) {
        const std::string near = Nearest(key, known);
        return Wrong(At(file, pair.first), absl::StrCat("unknown key ", Quote(key), " of ", what),
                     near.empty() ? absl::StrCat("use one of ", List(known))
                                  : absl::StrCat("did you mean '", near, "'?"));
      }
      if (!map.values_.emplace(key, pair.second).second) {
        return Wrong(At(file, pair.first),
                     absl::StrCat("key ", Quote(key), " occurs twice in ", what),
                     "remove one of them");
      }
    }
    return map;
  }

  // Null: there is no such key.
  const YAML::Node* Find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  absl::Status Refuse(const std::string& key, const std::string& what,
                      const std::string& fix) const {
    const YAML::Node* const value = Find(key);
    return Wrong(At(file_, value == nullptr ? node_ : *value),
                 absl::StrCat(key, " of ", what_, " ", what), fix);
  }

  // Each leaves *out as it is if there is no such key.
  absl::Status Read(const std::string& key, std::string* out) const {
    const YAML::Node* const value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->IsScalar() || value->Scalar().empty()) {
      return Refuse(key, "is not a text", "give a text, or leave the key out");
    }
    *out = value->Scalar();
    return absl::OkStatus();
  }
  absl::Status Read(const std::string& key, bool* out) const {
    std::string text;
    RETURN_IF_ERROR(Read(key, &text));
    if (!text.empty() && text != "true" && text != "false") {
      return Refuse(key, absl::StrCat("is ", Quote(text)), "give true or false");
    }
    if (!text.empty()) *out = text == "true";
    return absl::OkStatus();
  }
  absl::Status Read(const std::string& key, absl::Duration max, absl::Duration* out) const {
    std::string text;
    RETURN_IF_ERROR(Read(key, &text));
    if (text.empty()) return absl::OkStatus();
    if (!absl::ParseDuration(text, out) || *out < absl::Milliseconds(1) || *out > max) {
      return Refuse(key, absl::StrCat("is ", Quote(text)),
                    absl::StrCat("give 1ms to ", absl::FormatDuration(max), ", such as 50ms"));
    }
    return absl::OkStatus();
  }
  absl::Status Read(const std::string& key, uint64_t* out) const {
    std::string text;
    RETURN_IF_ERROR(Read(key, &text));
    if (!text.empty() && !absl::SimpleAtoi(text, out)) {
      return Refuse(key, absl::StrCat("is ", Quote(text)), "give a whole number of 0 or more");
    }
    return absl::OkStatus();
  }
  // A list of texts.
  absl::Status Read(const std::string& key, std::vector<std::string>* out) const {
    const YAML::Node* const value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->IsSequence()) return Refuse(key, "is not a list", "write [FIRST, SECOND]");
    for (const YAML::Node& item : *value) {
      if (!item.IsScalar() || item.Scalar().empty()) {
        return Refuse(key, "has an item that is not a text", "write [FIRST, SECOND]");
      }
      out->push_back(item.Scalar());
    }
    return absl::OkStatus();
  }

 private:
  Map(std::string_view file, const YAML::Node& node, std::string what)
      : file_(file), node_(node), what_(std::move(what)) {}

  std::string_view file_;
  YAML::Node node_;
  std::string what_;
  std::map<std::string, YAML::Node> values_;
};

// Reads one set; its state is what the operators share.
class Reader {
 public:
  Reader(std::string_view file, const ReadSetFile& read) : file_(file), read_(read) {}

  absl::StatusOr<OperatorSet> Read(const YAML::Node& root) {
    ASSIGN_OR_RETURN(const Map map, Map::Of(file_, root, "a set",
                                            {"version", "set", "release", "operators", "weights",
                                             "graphs", "models", "bake", "prune"}));
    RETURN_IF_ERROR(ReadHeader(map));
    const YAML::Node* const operators = map.Find("operators");
    if (operators == nullptr || !operators->IsSequence()) {
      return map.Refuse("operators", "is not a list", "list the operators of the set");
    }
    if (operators->size() > kMaxSetEntries) {
      return map.Refuse("operators", absl::StrCat("has ", operators->size(), " entries"),
                        absl::StrCat("divide the set; one has at most ", kMaxSetEntries));
    }
    for (const YAML::Node& entry : *operators) RETURN_IF_ERROR(ReadOperator(entry));
    set_.paths = {paths_.begin(), paths_.end()};
    return std::move(set_);
  }

 private:
  absl::Status ReadHeader(const Map& map) {
    for (const char* key : {"weights", "graphs", "models"}) {
      if (map.Find(key) == nullptr) continue;
      return map.Refuse(key, "is not supported in a set yet",
                        "leave it out, and load them with residentctl buffers load and graph load");
    }
    std::string version;
    RETURN_IF_ERROR(map.Read("version", &version));
    if (version != "1") return map.Refuse("version", "is not 1", "write version: 1");
    RETURN_IF_ERROR(map.Read("set", &set_.set));
    if (!IsSetName(set_.set)) {
      return map.Refuse("set", absl::StrCat("is ", Quote(set_.set)),
                        "give 1 to 63 of a-z, 0-9 and '-', beginning with a letter or digit");
    }
    RETURN_IF_ERROR(map.Read("release", &set_.release));
    if (!set_.release.empty() && !IsVersionLabel(set_.release)) {
      return map.Refuse(
          "release", absl::StrCat("is ", Quote(set_.release)),
          "give at most 64 letters, digits, '_', '.' and '-', beginning with a letter or "
          "digit");
    }
    RETURN_IF_ERROR(map.Read("prune", &set_.prune));
    const YAML::Node* const bake = map.Find("bake");
    return bake == nullptr ? absl::OkStatus() : ReadBake(*bake);
  }

  absl::Status ReadBake(const YAML::Node& node) {
    ASSIGN_OR_RETURN(
        const Map map,
        Map::Of(file_, node, "bake", {"time", "action", "max_error_rate", "max_latency_ratio"}));
    if (map.Find("time") != nullptr) {
      set_.bake_time.emplace();
      RETURN_IF_ERROR(map.Read("time", kMaxBakeTime, &*set_.bake_time));
    }
    std::string action = "roll_back";
    RETURN_IF_ERROR(map.Read("action", &action));
    if (action != "off" && action != "warn" && action != "roll_back") {
      return map.Refuse("action", absl::StrCat("is ", Quote(action)),
                        "give off, warn or roll_back");
    }
    set_.bake_action = action == "off"    ? OperatorSet::BakeAction::kOff
                       : action == "warn" ? OperatorSet::BakeAction::kWarn
                                          : OperatorSet::BakeAction::kRollBack;
    std::string text;
    RETURN_IF_ERROR(map.Read("max_error_rate", &text));
    Share share;
    std::string why;
    if (!text.empty() && (!AbslParseFlag(text, &share, &why) || share.value <= 0)) {
      return map.Refuse("max_error_rate", absl::StrCat("is ", Quote(text)),
                        "give a share above 0, as 1% or 0.01");
    }
    set_.max_error_rate = share.value;
    text.clear();
    RETURN_IF_ERROR(map.Read("max_latency_ratio", &text));
    if (!text.empty() && (!absl::SimpleAtod(text, &set_.max_latency_ratio) ||
                          !std::isfinite(set_.max_latency_ratio) || set_.max_latency_ratio <= 0)) {
      return map.Refuse("max_latency_ratio", absl::StrCat("is ", Quote(text)),
                        "give a number above 0, such as 1.5");
    }
    return absl::OkStatus();
  }

  absl::Status ReadOperator(const YAML::Node& node) {
    ASSIGN_OR_RETURN(
        const Map map,
        Map::Of(file_, node, "an operator",
                {"name", "expr", "file", "flux", "include", "signature", "split", "summary",
                 "examples", "task_time", "scratch_bytes", "allow_spills", "native", "isolation"}));
    SetOperator op;
    RETURN_IF_ERROR(map.Read("name", &op.name));
    if (op.name.empty()) return map.Refuse("name", "is missing", "name the operator");
    if (op.name.size() > kMaxOperatorNameBytes) {
      return map.Refuse("name", absl::StrCat("has more than ", kMaxOperatorNameBytes, " bytes"),
                        "give a shorter one");
    }
    if (!names_.insert(op.name).second) {
      return map.Refuse("name", absl::StrCat(Quote(op.name), " occurs twice in the set"),
                        "list each operator once");
    }
    // Errors of files and of what they contain do not say where the set names them.
    const auto place = [&](const absl::Status& status) {
      if (status.ok() || absl::StartsWith(status.message(), absl::StrCat(Text(file_), ":"))) {
        return status;
      }
      return absl::Status(status.code(), absl::StrCat(Text(file_), ":", node.Mark().line + 1, ": ",
                                                      op.name, ": ", status.message()));
    };
    RETURN_IF_ERROR(place(ReadOptions(map, op)));
    RETURN_IF_ERROR(place(ReadKind(map, op)));
    op.spec.content_hash = ContentHash(op.name, op.body, op.files, op.spec);
    set_.operators.push_back(std::move(op));
    return absl::OkStatus();
  }

  absl::Status ReadOptions(const Map& map, SetOperator& op) {
    RETURN_IF_ERROR(map.Read("signature", &op.spec.signature));
    RETURN_IF_ERROR(map.Read("split", &op.spec.split));
    RETURN_IF_ERROR(map.Read("summary", &op.spec.summary));
    absl::Duration task_time = absl::ZeroDuration();
    RETURN_IF_ERROR(map.Read("task_time", kMaxTaskTime, &task_time));
    op.spec.task_time_limit = absl::ToChronoMilliseconds(task_time);
    RETURN_IF_ERROR(map.Read("scratch_bytes", &op.spec.scratch_bytes));
    RETURN_IF_ERROR(map.Read("allow_spills", &op.spec.allow_spills));
    std::string isolation;
    RETURN_IF_ERROR(map.Read("isolation", &isolation));
    if (!isolation.empty() && isolation != "trusted" && isolation != "stoppable") {
      return map.Refuse("isolation", absl::StrCat("is ", Quote(isolation)),
                        "give trusted or stoppable");
    }
    op.spec.isolation = isolation == "trusted"     ? Isolation::kTrusted
                        : isolation == "stoppable" ? Isolation::kStoppable
                                                   : Isolation::kUnspecified;
    std::string native = "follows";
    RETURN_IF_ERROR(map.Read("native", &native));
    if (native != "follows" && native != "wait" && native != "off") {
      return map.Refuse("native", absl::StrCat("is ", Quote(native)), "give follows, wait or off");
    }
    op.native = native == "wait"  ? SetOperator::Native::kWait
                : native == "off" ? SetOperator::Native::kOff
                                  : SetOperator::Native::kFollows;
    std::vector<std::string> examples;
    RETURN_IF_ERROR(map.Read("examples", &examples));
    for (const std::string& path : examples) {
      ASSIGN_OR_RETURN(std::string text, ReadFile(map, "examples", path));
      op.examples.emplace_back(path, std::move(text));
    }
    return absl::OkStatus();
  }

  absl::Status ReadKind(const Map& map, SetOperator& op) {
    const int kinds = (map.Find("expr") != nullptr) + (map.Find("file") != nullptr) +
                      (map.Find("flux") != nullptr);
    if (kinds != 1) {
      return map.Refuse("name", "is not followed by exactly one of expr, file and flux",
                        "say what to install with one of them");
    }
    if (map.Find("file") == nullptr && map.Find("include") != nullptr) {
      return map.Refuse("include", "belongs to file", "leave it out");
    }
    if (map.Find("flux") == nullptr && map.Find("native") != nullptr) {
      return map.Refuse("native", "belongs to flux", "leave it out");
    }
    if (map.Find("flux") != nullptr && map.Find("isolation") != nullptr) {
      return map.Refuse("isolation", "belongs to expr and file", "leave it out");
    }
    if (map.Find("expr") != nullptr) return ReadExpression(map, op);
    if (map.Find("flux") != nullptr) return ReadProgram(map, op);
    return ReadSource(map, op);
  }

  absl::Status ReadExpression(const Map& map, SetOperator& op) {
    op.spec.kind = OperatorKind::kExpression;
    RETURN_IF_ERROR(map.Read("expr", &op.body));
    ASSIGN_OR_RETURN(const GeneratedOperator generated, expression::Generate(op.name, op.body));
    // As the daemon completes it.
    if (op.spec.signature.empty()) op.spec.signature = generated.signature;
    if (op.spec.split.empty()) op.spec.split = generated.split;
    op.spec.allow_spills = true;
    return absl::OkStatus();
  }

  absl::Status ReadProgram(const Map& map, SetOperator& op) {
    op.spec.kind = OperatorKind::kBytecode;
    op.spec.native_off = op.native == SetOperator::Native::kOff;
    std::string path;
    RETURN_IF_ERROR(map.Read("flux", &path));
    ASSIGN_OR_RETURN(const std::string text, ReadFile(map, "flux", path));
    const absl::StatusOr<flux::Bytecode> program = flux::Assemble(text);
    if (!program.ok()) {
      return absl::Status(program.status().code(),
                          absl::StrCat(path, ": ", program.status().message()));
    }
    op.body.assign(reinterpret_cast<const char*>(program->data()), program->size());
    return absl::OkStatus();
  }

  absl::Status ReadSource(const Map& map, SetOperator& op) {
    op.spec.kind = OperatorKind::kSource;
    RETURN_IF_ERROR(map.Read("file", &op.body));
    std::vector<std::string> paths = {op.body};
    RETURN_IF_ERROR(map.Read("include", &paths));
    for (const std::string& path : paths) {
      ASSIGN_OR_RETURN(std::string text, ReadFile(map, path == op.body ? "file" : "include", path));
      if (!op.files.emplace(path, std::move(text)).second) {
        return map.Refuse("include", absl::StrCat("has ", Quote(path), " twice"), "name it once");
      }
    }
    const SourceNotes notes = ReadSourceNotes(op.files[op.body]);
    if (op.spec.signature.empty()) op.spec.signature = notes.signature;
    if (op.spec.split.empty()) op.spec.split = notes.split;
    if (op.spec.summary.empty()) op.spec.summary = notes.summary;
    if (op.spec.signature.empty()) {
      return map.Refuse("file", absl::StrCat(Quote(op.body), " has no `// signature:` comment"),
                        "begin the source with one, or give the key signature");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadFile(const Map& map, const std::string& key,
                                       const std::string& path) {
    const std::vector<std::string> parts = absl::StrSplit(path, '/');
    // A byte 0 would end the path for the system.
    if (absl::StartsWith(path, "/") || std::ranges::find(parts, "..") != parts.end() ||
        path.find('\0') != std::string::npos) {
      return map.Refuse(key, absl::StrCat("names ", Quote(path)),
                        "name a file in the folder of the set, or below it");
    }
    paths_.insert(path);
    return read_(path);
  }

  const std::string_view file_;
  const ReadSetFile& read_;
  OperatorSet set_;
  std::set<std::string> names_;
  std::set<std::string> paths_;
};

}  // namespace

std::string OperatorSet::Plan() const {
  Sha256 hash;
  hash.Field(set).Field(prune ? "prune" : "");
  std::map<std::string, std::string> hashes;
  for (const SetOperator& op : operators) hashes[op.name] = op.spec.content_hash;
  for (const auto& [name, content_hash] : hashes) hash.Field(name).Field(content_hash);
  return hash.Hex();
}

absl::StatusOr<OperatorSet> ReadOperatorSet(std::string_view text, std::string_view name,
                                            const ReadSetFile& read) {
  if (text.size() > kMaxSetFileBytes) {
    return Wrong({name, 1}, absl::StrCat("it has ", text.size(), " bytes"),
                 absl::StrCat("divide the set; its file has at most ", kMaxSetFileBytes, " bytes"));
  }
  // yaml-cpp throws its errors.
  try {
    const std::string copy(text);
    std::istringstream stream(copy);
    YAML::Parser parser(stream);
    FormCheck form(name);
    if (!parser.HandleNextDocument(form)) {
      return Wrong({name, 1}, "it is empty", "write a set as in docs/fleet.md");
    }
    RETURN_IF_ERROR(form.status());
    FormCheck second(name);
    if (parser.HandleNextDocument(second)) {
      return Wrong({name, 1}, "it has a second document", "leave out what follows the line '---'");
    }
    return Reader(name, read).Read(YAML::Load(copy));
  } catch (const YAML::Exception& error) {
    return Wrong(At(name, error.mark), absl::StrCat("it is not YAML: ", error.msg),
                 "correct the syntax");
  }
}

}  // namespace resident
