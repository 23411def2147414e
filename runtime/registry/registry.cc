#include "runtime/registry/registry.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layout/ring_layout.h"
#include "kernels/ops/builtin.h"
#include "runtime/errors.h"

namespace resident {
namespace {

struct OperatorText {
  const char* name;
  const char* summary;
  const char* signature;
  const char* split;
};

#define RESIDENT_OPERATOR_TEXT(symbol, name, summary, signature, split) \
  {name, summary, signature, split},
constexpr OperatorText kBuiltins[] = {RESIDENT_BUILTIN_OPERATORS(RESIDENT_OPERATOR_TEXT)};
constexpr OperatorText kTests[] = {RESIDENT_TEST_OPERATORS(RESIDENT_OPERATOR_TEXT)};
#undef RESIDENT_OPERATOR_TEXT

static_assert(2 * (std::size(kBuiltins) + std::size(kTests)) <= kMaxOperatorSlots,
              "the jump table has two slots for each operator");

// "parameter[/1] grain", or "".
absl::StatusOr<SplitRule> ParseSplit(const std::string& text, const Signature& signature) {
  SplitRule rule;
  if (text.empty()) return rule;
  const size_t space = text.find(' ');
  if (space == std::string::npos) return errors::BadSplit(text, "no grain");
  std::string name = text.substr(0, space);
  if (name.size() > 2 && name.substr(name.size() - 2) == "/1") {
    rule.by_first_dim = true;
    name.resize(name.size() - 2);
  }
  for (size_t i = 0; i < signature.parameters().size(); ++i) {
    if (signature.parameters()[i].name == name && !signature.parameters()[i].scalar()) {
      rule.parameter = static_cast<int>(i);
    }
  }
  if (rule.parameter < 0) return errors::BadSplit(text, "no tensor parameter of that name");
  rule.grain = std::strtoull(text.c_str() + space + 1, nullptr, 10);
  if (rule.grain == 0) return errors::BadSplit(text, "the grain must be a positive number");
  return rule;
}

// Levenshtein distance.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row[b.size()];
}

}  // namespace

uint64_t SplitRule::Chunks(absl::Span<const int64_t> shape) const {
  if (parameter < 0) return 1;
  uint64_t items = 1;
  for (size_t i = 0; i < (by_first_dim ? std::min<size_t>(1, shape.size()) : shape.size()); ++i) {
    items *= static_cast<uint64_t>(shape[i]);
  }
  return std::max<uint64_t>(1, (items + grain - 1) / grain);
}

absl::StatusOr<std::unique_ptr<Registry>> Registry::Create(const Options& options) {
  std::unique_ptr<Registry> registry(new Registry);
  uint32_t slot = 0;
  const auto add_all = [&](absl::Span<const OperatorText> texts, bool trusted) -> absl::Status {
    for (const OperatorText& text : texts) {
      const absl::Status status = registry->Add(options, text.name, text.summary, text.signature,
                                                text.split, slot, trusted);
      if (!status.ok()) return status;
      slot += 2;
    }
    return absl::OkStatus();
  };
  absl::Status status = add_all(kBuiltins, /*trusted=*/true);
  if (status.ok() && options.test_operators) status = add_all(kTests, /*trusted=*/false);
  if (!status.ok()) return status;
  return registry;
}

absl::Status Registry::Add(const Options& options, const char* name, const char* summary,
                           const char* signature, const char* split, uint32_t slot, bool trusted) {
  auto op = std::make_unique<Operator>();
  op->name_ = name;
  op->summary_ = summary;
  op->signature_text_ = signature;
  absl::StatusOr<Signature> parsed = Signature::Parse(signature);
  if (!parsed.ok()) return parsed.status();
  op->signature_ = *std::move(parsed);
  absl::StatusOr<SplitRule> rule = ParseSplit(split, op->signature_);
  if (!rule.ok()) return rule.status();
  op->split_ = *rule;

  auto version = std::make_unique<OperatorVersion>();
  version->version = 1;
  version->slot = slot;
  version->builtin = true;
  version->trusted = trusted;
  for (uint32_t device = 0; device < options.devices; ++device) {
    version->stats.push_back(std::make_unique<OperatorStats>(name, version->version));
  }
  op->versions_.push_back(std::move(version));
  operators_[name] = std::move(op);
  return absl::OkStatus();
}

absl::StatusOr<ResolvedOperator> Registry::Resolve(const std::string& name,
                                                   uint32_t version) const {
  const auto found = operators_.find(name);
  if (found == operators_.end()) {
    // A name is near when at most a third of it is mistyped.
    std::string nearest;
    if (name.size() > 64) return errors::UnknownOperator(name, nearest);
    size_t least = std::max<size_t>(2, name.size() / 3) + 1;
    for (const Operator* op : List()) {
      const size_t distance = EditDistance(name, op->name());
      if (distance < least) {
        least = distance;
        nearest = op->name();
      }
    }
    return errors::UnknownOperator(name, nearest);
  }
  const Operator* op = found->second.get();
  if (version == 0) return ResolvedOperator{op, &op->active()};
  for (const auto& candidate : op->versions()) {
    if (candidate->version == version) return ResolvedOperator{op, candidate.get()};
  }
  return errors::UnknownVersion(name, version, op->active().version);
}

std::vector<const Operator*> Registry::List() const {
  std::vector<const Operator*> list;
  for (const auto& [name, op] : operators_) list.push_back(op.get());
  std::sort(list.begin(), list.end(),
            [](const Operator* a, const Operator* b) { return a->name() < b->name(); });
  return list;
}

const Operator* Registry::FindBySlot(uint32_t slot) const {
  for (const auto& [name, op] : operators_) {
    for (const auto& version : op->versions()) {
      if (version->slot == slot) return op.get();
    }
  }
  return nullptr;
}

void Registry::ForEachStats(
    const std::function<void(uint32_t device, const OperatorStats& stats)>& visit) const {
  for (const Operator* op : List()) {
    for (const auto& version : op->versions()) {
      for (uint32_t device = 0; device < version->stats.size(); ++device) {
        visit(device, *version->stats[device]);
      }
    }
  }
}

}  // namespace resident
