#include "runtime/operators/install/claim_table.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/time/clock.h"
#include "runtime/base/status_macros.h"
#include "runtime/operators/errors.h"

namespace resident {
namespace {

absl::Duration ComputeAge(const PlanRecord& plan) {
  return std::max(absl::ZeroDuration(), absl::Now() - absl::FromUnixMillis(plan.claimed_ms));
}

// Random, so that a lease of before a restart whose record was lost is never that of another claim.
uint64_t NewLease() {
  absl::BitGen random;
  return absl::Uniform<uint64_t>(absl::IntervalClosed, random, 1, UINT64_MAX);
}

}  // namespace

ClaimTable::ClaimTable(Registry* registry, StateStore* state, TimeSource* time)
    : registry_(registry), state_(state), time_(time), table_(state->plans()) {
  if (table_.lease != 0 && Find(table_.claimed) == nullptr) table_.lease = 0;
  if (table_.lease == 0) return;
  for (const auto& [name, hash] : Claimed().before) names_.insert(name);
  expires_ = time_->Now() + table_.ttl;
}

bool ClaimTable::Valid() const { return table_.lease != 0 && time_->Now() < expires_; }

PlanRecord* ClaimTable::Find(const std::string& plan) {
  const auto found = std::ranges::find(table_.plans, plan, &PlanRecord::plan);
  return found == table_.plans.end() ? nullptr : &*found;
}

const PlanRecord& ClaimTable::Claimed() const {
  return *std::ranges::find(table_.plans, table_.claimed, &PlanRecord::plan);
}

absl::StatusOr<ClaimedPlan> ClaimTable::Claim(const PlanClaim& claim) {
  absl::MutexLock write(&write_mu_);
  absl::StatusOr<ClaimedPlan> claimed;
  std::optional<PlanTable> changed;
  registry_->BetweenChanges([&] {
    absl::MutexLock lock(&mu_);
    if (claim.lease != 0 && !claim.state.has_value()) {
      claimed = Renew(claim);
    } else {
      claimed = claim.lease != 0 ? Renew(claim) : Take(claim);
      if (claimed.ok()) changed = table_;
    }
  });
  if (changed.has_value()) RETURN_IF_ERROR(state_->PutPlans(*changed));
  return claimed;
}

absl::StatusOr<ClaimedPlan> ClaimTable::Renew(const PlanClaim& claim) {
  if (table_.lease != claim.lease || table_.claimed != claim.plan) {
    return errors::ClaimLost(claim.plan);
  }
  PlanRecord& record = *Find(claim.plan);
  if (claim.state.has_value()) record.state = *claim.state;
  SetClaim(claim, claim.lease);
  return ClaimedPlan{.lease = claim.lease, .resumed = true, .record = record};
}

absl::StatusOr<ClaimedPlan> ClaimTable::Take(const PlanClaim& claim) {
  if (Valid() && table_.claimed != claim.plan && !claim.steal) {
    const PlanRecord& held = Claimed();
    return errors::ClaimHeld(held.set, held.plan, held.holder, ComputeAge(held));
  }
  PlanRecord* record = Find(claim.plan);
  bool resumed = record != nullptr;
  const bool ended = record != nullptr && record->state != PlanState::kRunning;
  const bool anew = ended && (claim.state == PlanState::kRunning ||
                              (!claim.state.has_value() && record->state == PlanState::kDone));
  if (anew) {
    std::erase_if(table_.plans, [&](const PlanRecord& plan) { return plan.plan == claim.plan; });
    record = nullptr;
    resumed = false;
  }
  if (record == nullptr) record = &AddRecord(claim);
  if (claim.state.has_value()) record->state = *claim.state;
  record->holder = claim.holder;
  table_.claimed = claim.plan;
  names_.clear();
  for (const auto& [name, hash] : record->before) names_.insert(name);
  SetClaim(claim, NewLease());
  return ClaimedPlan{.lease = table_.lease, .resumed = resumed, .record = *record};
}

PlanRecord& ClaimTable::AddRecord(const PlanClaim& claim) {
  // A plan that did not end, and whose set another plan changes now, is not continued.
  std::erase_if(table_.plans, [&](const PlanRecord& plan) {
    return plan.set == claim.set && plan.state == PlanState::kRunning;
  });
  while (table_.plans.size() >= kMaxPlanRecords) table_.plans.pop_front();
  PlanRecord& record = table_.plans.emplace_back();
  record.plan = claim.plan;
  record.set = claim.set;
  record.claimed_ms = absl::ToUnixMillis(absl::Now());
  for (const std::string& name : claim.names) {
    const absl::StatusOr<OperatorView> op = registry_->Describe(name);
    const VersionView* const active =
        op.ok() && op->active_version != 0 ? op->Find(op->active_version) : nullptr;
    record.before.emplace_back(name, active == nullptr ? "" : active->spec.content_hash);
  }
  return record;
}

void ClaimTable::SetClaim(const PlanClaim& claim, uint64_t lease) {
  table_.lease = lease;
  if (claim.ttl.count() > 0) table_.ttl = claim.ttl;
  expires_ = time_->Now() + table_.ttl;
}

absl::Status ClaimTable::Release(const std::string& plan, uint64_t lease,
                                 std::optional<PlanState> ended) {
  absl::MutexLock write(&write_mu_);
  PlanTable changed;
  {
    absl::MutexLock lock(&mu_);
    if (table_.lease == 0 || table_.lease != lease || table_.claimed != plan) {
      return errors::ClaimLost(plan);
    }
    if (ended == PlanState::kRunning) {
      std::erase_if(table_.plans, [&](const PlanRecord& record) { return record.plan == plan; });
    } else if (ended.has_value()) {
      Find(plan)->state = *ended;
      UpdateFolder(*Find(plan));
    }
    table_.lease = 0;
    table_.claimed.clear();
    names_.clear();
    changed = table_;
  }
  return state_->PutPlans(changed);
}

void ClaimTable::UpdateFolder(const PlanRecord& ended) {
  FolderRecord& folder = table_.folder;
  if (folder.during == ended.plan) {
    folder.during.clear();
    return;
  }
  if (folder.digest.empty() || folder.set != ended.set) return;
  if (ended.state == PlanState::kDone && ended.plan != folder.plan) {
    if (folder.superseded_by == ended.plan) return;
    folder.superseded_by = ended.plan;
    folder.superseded_ms = absl::ToUnixMillis(absl::Now());
  } else if (ended.state == PlanState::kDone || folder.superseded_by == ended.plan) {
    folder.superseded_by.clear();
    folder.superseded_ms = 0;
  }
}

absl::Status ClaimTable::RecordFolder(const FolderRecord& folder) {
  absl::MutexLock write(&write_mu_);
  PlanTable changed;
  {
    absl::MutexLock lock(&mu_);
    if (table_.folder.digest == folder.digest) {
      table_.folder.applied = folder.applied;
    } else {
      table_.folder = folder;
      table_.folder.during = Valid() ? table_.claimed : "";
    }
    changed = table_;
  }
  return state_->PutPlans(changed);
}

absl::Status ClaimTable::Check(const std::string& name, const ChangeContext& context) const {
  absl::MutexLock lock(&mu_);
  const bool valid = Valid();
  if (context.lease != 0 &&
      (!valid || table_.lease != context.lease || table_.claimed != context.plan)) {
    return errors::ClaimLost(context.plan);
  }
  if (!valid || context.plan == table_.claimed || !names_.contains(name)) return absl::OkStatus();
  const PlanRecord& held = Claimed();
  return errors::NameClaimed(name, held.set, held.plan, held.holder, ComputeAge(held));
}

void ClaimTable::ListFolder(const std::string& set, std::map<std::string, std::string> hashes) {
  absl::MutexLock lock(&mu_);
  listed_set_ = set;
  listed_ = std::move(hashes);
}

absl::Status ClaimTable::CheckListed(const std::string& name, const std::string& content_hash,
                                     const ChangeContext& context) const {
  if (!context.plan.empty() || context.drift) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  const auto wanted = listed_.find(name);
  if (wanted == listed_.end()) return absl::OkStatus();
  if (wanted->second == content_hash && table_.folder.superseded_by.empty()) {
    return absl::OkStatus();
  }
  return errors::ListedInFolder(name, listed_set_);
}

PlanTable ClaimTable::plans() const {
  absl::MutexLock lock(&mu_);
  PlanTable table = table_;
  if (!Valid()) table.lease = 0;
  return table;
}

}  // namespace resident
