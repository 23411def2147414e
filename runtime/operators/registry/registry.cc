#include "runtime/operators/registry/registry.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/layout/ring_layout.h"
#include "kernels/ops/builtin.h"
#include "kernels/ops/early_operators.h"
#include "runtime/base/nearest.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/cost_rule.h"
#include "runtime/operators/errors.h"
#include "runtime/operators/trial/traffic_share.h"

namespace resident {
namespace {

// The slots of the test operators are reserved even if these are not registered, since the
// kernel's first generation contains them.
static_assert(kFirstInstalledSlot + 2 * kMaxInstalledOperators + kSpareSlots + kMaxNativeForms <=
                  kMaxOperatorSlots,
              "two slots for each operator, and spare slots for installs in progress");

}  // namespace

OperatorVersion::~OperatorVersion() {
  if (slots != nullptr && slot != kNoSlot) slots->Release(slot);
  drained->Notify();
}

bool IsBuiltinName(const std::string& name) {
  const auto is = [&](const BuiltinOperator& op) { return name == op.name; };
  return std::any_of(std::begin(kBuiltinOperators), std::end(kBuiltinOperators), is) ||
         std::any_of(std::begin(kTestOperators), std::end(kTestOperators), is);
}

Registry::Registry(const Options& options)
    : options_(options),
      slots_(std::make_shared<SlotPool>(kFirstInstalledSlot, kMaxOperatorSlots)) {}

Registry::~Registry() = default;

absl::StatusOr<std::unique_ptr<Registry>> Registry::Create(const Options& options) {
  std::unique_ptr<Registry> registry(new Registry(options));
  uint32_t slot = 0;
  const auto add_all = [&](absl::Span<const BuiltinOperator> ops, bool trusted) -> absl::Status {
    for (const BuiltinOperator& op : ops) {
      RETURN_IF_ERROR(registry->AddBuiltin(op, slot, trusted));
      slot += 2;
    }
    return absl::OkStatus();
  };
  absl::Status status = add_all(kBuiltinOperators, /*trusted=*/true);
  if (status.ok() && options.test_operators) status = add_all(kTestOperators, /*trusted=*/false);
  if (!status.ok()) return status;
  return registry;
}

VersionStats Registry::MakeStats(const std::string& name, uint32_t version) const {
  VersionStats stats;
  for (uint32_t device = 0; device < options_.devices; ++device) {
    stats.push_back(std::make_shared<OperatorStats>(name, version));
  }
  return stats;
}

absl::Status Registry::AddBuiltin(const BuiltinOperator& op, uint32_t slot, bool trusted) {
  ASSIGN_OR_RETURN(Signature parsed, Signature::Parse(op.signature));
  ASSIGN_OR_RETURN(SplitRule rule, ParseSplit(op.split, parsed));
  ASSIGN_OR_RETURN(CostRule cost, ParseCost(op.cost, parsed));

  auto entry = std::make_unique<Entry>();
  entry->builtin = &op;
  entry->op =
      std::make_shared<Operator>(op.name, op.signature, std::move(parsed), /*bytecode=*/false);
  auto version = std::make_shared<OperatorVersion>();
  version->op = entry->op;
  version->version = 1;
  version->slot = slot;
  version->builtin = true;
  version->early_reads = FindEarlyReads(op.name);
  version->trusted = trusted;
  version->spec.kind = OperatorKind::kBuiltin;
  version->spec.summary = op.formula;
  version->spec.signature = op.signature;
  version->spec.split = op.split;
  version->split = rule;
  version->cost = std::move(cost);
  version->stats = MakeStats(op.name, 1);
  version->state = VersionState::kActive;
  slots_->SetHolder(slot, version);
  auto serving = std::make_unique<Serving>();
  serving->active = std::move(version);
  serving->active_since = options_.time->Now();
  entry->serving.store(serving.release());
  absl::WriterMutexLock lock(&mu_);
  operators_[op.name] = std::move(entry);
  return absl::OkStatus();
}

Registry::Entry* Registry::Find(const std::string& name) const {
  const auto found = operators_.find(name);
  return found == operators_.end() ? nullptr : found->second.get();
}

absl::Status Registry::NoSuchOperator(const std::string& name) const {
  if (name.size() > kMaxOperatorNameBytes) return errors::UnknownOperator(name, "");
  std::vector<std::string_view> names;
  names.reserve(operators_.size());
  for (const auto& [candidate, entry] : operators_) names.push_back(candidate);
  // Sorted, so that of several names at the same distance always the same one is suggested.
  std::sort(names.begin(), names.end());
  return errors::UnknownOperator(name, Nearest(name, names));
}

absl::StatusOr<ResolvedOperator> Registry::ResolveIn(const Entry& entry,
                                                     const VersionRef& version) const {
  const Serving& serving = *entry.serving.load(std::memory_order_seq_cst);
  if (!version.none()) return FindNamed(entry, serving, version);
  if (serving.active == nullptr) {
    const uint32_t standby = serving.standby == nullptr ? 0 : serving.standby->version;
    return errors::NoActiveVersion(entry.op->name(), standby, PublicReason(serving.standby_reason));
  }
  const bool on_trial = serving.traffic_share != 0;
  if (IsPicked(serving.traffic, serving.traffic_share)) {
    return ResolvedOperator{serving.standby, entry.op.get(), nullptr, on_trial};
  }
  const bool shadowed = IsPicked(serving.shadow, serving.shadow_share);
  return ResolvedOperator{serving.active, entry.op.get(), shadowed ? serving.standby : nullptr,
                          on_trial};
}

absl::StatusOr<ResolvedOperator> Registry::FindNamed(const Entry& entry, const Serving& serving,
                                                     const VersionRef& version) {
  const std::string& name = entry.op->name();
  const auto is_named = [&](const std::shared_ptr<const OperatorVersion>& candidate,
                            const std::string& label) {
    if (candidate == nullptr) return false;
    if (!version.content_hash.empty()) {
      return candidate->spec.content_hash.starts_with(version.content_hash);
    }
    return version.label.empty() ? candidate->version == version.number : label == version.label;
  };
  const bool active = is_named(serving.active, serving.active_label);
  const bool standby = is_named(serving.standby, serving.standby_label);
  if (active && standby &&
      serving.active->spec.content_hash != serving.standby->spec.content_hash) {
    return errors::AmbiguousContentHash(name, std::string(version.content_hash));
  }
  // Both may have the same contents.
  if (active) return ResolvedOperator{serving.active, entry.op.get(), nullptr};
  if (standby) {
    if (!serving.standby_reason.empty()) {
      return errors::VersionQuarantined(name, serving.standby->version,
                                        PublicReason(serving.standby_reason));
    }
    return ResolvedOperator{serving.standby, entry.op.get(), nullptr};
  }
  if (version.number != 0) {
    return errors::UnknownVersion(name, version.number,
                                  serving.active == nullptr ? 0 : serving.active->version);
  }
  std::vector<errors::VersionInKernel> present;
  const auto add = [&](const std::shared_ptr<const OperatorVersion>& found,
                       const std::string& label) {
    if (found == nullptr) return;
    present.push_back({found->version, VersionStateName(found->state), label});
  };
  add(serving.active, serving.active_label);
  add(serving.standby, serving.standby_label);
  return errors::UnknownVersionName(name, version, present);
}

absl::StatusOr<ResolvedOperator> Registry::Resolve(const std::string& name,
                                                   const VersionRef& version) const {
  absl::ReaderMutexLock lock(&mu_);
  return ResolveLocked(name, version);
}

std::optional<absl::StatusOr<ResolvedOperator>> Registry::TryResolve(
    const std::string& name, const VersionRef& version) const {
  if (!mu_.ReaderTryLock()) return std::nullopt;
  absl::StatusOr<ResolvedOperator> resolved = ResolveLocked(name, version);
  mu_.ReaderUnlock();
  return resolved;
}

absl::StatusOr<ResolvedOperator> Registry::ResolveLocked(const std::string& name,
                                                         const VersionRef& version) const {
  const Entry* const entry = Find(name);
  if (entry == nullptr) return NoSuchOperator(name);
  if (entry->op->bytecode()) return errors::CalledWithTasks(name);
  return ResolveIn(*entry, version);
}

void Registry::Withdraw(const ResolvedOperator& resolved) const {
  absl::ReaderMutexLock lock(&mu_);
  const Entry* const entry = Find(resolved.op->name());
  if (entry == nullptr) return;
  const Serving& serving = *entry->serving.load(std::memory_order_seq_cst);
  serving.traffic.fetch_sub(serving.traffic_share, std::memory_order_relaxed);
  // A request that the standby version executes does not count for the shadow.
  if (resolved.version == serving.standby) return;
  serving.shadow.fetch_sub(serving.shadow_share, std::memory_order_relaxed);
}

absl::StatusOr<ResolvedOperator> Registry::ResolveProgram(const std::string& name,
                                                          const VersionRef& version) const {
  absl::ReaderMutexLock lock(&mu_);
  const Entry* const entry = Find(name);
  if (entry == nullptr) return NoSuchOperator(name);
  if (!entry->op->bytecode()) return errors::CalledWithPrograms(name);
  return ResolveIn(*entry, version);
}

absl::StatusOr<std::shared_ptr<const Operator>> Registry::FindOperator(
    const std::string& name) const {
  absl::ReaderMutexLock lock(&mu_);
  const Entry* const entry = Find(name);
  if (entry == nullptr) return NoSuchOperator(name);
  return entry->op;
}

OperatorView Registry::DescribeEntry(const Entry& entry) const {
  const Serving& serving = *entry.serving.load(std::memory_order_seq_cst);
  OperatorView view;
  view.op = entry.op;
  if (entry.builtin != nullptr) {
    view.family = entry.builtin->family;
    view.notes = entry.builtin->notes;
    view.example = entry.builtin->example;
    view.cost = entry.builtin->cost;
  }
  view.revision = entry.revision.load(std::memory_order_acquire);
  view.trial = serving.trial;
  view.versions.assign(entry.retired.begin(), entry.retired.end());
  const auto add = [&](const OperatorVersion& version, const std::string& label,
                       const std::string& reason) -> VersionView& {
    VersionView of_version;
    of_version.version = version.version;
    of_version.state = version.state.load(std::memory_order_relaxed);
    of_version.slot = version.slot;
    of_version.builtin = version.builtin;
    of_version.early_reads = version.early_reads;
    of_version.spec = version.spec;
    of_version.label = label;
    of_version.split = version.split;
    of_version.quarantine_reason = reason;
    if (version.native != nullptr) of_version.native = version.native->view();
    of_version.stats = version.stats;
    return view.versions.emplace_back(std::move(of_version));
  };
  if (serving.active != nullptr) {
    add(*serving.active, serving.active_label, "").active_for =
        options_.time->Now() - serving.active_since;
    view.active_version = serving.active->version;
  }
  if (serving.standby != nullptr) {
    add(*serving.standby, serving.standby_label, serving.standby_reason);
    view.standby_version = serving.standby->version;
  }
  std::sort(view.versions.begin(), view.versions.end(),
            [](const VersionView& a, const VersionView& b) { return a.version < b.version; });
  const VersionView* described = view.Find(view.active_version);
  if (described == nullptr && !view.versions.empty()) described = &view.versions.back();
  if (described != nullptr) {
    view.summary = described->spec.summary;
    view.wide = described->split.parameter >= 0;
  }
  return view;
}

absl::StatusOr<OperatorView> Registry::Describe(const std::string& name) const {
  absl::ReaderMutexLock lock(&mu_);
  const Entry* const entry = Find(name);
  if (entry == nullptr) return NoSuchOperator(name);
  return DescribeEntry(*entry);
}

std::vector<OperatorView> Registry::List() const {
  std::vector<OperatorView> list;
  {
    absl::ReaderMutexLock lock(&mu_);
    for (const auto& [name, entry] : operators_) list.push_back(DescribeEntry(*entry));
  }
  std::sort(list.begin(), list.end(), [](const OperatorView& a, const OperatorView& b) {
    return a.op->name() < b.op->name();
  });
  return list;
}

uint64_t Registry::Revision(const std::string& name) const {
  absl::ReaderMutexLock lock(&mu_);
  const Entry* const entry = Find(name);
  return entry == nullptr ? 0 : entry->revision.load(std::memory_order_acquire);
}

std::shared_ptr<const OperatorVersion> Registry::FindBySlot(uint32_t slot) const {
  return slots_->Holder(slot);
}

std::vector<std::shared_ptr<const OperatorVersion>> Registry::SlotHolders() const {
  return slots_->Holders();
}

void Registry::ForEachStats(
    const std::function<void(uint32_t device, const std::shared_ptr<const OperatorStats>& stats)>&
        visit) const {
  const auto visit_all = [&](const VersionStats& stats) {
    for (uint32_t device = 0; device < stats.size(); ++device) visit(device, stats[device]);
  };
  absl::ReaderMutexLock lock(&mu_);
  for (const auto& [name, entry] : operators_) {
    const Serving& serving = *entry->serving.load(std::memory_order_seq_cst);
    for (const auto& version : {serving.active, serving.standby}) {
      if (version != nullptr) visit_all(version->stats);
    }
  }
  const TimeSource::TimePoint now = options_.time->Now();
  for (const KeptStats& kept : kept_stats_) {
    if (!kept.IsOver(now)) visit_all(kept.stats);
  }
}

}  // namespace resident
