#include "runtime/operator_set/set_messages.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/signature.h"
#include "runtime/operator_set/example_file.h"

namespace resident {

absl::StatusOr<SetInstall> MakeInstall(const SetOperator& op, const OperatorSet& set) {
  SetInstall install;
  v1::InstallHeader& header = install.header;
  header.set_name(op.name);
  header.set_summary(op.spec.summary);
  header.set_signature(op.spec.signature);
  header.set_split(op.spec.split);
  header.set_label(set.release);
  if (op.spec.kind == OperatorKind::kExpression) {
    header.set_expression(op.body);
  } else if (op.spec.kind == OperatorKind::kBytecode) {
    header.set_bytecode(op.body);
  } else {
    header.set_main_file(op.body);
  }
  header.mutable_limits()->set_task_time_ms(static_cast<uint32_t>(op.spec.task_time_limit.count()));
  header.mutable_limits()->set_scratch_bytes(op.spec.scratch_bytes);
  header.set_allow_spills(op.spec.allow_spills);
  header.set_isolation(static_cast<v1::Isolation>(op.spec.isolation));
  header.set_native(op.native == SetOperator::Native::kWait ? v1::InstallHeader::NATIVE_WAIT
                    : op.native == SetOperator::Native::kOff
                        ? v1::InstallHeader::NATIVE_OFF
                        : v1::InstallHeader::NATIVE_UNSPECIFIED);
  if (op.examples.empty()) return install;
  ASSIGN_OR_RETURN(const Signature signature, Signature::Parse(op.spec.signature));
  for (const auto& [path, text] : op.examples) {
    absl::StatusOr<std::vector<v1::InstallExample>> examples = ParseExamples(text, signature);
    if (!examples.ok()) {
      return absl::Status(examples.status().code(),
                          absl::StrCat(path, ": ", examples.status().message()));
    }
    std::ranges::move(*examples, std::back_inserter(install.examples));
  }
  return install;
}

v1::BakeOptions MakeBake(const OperatorSet& set, absl::Duration time) {
  v1::BakeOptions bake;
  bake.set_action(set.bake_action == OperatorSet::BakeAction::kOff ? v1::BakeOptions::ACTION_OFF
                  : set.bake_action == OperatorSet::BakeAction::kWarn
                      ? v1::BakeOptions::ACTION_WARN
                      : v1::BakeOptions::ACTION_ROLL_BACK);
  bake.set_time_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(time)));
  bake.set_max_error_rate(set.max_error_rate);
  bake.set_max_latency_ratio(set.max_latency_ratio);
  return bake;
}

const v1::SummaryResponse::Operator* FindOperator(const v1::SummaryResponse& summary,
                                                  const std::string& name) {
  const auto found = std::ranges::find(
      summary.operators(), name, [](const auto& op) -> const std::string& { return op.name(); });
  return found == summary.operators().end() ? nullptr : &*found;
}

const v1::SummaryResponse::Version* FindActive(const v1::SummaryResponse::Operator* op) {
  if (op == nullptr || op->versions_size() == 0) return nullptr;
  return op->versions(0).state() == v1::VERSION_STATE_ACTIVE ? &op->versions(0) : nullptr;
}

const v1::SummaryResponse::Version* FindHash(const v1::SummaryResponse::Operator* op,
                                             const std::string& hash) {
  if (op == nullptr) return nullptr;
  const auto found = std::ranges::find(
      op->versions(), hash, [](const auto& v) -> const std::string& { return v.content_hash(); });
  return found == op->versions().end() ? nullptr : &*found;
}

std::string ActiveHash(const v1::SummaryResponse& summary, const std::string& name) {
  const v1::SummaryResponse::Version* const active = FindActive(FindOperator(summary, name));
  return active == nullptr ? "" : active->content_hash();
}

std::string ShortHash(const std::string& hash) {
  return hash.empty() ? "nothing" : hash.substr(0, kMinHashDigits);
}

SetTarget::SetTarget(const OperatorSet& operator_set) : set(operator_set.set) {
  for (const SetOperator& op : operator_set.operators) hashes[op.name] = op.spec.content_hash;
}

std::set<std::string> FindPruned(const OperatorSet& set, const v1::SummaryResponse& summary) {
  std::set<std::string> pruned;
  if (!set.prune) return pruned;
  for (const auto& op : summary.operators()) {
    const bool owned = std::ranges::any_of(
        op.versions(), [&](const auto& version) { return version.set() == set.set; });
    const bool listed = std::ranges::any_of(
        set.operators, [&](const SetOperator& known) { return known.name == op.name(); });
    if (owned && !listed) pruned.insert(op.name());
  }
  return pruned;
}

std::vector<SetDifference> CompareWithSet(const SetTarget& target,
                                          const std::set<std::string>& pruned,
                                          const std::set<std::string>& builtin,
                                          const v1::SummaryResponse& summary) {
  std::vector<SetDifference> differences;
  for (const auto& [name, hash] : target.hashes) {
    const v1::SummaryResponse::Operator* const op = FindOperator(summary, name);
    SetDifference difference{name, ActiveHash(summary, name), hash, "stage", ""};
    if (difference.active == hash) continue;
    const v1::SummaryResponse::Version* const loaded = FindHash(op, hash);
    if (loaded != nullptr) difference.action = "switch";
    if (loaded != nullptr && loaded->state() == v1::VERSION_STATE_QUARANTINED) {
      difference.why = "this version is quarantined";
    } else if (builtin.contains(name)) {
      difference.why = "the name is that of a built-in operator";
    }
    for (int i = 0; op != nullptr && i < op->versions_size(); ++i) {
      const std::string& owner = op->versions(i).set();
      if (owner.empty() || owner == target.set) continue;
      difference.why = absl::StrCat("it belongs to set ", owner);
    }
    if (!difference.why.empty()) difference.action = "blocked";
    differences.push_back(std::move(difference));
  }
  for (const std::string& name : pruned) {
    if (FindOperator(summary, name) == nullptr) continue;
    differences.push_back({name, ActiveHash(summary, name), "", "remove", ""});
  }
  return differences;
}

}  // namespace resident
