#include "runtime/state/state_model.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/state_errors.h"
#include "runtime/base/limits.h"
#include "runtime/model/version_state.h"

namespace resident {
namespace {

uint32_t Code(VersionState state) { return static_cast<uint32_t>(state); }

internal::StoredVersion* FindVersion(internal::StoredOperator& op, uint32_t version) {
  for (internal::StoredVersion& candidate : *op.mutable_versions()) {
    if (candidate.version() == version) return &candidate;
  }
  return nullptr;
}

// Takes it out of its slot. Only what listings show is kept.
void Retire(internal::StoredOperator& op, uint32_t version) {
  internal::StoredVersion* const retired = FindVersion(op, version);
  if (retired == nullptr) return;
  if (retired->state() != Code(VersionState::kQuarantined)) {
    retired->set_state(Code(VersionState::kRetired));
  }
  retired->set_in_slot(false);
  retired->clear_slot();
  retired->clear_body();
  retired->clear_blobs();
}

void DropOldVersions(internal::StoredOperator& op) {
  auto* const versions = op.mutable_versions();
  int retired = std::count_if(versions->begin(), versions->end(),
                              [](const auto& version) { return !version.in_slot(); });
  for (auto it = versions->begin(); it != versions->end() && retired > int{kMaxRetiredVersions};) {
    if (it->in_slot()) {
      ++it;
      continue;
    }
    it = versions->erase(it);
    --retired;
  }
}

StoredVersion FromStored(const internal::StoredVersion& stored) {
  StoredVersion version;
  version.version = stored.version();
  version.state = static_cast<VersionState>(stored.state());
  version.in_slot = stored.in_slot();
  version.slot = stored.has_slot() ? stored.slot() : kNoSlot;
  version.spec.kind = static_cast<OperatorKind>(stored.kind());
  version.spec.summary = stored.summary();
  version.spec.signature = stored.signature();
  version.spec.split = stored.split();
  version.spec.content_hash = stored.content_hash();
  version.spec.installed_by = stored.installed_by();
  version.spec.installed_ms = stored.installed_ms();
  version.spec.task_time_limit = std::chrono::milliseconds(stored.task_time_limit_ms());
  version.spec.scratch_bytes = stored.scratch_bytes();
  version.spec.allow_spills = stored.allow_spills();
  version.content.body = stored.body();
  version.content.blobs = {stored.blobs().begin(), stored.blobs().end()};
  version.quarantine_reason = stored.quarantine_reason();
  return version;
}

}  // namespace

internal::StoredEvent ToStored(const OperatorEvent& event) {
  internal::StoredEvent stored;
  stored.set_revision(event.revision);
  stored.set_time_ms(event.time_ms);
  stored.set_kind(static_cast<uint32_t>(event.kind));
  stored.set_operator_(event.operator_name);
  stored.set_version(event.version);
  stored.set_actor(event.actor);
  stored.set_content_hash(event.content_hash);
  stored.set_message(event.message);
  stored.set_generation(event.generation);
  return stored;
}

std::string EmptyState() { return StateModel(0).Snapshot().SerializeAsString(); }

void StateModel::AddEvent(const internal::StoredEvent& event) {
  revision_ = std::max(revision_, event.revision());
  if (event.kind() == static_cast<uint32_t>(EventKind::kGeneration)) {
    generation_ = event.generation();
  }
  events_.push_back(std::make_shared<const internal::StoredEvent>(event));
  if (events_.size() > most_events_) events_.pop_front();
}

absl::Status StateModel::CheckChange(const internal::StoredChange& change) const {
  const bool installs = change.kind() == static_cast<uint32_t>(EventKind::kInstalled);
  const auto found = operators_.find(change.name());
  if (found == operators_.end() && !installs) {
    return errors::RecordDoesNotFit(
        absl::StrCat("it changes operator '", change.name(), "', which is not installed"));
  }
  if (installs && (!change.has_installed() || change.installed().version() != change.version())) {
    return errors::RecordDoesNotFit(
        absl::StrCat("it installs operator '", change.name(), "' without saying what"));
  }
  if (found == operators_.end()) return absl::OkStatus();
  const auto is_there = [&](uint32_t version) {
    const auto& versions = found->second.versions();
    return std::any_of(versions.begin(), versions.end(), [&](const auto& candidate) {
      return candidate.version() == version && candidate.in_slot();
    });
  };
  for (const uint32_t version : {change.active_version(), change.standby_version()}) {
    if (version == 0 || is_there(version) || (installs && version == change.version())) continue;
    return errors::RecordDoesNotFit(absl::StrCat("it is about version ", version, " of operator '",
                                                 change.name(), "', which is not in a slot"));
  }
  return absl::OkStatus();
}

void StateModel::ApplyChange(const internal::StoredChange& change) {
  const auto kind = static_cast<EventKind>(change.kind());
  if (kind == EventKind::kRemoved) {
    internal::StoredRemoval removal;
    removal.set_name(change.name());
    removal.set_last_version(operators_[change.name()].last_version());
    operators_.erase(change.name());
    removed_.push_back(std::move(removal));
    // One more than the registry remembers, so that it sees the one that it drops.
    if (removed_.size() > kMaxRemovedNames + 1) {
      const uint32_t floor = removed_.front().last_version();
      removed_.pop_front();
      removed_.front().set_last_version(std::max(floor, removed_.front().last_version()));
    }
    return;
  }
  internal::StoredOperator& op = operators_[change.name()];
  op.set_name(change.name());
  op.set_revision(change.revision());
  if (kind == EventKind::kInstalled) {
    *op.add_versions() = change.installed();
    op.set_last_version(std::max(op.last_version(), change.version()));
  }
  if (kind == EventKind::kQuarantined) {
    internal::StoredVersion* const guilty = FindVersion(op, change.version());
    if (guilty != nullptr) {
      guilty->set_state(Code(VersionState::kQuarantined));
      guilty->set_quarantine_reason(change.reason());
    }
  }
  for (const uint32_t version : change.retired()) Retire(op, version);
  // Nor has a version its place that the registry did not get back after a start (its
  // contents were damaged) and that is not what this change left active or standby.
  for (const internal::StoredVersion& version : op.versions()) {
    if (version.in_slot() && version.version() != change.active_version() &&
        version.version() != change.standby_version()) {
      Retire(op, version.version());
    }
  }
  // By what the change left, and not by what it changed: the registry may have made one
  // before it that never came to the journal (a quarantine, on a full disk).
  if (internal::StoredVersion* const active = FindVersion(op, change.active_version())) {
    active->set_state(Code(VersionState::kActive));
    active->clear_quarantine_reason();  // It was activated with force.
  }
  internal::StoredVersion* const standby = FindVersion(op, change.standby_version());
  if (standby != nullptr && standby->state() == Code(VersionState::kActive)) {
    standby->set_state(
        Code(kind == EventKind::kRolledBack ? VersionState::kStaged : VersionState::kPrevious));
  }
  const bool trial = kind == EventKind::kPromoted &&
                     (change.traffic_percent() != 0 || change.shadow_percent() != 0);
  op.set_trial_version(trial ? change.version() : 0);
  op.set_traffic_percent(trial ? change.traffic_percent() : 0);
  op.set_shadow_percent(trial ? change.shadow_percent() : 0);
  DropOldVersions(op);
}

void StateModel::ApplySnapshot(const internal::StateSnapshot& snapshot) {
  revision_ = snapshot.revision();
  generation_ = snapshot.generation();
  operators_.clear();
  for (const auto& op : snapshot.operators()) operators_[op.name()] = op;
  removed_.assign(snapshot.removed().begin(), snapshot.removed().end());
  buffers_.clear();
  for (const auto& buffer : snapshot.buffers()) buffers_[buffer.id()] = buffer;
  highest_buffer_ = snapshot.highest_buffer();
  events_.clear();
  for (const auto& event : snapshot.events()) {
    events_.push_back(std::make_shared<const internal::StoredEvent>(event));
  }
  while (events_.size() > most_events_) events_.pop_front();
}

absl::Status StateModel::Check(const internal::StateRecord& record) const {
  uint64_t revision = revision_;
  for (const internal::StoredEvent& event : record.events()) {
    if (event.revision() != revision + 1) {
      return errors::RecordDoesNotFit(
          absl::StrCat("it has revision ", event.revision(), ", and the one before it ", revision));
    }
    revision = event.revision();
  }
  return record.has_change() ? CheckChange(record.change()) : absl::OkStatus();
}

void StateModel::Apply(const internal::StateRecord& record) {
  if (record.has_change()) ApplyChange(record.change());
  if (record.has_snapshot()) ApplySnapshot(record.snapshot());
  if (record.has_buffer()) {
    buffers_[record.buffer().id()] = record.buffer();
    highest_buffer_ = std::max(highest_buffer_, record.buffer().id());
  }
  if (record.what_case() == internal::StateRecord::kBufferFreed) {
    buffers_.erase(record.buffer_freed());
  }
  for (const internal::StoredEvent& event : record.events()) AddEvent(event);
}

internal::StateRecord StateModel::Snapshot() const {
  internal::StateRecord record;
  internal::StateSnapshot& snapshot = *record.mutable_snapshot();
  snapshot.set_revision(revision_);
  snapshot.set_generation(generation_);
  for (const auto& [name, op] : operators_) *snapshot.add_operators() = op;
  for (const auto& removal : removed_) *snapshot.add_removed() = removal;
  for (const auto& [id, buffer] : buffers_) *snapshot.add_buffers() = buffer;
  snapshot.set_highest_buffer(highest_buffer_);
  for (const Event& event : events_) *snapshot.add_events() = *event;
  return record;
}

std::vector<StoredOperator> StateModel::operators() const {
  std::vector<StoredOperator> list;
  for (const auto& [name, stored] : operators_) {
    StoredOperator op;
    op.name = name;
    op.revision = stored.revision();
    op.last_version = stored.last_version();
    op.trial_version = stored.trial_version();
    op.traffic_percent = stored.traffic_percent();
    op.shadow_percent = stored.shadow_percent();
    for (const auto& version : stored.versions()) op.versions.push_back(FromStored(version));
    std::sort(op.versions.begin(), op.versions.end(),
              [](const auto& a, const auto& b) { return a.version < b.version; });
    list.push_back(std::move(op));
  }
  return list;
}

std::vector<StoredRemoval> StateModel::removed() const {
  std::vector<StoredRemoval> list;
  for (const auto& removal : removed_) list.push_back({removal.name(), removal.last_version()});
  return list;
}

std::string StateModel::ContentHash(const std::string& name, uint32_t version) const {
  const auto found = operators_.find(name);
  if (found == operators_.end()) return "";
  for (const auto& candidate : found->second.versions()) {
    if (candidate.version() == version) return candidate.content_hash();
  }
  return "";
}

std::set<std::string> StateModel::UsedBlobs() const {
  std::set<std::string> used;
  for (const auto& [name, op] : operators_) {
    for (const auto& version : op.versions()) {
      for (const auto& [blob, sha256] : version.blobs()) used.insert(sha256);
    }
  }
  return used;
}

std::set<std::pair<uint64_t, uint64_t>> StateModel::UsedBufferFiles() const {
  std::set<std::pair<uint64_t, uint64_t>> used;
  for (const auto& [id, buffer] : buffers_) used.insert({id, buffer.sequence()});
  return used;
}

}  // namespace resident
