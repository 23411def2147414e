// The registry's changes; registry.cc has the constructors and the readers.
#include <algorithm>
#include <cassert>
#include <utility>

#include "runtime/base/status_macros.h"
#include "runtime/operators/errors.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/operators/trial/traffic_share.h"

namespace resident {

bool IsOperatorName(const std::string& name) {
  if (name.empty() || name.size() > kMaxOperatorNameBytes) return false;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) {
           return letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
         });
}

namespace {

uint32_t FindNumber(const std::shared_ptr<const OperatorVersion>& version) {
  return version == nullptr ? 0 : version->version;
}

struct ParsedSpec {
  Signature signature;
  SplitRule split;
};

// Bytecode has neither signature nor split.
absl::StatusOr<ParsedSpec> ParseSpec(const VersionSpec& spec) {
  ParsedSpec parsed;
  if (spec.kind == OperatorKind::kBytecode) return parsed;
  ASSIGN_OR_RETURN(Signature signature, Signature::Parse(spec.signature));
  ASSIGN_OR_RETURN(SplitRule split, ParseSplit(spec.split, signature));
  parsed.signature = std::move(signature);
  parsed.split = split;
  return parsed;
}

}  // namespace

std::unique_ptr<Registry::Serving> Registry::Serving::Keep() const {
  auto same = std::make_unique<Serving>();
  same->active = active;
  same->standby = standby;
  same->active_label = active_label;
  same->standby_label = standby_label;
  same->active_since = active_since;
  return same;
}

std::unique_ptr<Registry::Serving> Registry::Serving::Swap(TimeSource::TimePoint now) const {
  std::unique_ptr<Serving> other = Keep();
  std::swap(other->active, other->standby);
  std::swap(other->active_label, other->standby_label);
  other->active_since = now;
  return other;
}

// --- Installing ---------------------------------------------------------------------

absl::Status Registry::CheckInstallLocked(const std::string& name, const VersionSpec& spec,
                                          std::optional<uint64_t> expected) const {
  if (!IsOperatorName(name)) return errors::BadOperatorName(name);
  if (IsBuiltinName(name)) return errors::BuiltinName(name);
  if (has_other_ != nullptr && has_other_(name)) return errors::NameOfModel(name);
  const bool bytecode = spec.kind == OperatorKind::kBytecode;
  ASSIGN_OR_RETURN(ParsedSpec parsed, ParseSpec(spec));
  absl::ReaderMutexLock lock(&mu_);
  const Entry* const entry = Find(name);
  const uint64_t revision = entry == nullptr ? 0 : entry->revision.load(std::memory_order_acquire);
  if (expected.has_value() && *expected != revision) {
    return errors::StaleRevision(name, *expected, revision);
  }
  if (entry == nullptr) {
    const size_t installed =
        std::count_if(operators_.begin(), operators_.end(), [&](const auto& other) {
          return !other.second->builtin && other.second->op->bytecode() == bytecode;
        });
    const size_t limit = bytecode ? kMaxBytecodeOperators : kMaxInstalledOperators;
    return installed < limit ? absl::OkStatus() : errors::TooManyOperators(limit, bytecode);
  }
  if (entry->op->bytecode() != bytecode) return errors::OtherKind(name, entry->op->bytecode());
  if (!bytecode && !entry->op->signature().SameAs(parsed.signature)) {
    return errors::OtherSignature(name, spec.signature, entry->op->signature_text());
  }
  const TrialView& trial = entry->serving.load(std::memory_order_seq_cst)->trial;
  return trial.version == 0 ? absl::OkStatus() : errors::OnTrial(name, trial.version);
}

void Registry::BetweenChanges(absl::FunctionRef<void()> action) const {
  absl::MutexLock change(&change_mu_);
  action();
}

absl::Status Registry::CheckInstall(const std::string& name, const VersionSpec& spec,
                                    std::optional<uint64_t> expected) const {
  absl::MutexLock change(&change_mu_);
  return CheckInstallLocked(name, spec, expected);
}

absl::StatusOr<std::shared_ptr<OperatorVersion>> Registry::Reserve(const std::string& name,
                                                                   const VersionSpec& spec,
                                                                   std::optional<uint64_t> expected,
                                                                   absl::Time deadline) {
  RETURN_IF_ERROR(CheckInstall(name, spec, expected));
  ASSIGN_OR_RETURN(ParsedSpec parsed, ParseSpec(spec));
  auto version = std::make_shared<OperatorVersion>();
  version->split = parsed.split;
  version->spec = spec;
  version->op = std::make_shared<Operator>(name, spec.signature, std::move(parsed.signature),
                                           /*bytecode=*/spec.kind == OperatorKind::kBytecode);
  if (spec.kind == OperatorKind::kBytecode) {
    version->native = std::make_shared<NativeForm>();
    return version;
  }
  RETURN_IF_ERROR(AssignSlot(version, deadline));
  return version;
}

absl::Status Registry::AssignSlot(const std::shared_ptr<OperatorVersion>& version,
                                  absl::Time deadline) {
  const std::optional<uint32_t> slot = slots_->Acquire(deadline);
  if (!slot.has_value()) return errors::NoFreeSlot(slots_->capacity());
  version->slots = slots_;
  version->slot = *slot;
  slots_->SetHolder(*slot, version);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<OperatorVersion>> Registry::ReserveNative(
    const OperatorVersion& program, std::shared_ptr<const VersionPayload> payload,
    absl::Time deadline) {
  auto code = std::make_shared<OperatorVersion>();
  code->op = program.op;
  code->version = program.version;
  code->spec = program.spec;
  // As for the interpreter: a batch is split into tasks that take less than the daemon's limit.
  code->spec.task_time_limit = std::chrono::milliseconds(0);
  code->native_of = program.native;
  code->payload = std::move(payload);
  RETURN_IF_ERROR(AssignSlot(code, deadline));
  return code;
}

absl::StatusOr<RegistryChange> Registry::Load(std::shared_ptr<OperatorVersion> reserved,
                                              std::optional<uint64_t> expected,
                                              const Commit& commit, const std::string& label) {
  assert(reserved->state == VersionState::kValidated);  // It was not loaded before.
  const std::string name = reserved->op->name();
  absl::MutexLock change_lock(&change_mu_);
  RETURN_IF_ERROR(CheckInstallLocked(name, reserved->spec, expected));
  Entry* entry = nullptr;
  {
    absl::ReaderMutexLock lock(&mu_);
    entry = Find(name);
  }
  std::unique_ptr<Entry> added;
  if (entry == nullptr) {
    added = std::make_unique<Entry>();
    added->op = reserved->op;
    added->serving.store(new Serving, std::memory_order_relaxed);
    added->last_version = version_floor_;
    for (const auto& [removed, last] : removed_) {
      if (removed == name) added->last_version = std::max(added->last_version, last);
    }
    entry = added.get();
  }
  // All versions share the operator that tasks were checked against.
  reserved->op = entry->op;
  reserved->version = entry->last_version + 1;
  reserved->stats = MakeStats(name, reserved->version);

  const Serving& now = *entry->serving.load(std::memory_order_relaxed);
  RegistryChange change;
  change.kind = EventKind::kInstalled;
  change.name = name;
  change.version = reserved->version;
  change.active_version = change.previous_version = FindNumber(now.active);
  change.standby_version = reserved->version;
  if (now.standby != nullptr) change.retired.push_back(now.standby->version);
  change.spec = &reserved->spec;
  change.label = label;
  change.slot = reserved->slot;
  ASSIGN_OR_RETURN(uint64_t revision, CommitInOrder(change, commit));

  change.revision = revision;
  change.spec = nullptr;
  entry->last_version = reserved->version;
  entry->revision.store(revision, std::memory_order_release);
  reserved->state = VersionState::kLoaded;
  std::unique_ptr<Serving> next = now.Keep();
  if (next->active_label == label) next->active_label.clear();
  next->standby = std::move(reserved);
  next->standby_label = label;
  Switch(*entry, std::move(next), change);
  if (added != nullptr) {
    absl::WriterMutexLock lock(&mu_);
    operators_[name] = std::move(added);
    changes_.fetch_add(1, std::memory_order_seq_cst);
  }
  return change;
}

// --- Switching ----------------------------------------------------------------------

absl::StatusOr<Registry::Entry*> Registry::FindForChange(const std::string& name,
                                                         std::optional<uint64_t> expected) const {
  absl::ReaderMutexLock lock(&mu_);
  Entry* const entry = Find(name);
  if (entry == nullptr) return NoSuchOperator(name);
  if (entry->builtin) return errors::BuiltinOperator(name);
  const uint64_t revision = entry->revision.load(std::memory_order_acquire);
  if (expected.has_value() && *expected != revision) {
    return errors::StaleRevision(name, *expected, revision);
  }
  return entry;
}

void Registry::RecordRetired(Entry& entry, const OperatorVersion& version, VersionState state,
                             const std::string& reason) {
  version.state.store(state, std::memory_order_relaxed);
  VersionView view;
  view.version = version.version;
  view.state = state;
  view.spec = version.spec;
  view.spec.bytecode = nullptr;  // Not kept for listings.
  view.split = version.split;
  view.quarantine_reason = reason;
  view.stats = version.stats;
  entry.retired.push_back(std::move(view));
  if (entry.retired.size() > kMaxRetiredVersions) entry.retired.pop_front();
}

void Registry::Switch(Entry& entry, std::unique_ptr<Serving> next, RegistryChange& change) {
  const Serving* const to = next.get();
  assert(to->active == nullptr || to->active != to->standby);
  assert(to->standby != nullptr || to->standby_reason.empty());
  // A trial is that of a standby beside an active version, and only it has shares.
  assert((to->traffic_share != 0 || to->shadow_share != 0) == (to->trial.version != 0));
  assert(to->trial.version == 0 || (to->active != nullptr && to->standby_reason.empty() &&
                                    FindNumber(to->standby) == to->trial.version));
  const std::unique_ptr<const Serving> before(
      entry.serving.exchange(next.release(), std::memory_order_seq_cst));
  changes_.fetch_add(1, std::memory_order_seq_cst);
  change.switched_at = std::chrono::steady_clock::now();

  // Once the writer lock is acquired, no reader uses `before` any more.
  absl::WriterMutexLock lock(&mu_);
  for (const auto& version : {before->active, before->standby}) {
    if (version == nullptr || version == to->active || version == to->standby) continue;
    const bool quarantined = version == before->standby && !before->standby_reason.empty();
    RecordRetired(entry, *version,
                  quarantined ? VersionState::kQuarantined : VersionState::kRetired,
                  quarantined ? before->standby_reason : "");
    KeepStats(version);
  }
}

void Registry::KeepStats(const std::shared_ptr<const OperatorVersion>& version) {
  const TimeSource::TimePoint now = options_.time->Now();
  kept_stats_.push_back({version->stats, version, now});
  while (kept_stats_.size() > kMaxKeptStats || kept_stats_.front().IsOver(now)) {
    kept_stats_.pop_front();
  }
}

absl::StatusOr<uint64_t> Registry::CommitInOrder(const RegistryChange& change,
                                                 const Commit& commit) {
  while (!overdue_.empty()) {
    const RegistryChange& first = overdue_.front().change;
    const absl::StatusOr<uint64_t> revision = overdue_.front().commit(first);
    // DATA_LOSS: the change does not fit the contents of the state store, and never will.
    // The next change records what is active and standby.
    if (!revision.ok() && !absl::IsDataLoss(revision.status())) return revision.status();
    if (revision.ok()) {
      absl::ReaderMutexLock lock(&mu_);
      Entry* const entry = Find(first.name);
      if (entry != nullptr) entry->revision.store(*revision, std::memory_order_release);
    }
    overdue_.pop_front();
  }
  return commit(change);
}

absl::StatusOr<RegistryChange> Registry::Apply(Entry& entry, RegistryChange change,
                                               std::unique_ptr<Serving> next,
                                               const Commit& commit) {
  const Serving& now = *entry.serving.load(std::memory_order_relaxed);
  change.name = entry.op->name();
  change.previous_version = FindNumber(now.active);
  change.active_version = FindNumber(next->active);
  change.standby_version = FindNumber(next->standby);
  const absl::StatusOr<uint64_t> revision = CommitInOrder(change, commit);
  if (!revision.ok()) {
    if (change.kind != EventKind::kQuarantined) return revision.status();
    change.commit_status = revision.status();
    overdue_.push_back({change, commit});
  }
  change.revision = revision.ok() ? *revision : entry.revision.load(std::memory_order_acquire);
  entry.revision.store(change.revision, std::memory_order_release);
  Switch(entry, std::move(next), change);
  return change;
}

absl::StatusOr<RegistryChange> Registry::Activate(const std::string& name, uint32_t version,
                                                  std::optional<uint64_t> expected, bool force,
                                                  const Commit& commit) {
  absl::MutexLock change_lock(&change_mu_);
  ASSIGN_OR_RETURN(Entry* const entry, FindForChange(name, expected));
  const Serving& now = *entry->serving.load(std::memory_order_relaxed);
  const uint32_t active = FindNumber(now.active);
  if (version != 0 && version == active) return errors::AlreadyActive(name, version);
  if (now.standby == nullptr) return errors::NoStandby(name, version, active);
  if (version != 0 && version != now.standby->version) {
    return errors::NotInSlot(name, version, now.standby->version);
  }
  if (!now.standby_reason.empty() && !force) {
    return errors::VersionQuarantined(name, now.standby->version, PublicReason(now.standby_reason));
  }
  std::unique_ptr<Serving> next = now.Swap(options_.time->Now());
  RegistryChange change;
  change.kind = EventKind::kActivated;
  change.version = now.standby->version;
  const auto to = now.standby;
  const auto from = now.active;
  change.spec = &to->spec;
  absl::StatusOr<RegistryChange> done = Apply(*entry, std::move(change), std::move(next), commit);
  if (!done.ok()) return done;
  done->spec = nullptr;
  to->state.store(VersionState::kActive, std::memory_order_relaxed);
  if (from != nullptr) from->state.store(VersionState::kPrevious, std::memory_order_relaxed);
  return done;
}

absl::StatusOr<RegistryChange> Registry::Rollback(const std::string& name,
                                                  std::optional<uint64_t> expected,
                                                  const Commit& commit) {
  absl::MutexLock change_lock(&change_mu_);
  ASSIGN_OR_RETURN(Entry* const entry, FindForChange(name, expected));
  const Serving& now = *entry->serving.load(std::memory_order_relaxed);
  const auto active = now.active;
  const auto standby = now.standby;
  if (standby == nullptr || active == nullptr) {
    return errors::NoPrevious(name, FindNumber(standby));
  }
  if (!now.standby_reason.empty()) {
    return errors::VersionQuarantined(name, standby->version, PublicReason(now.standby_reason));
  }
  const bool previous = standby->state.load(std::memory_order_relaxed) == VersionState::kPrevious;
  const bool trial = now.trial.version != 0;
  if (!previous && !trial) return errors::NoPrevious(name, standby->version);
  // The end of a trial does not change the active version: batches that name no version
  // were not promised the standby.
  std::unique_ptr<Serving> next = trial ? now.Keep() : now.Swap(options_.time->Now());
  RegistryChange change;
  change.kind = EventKind::kRolledBack;
  change.version = next->active->version;
  absl::StatusOr<RegistryChange> done = Apply(*entry, std::move(change), std::move(next), commit);
  if (!done.ok() || trial) return done;
  standby->state.store(VersionState::kActive, std::memory_order_relaxed);
  active->state.store(VersionState::kLoaded, std::memory_order_relaxed);
  return done;
}

absl::StatusOr<RegistryChange> Registry::SetTrial(const std::string& name, uint32_t version,
                                                  double traffic_percent, double shadow_percent,
                                                  std::optional<uint64_t> expected,
                                                  const Commit& commit) {
  if (!IsValidPercent(traffic_percent))
    return errors::PromoteShare("traffic_percent", traffic_percent);
  if (!IsValidPercent(shadow_percent))
    return errors::PromoteShare("shadow_percent", shadow_percent);
  absl::MutexLock change_lock(&change_mu_);
  ASSIGN_OR_RETURN(Entry* const entry, FindForChange(name, expected));
  const Serving& now = *entry->serving.load(std::memory_order_relaxed);
  if (now.active == nullptr) {
    return errors::NoActiveVersionToCompare(name, FindNumber(now.standby));
  }
  if (now.standby == nullptr) return errors::NoStandby(name, version, now.active->version);
  if (version != 0 && version != now.standby->version) {
    return errors::NotInSlot(name, version, now.standby->version);
  }
  if (!now.standby_reason.empty()) {
    return errors::VersionQuarantined(name, now.standby->version, PublicReason(now.standby_reason));
  }
  std::unique_ptr<Serving> next = now.Keep();
  next->traffic_share = ParseShare(traffic_percent);
  next->shadow_share = ParseShare(shadow_percent);
  if (next->traffic_share != 0 || next->shadow_share != 0) {
    next->trial = {now.standby->version, traffic_percent, shadow_percent};
  }
  RegistryChange change;
  change.kind = EventKind::kPromoted;
  change.version = now.standby->version;
  change.traffic_percent = traffic_percent;
  change.shadow_percent = shadow_percent;
  return Apply(*entry, std::move(change), std::move(next), commit);
}

// --- Removing -----------------------------------------------------------------------

absl::StatusOr<RegistryChange> Registry::Quarantine(const std::string& name, uint32_t version,
                                                    const std::string& reason,
                                                    const Commit& commit) {
  absl::MutexLock change_lock(&change_mu_);
  ASSIGN_OR_RETURN(Entry* const entry, FindForChange(name, std::nullopt));
  const Serving& now = *entry->serving.load(std::memory_order_relaxed);
  const auto active = now.active;
  const auto standby = now.standby;
  const bool is_active = active != nullptr && active->version == version;
  const bool is_standby = standby != nullptr && standby->version == version;
  if (!is_active && !is_standby) {
    return errors::UnknownVersion(name, version, FindNumber(active));
  }
  const auto faulted = is_active ? active : standby;
  RegistryChange change;
  change.kind = EventKind::kQuarantined;
  change.version = version;
  change.reason = reason.empty() ? "no reason was given" : reason;
  const bool previous = is_active && standby != nullptr && now.standby_reason.empty() &&
                        standby->state.load(std::memory_order_relaxed) == VersionState::kPrevious;
  std::unique_ptr<Serving> next = is_active ? now.Swap(options_.time->Now()) : now.Keep();
  next->standby_reason = change.reason;
  if (is_active && !previous && standby != nullptr) {
    // The standby never served, or is quarantined itself, so it is not activated without a
    // request. There is one standby, and it is the version that was quarantined last.
    change.retired.push_back(standby->version);
    next->active = nullptr;
    next->active_label.clear();
  }
  absl::StatusOr<RegistryChange> done = Apply(*entry, std::move(change), std::move(next), commit);
  faulted->state.store(VersionState::kQuarantined, std::memory_order_relaxed);
  if (previous) standby->state.store(VersionState::kActive, std::memory_order_relaxed);
  return done;
}

void Registry::RecordRemoved(const std::string& name, uint32_t version) {
  std::erase_if(removed_, [&](const auto& removed) { return removed.first == name; });
  removed_.emplace_back(name, version);
  if (removed_.size() <= kMaxRemovedNames) return;
  version_floor_ = std::max(version_floor_, removed_.front().second);
  removed_.pop_front();
}

absl::StatusOr<RegistryChange> Registry::Remove(
    const std::string& name, std::optional<uint64_t> expected, const Commit& commit,
    std::vector<std::shared_ptr<absl::Notification>>* drained) {
  std::unique_ptr<Entry> removed;  // Destroyed without locks.
  absl::MutexLock change_lock(&change_mu_);
  ASSIGN_OR_RETURN(Entry* const entry, FindForChange(name, expected));
  const Serving& now = *entry->serving.load(std::memory_order_relaxed);
  RegistryChange change;
  change.kind = EventKind::kRemoved;
  change.name = name;
  change.version = change.previous_version = FindNumber(now.active);
  for (const auto& version : {now.active, now.standby}) {
    if (version == nullptr) continue;
    change.retired.push_back(version->version);
    if (drained != nullptr) drained->push_back(version->drained);
  }
  ASSIGN_OR_RETURN(const uint64_t revision, CommitInOrder(change, commit));
  change.revision = revision;
  RecordRemoved(name, entry->last_version);
  for (const auto& version : {now.active, now.standby}) {
    if (version == nullptr) continue;
    version->state.store(VersionState::kRetired, std::memory_order_relaxed);
  }
  absl::WriterMutexLock lock(&mu_);
  for (const auto& version : {now.active, now.standby}) {
    if (version != nullptr) KeepStats(version);
  }
  const auto found = operators_.find(name);
  removed = std::move(found->second);
  operators_.erase(found);
  changes_.fetch_add(1, std::memory_order_seq_cst);
  change.switched_at = std::chrono::steady_clock::now();
  return change;
}

// --- Restoring ----------------------------------------------------------------------

// The function is long because nothing is published before all versions have been restored: until
// then, the entry and what serves are local variables of it.
absl::Status Registry::Restore(const RestoredOperator& op) {
  if (op.versions.empty()) return absl::OkStatus();
  absl::MutexLock change_lock(&change_mu_);
  auto entry = std::make_unique<Entry>();
  entry->last_version = op.last_version;
  auto serving = std::make_unique<Serving>();
  for (const RestoredVersion& restored : op.versions) {
    RETURN_IF_ERROR(CheckInstallLocked(op.name, restored.spec, 0));
    ASSIGN_OR_RETURN(ParsedSpec parsed, ParseSpec(restored.spec));
    const bool bytecode = restored.spec.kind == OperatorKind::kBytecode;
    if (entry->op == nullptr) {
      entry->op =
          std::make_shared<Operator>(op.name, restored.spec.signature, parsed.signature, bytecode);
    } else if (entry->op->bytecode() != bytecode) {
      return errors::OtherKind(op.name, entry->op->bytecode());
    } else if (!entry->op->signature().SameAs(parsed.signature)) {
      return errors::OtherSignature(op.name, restored.spec.signature, entry->op->signature_text());
    }
    entry->last_version = std::max(entry->last_version, restored.version);

    const bool active = restored.state == VersionState::kActive;
    const bool standby = restored.state == VersionState::kLoaded ||
                         restored.state == VersionState::kPrevious ||
                         (restored.state == VersionState::kQuarantined && restored.in_slot);
    auto version = std::make_shared<OperatorVersion>();
    version->op = entry->op;
    version->version = restored.version;
    version->spec = restored.spec;
    version->split = parsed.split;
    version->stats = MakeStats(op.name, restored.version);
    version->payload = restored.payload;
    version->state = restored.state;
    if (!active && !standby) {
      absl::WriterMutexLock lock(&mu_);
      RecordRetired(*entry, *version, restored.state, restored.quarantine_reason);
      continue;
    }
    if ((active ? serving->active : serving->standby) != nullptr) {
      return errors::DuplicateVersionRole(op.name, restored.version);
    }
    if (bytecode) {
      version->native = std::make_shared<NativeForm>();
    } else {
      version->slots = slots_;
      if (slots_->AcquireExactly(restored.slot)) {
        version->slot = restored.slot;
      } else if (const auto slot = slots_->Acquire(absl::InfinitePast()); slot.has_value()) {
        version->slot = *slot;
      } else {
        return errors::NoFreeSlot(slots_->capacity());
      }
      slots_->SetHolder(version->slot, version);
    }
    if (active) {
      serving->active = std::move(version);
      serving->active_label = restored.label;
      serving->active_since = options_.time->Now();
    } else {
      serving->standby = std::move(version);
      serving->standby_label = restored.label;
      if (restored.state == VersionState::kQuarantined) {
        serving->standby_reason =
            restored.quarantine_reason.empty() ? "no reason was given" : restored.quarantine_reason;
      }
    }
  }
  const bool may_try =
      serving->active != nullptr && serving->standby != nullptr &&
      serving->standby_reason.empty() && serving->standby->version == op.trial.version &&
      IsValidPercent(op.trial.traffic_percent) && IsValidPercent(op.trial.shadow_percent);
  if (may_try) {
    serving->trial = op.trial;
    serving->traffic_share = ParseShare(op.trial.traffic_percent);
    serving->shadow_share = ParseShare(op.trial.shadow_percent);
  }
  entry->revision.store(op.revision, std::memory_order_release);
  entry->serving.store(serving.release(), std::memory_order_seq_cst);
  absl::WriterMutexLock lock(&mu_);
  operators_[op.name] = std::move(entry);
  changes_.fetch_add(1, std::memory_order_seq_cst);
  return absl::OkStatus();
}

void Registry::RestoreRemoved(const std::string& name, uint32_t version) {
  absl::MutexLock change_lock(&change_mu_);
  RecordRemoved(name, version);
}

}  // namespace resident
