#include "runtime/state/state_model.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/limits.h"
#include "runtime/state/errors.h"

namespace resident {
namespace {

StoredVersion* FindVersion(StoredOperator& op, uint32_t version) {
  for (StoredVersion& candidate : op.versions) {
    if (candidate.version == version) return &candidate;
  }
  return nullptr;
}

// Removes the version from its slot. Keeps only the data for listings.
void Retire(StoredVersion& version) {
  if (version.state != VersionState::kQuarantined) version.state = VersionState::kRetired;
  version.in_slot = false;
  version.slot = kNoSlot;
  version.content = {};
  version.label.clear();
}

void DropOldVersions(StoredOperator& op) {
  size_t retired = std::count_if(op.versions.begin(), op.versions.end(),
                                 [](const StoredVersion& version) { return !version.in_slot; });
  std::erase_if(op.versions, [&](const StoredVersion& version) {
    if (version.in_slot || retired <= kMaxRetiredVersions) return false;
    --retired;
    return true;
  });
}

StoredVersion NewVersion(const RegistryChange& change, const VersionContent& content) {
  StoredVersion version;
  version.version = change.version;
  version.in_slot = true;
  version.slot = change.slot;
  version.spec = *change.spec;
  version.spec.bytecode = nullptr;  // The bytecode is stored as a blob.
  version.content = content;
  version.label = change.label;
  return version;
}

}  // namespace

absl::Status StateModel::Check(const RegistryChange& change) const {
  const bool installs = change.kind == EventKind::kInstalled;
  const auto found = operators.find(change.name);
  if (found == operators.end() && !installs) {
    return errors::InconsistentRecord(
        absl::StrCat("it changes operator '", change.name, "', which is not installed"));
  }
  if (installs && change.spec == nullptr) {
    return errors::InconsistentRecord(
        absl::StrCat("it installs operator '", change.name, "' without its specification"));
  }
  if (found == operators.end()) return absl::OkStatus();
  for (const uint32_t version : {change.active_version, change.standby_version}) {
    if (version == 0 || (installs && version == change.version)) continue;
    const auto& versions = found->second.versions;
    if (std::none_of(versions.begin(), versions.end(), [&](const StoredVersion& candidate) {
          return candidate.version == version && candidate.in_slot;
        })) {
      return errors::InconsistentRecord(absl::StrCat("it refers to version ", version,
                                                     " of operator '", change.name,
                                                     "', which is not in a slot"));
    }
  }
  return absl::OkStatus();
}

void StateModel::Apply(const RegistryChange& change, const VersionContent& content) {
  assert(Check(change).ok());
  if (change.kind == EventKind::kRemoved) {
    const auto same = std::find_if(removed.begin(), removed.end(), [&](const auto& removal) {
      return removal.name == change.name;
    });
    if (same != removed.end()) {
      // The first of a full list also has the numbers of names that were dropped.
      if (same == removed.begin() && removed.size() > kMaxRemovedNames) {
        uint32_t& next = std::next(same)->last_version;
        next = std::max(next, same->last_version);
      }
      removed.erase(same);
    }
    removed.push_back({change.name, operators[change.name].last_version});
    operators.erase(change.name);
    // One more than the registry keeps, so that the registry also gets the one that it drops.
    if (removed.size() > kMaxRemovedNames + 1) {
      const uint32_t floor = removed.front().last_version;
      removed.pop_front();
      removed.front().last_version = std::max(floor, removed.front().last_version);
    }
    return;
  }
  StoredOperator& op = operators[change.name];
  op.name = change.name;
  op.revision = change.revision;
  if (change.kind == EventKind::kInstalled) {
    for (StoredVersion& version : op.versions) {
      if (version.label == change.label) version.label.clear();
    }
    op.versions.push_back(NewVersion(change, content));
    op.last_version = std::max(op.last_version, change.version);
  }
  if (change.kind == EventKind::kQuarantined) {
    if (StoredVersion* const version = FindVersion(op, change.version)) {
      version->state = VersionState::kQuarantined;
      version->quarantine_reason = change.reason;
    }
  }
  // A version also loses its slot if the registry could not restore it after a start (its contents
  // were damaged) and it is not active or standby after this change.
  for (StoredVersion& version : op.versions) {
    const bool retired = std::find(change.retired.begin(), change.retired.end(), version.version) !=
                         change.retired.end();
    const bool stays =
        version.version == change.active_version || version.version == change.standby_version;
    if (retired || (version.in_slot && !stays)) Retire(version);
  }
  // States follow from the versions that are active and standby after the change, not from the kind
  // of the change: an earlier change of the registry may never have been written (a quarantine, on
  // a full disk).
  if (StoredVersion* const active = FindVersion(op, change.active_version)) {
    active->state = VersionState::kActive;
    active->quarantine_reason.clear();  // A quarantined version can be activated with force.
  }
  StoredVersion* const standby = FindVersion(op, change.standby_version);
  if (standby != nullptr && standby->state == VersionState::kActive) {
    standby->state =
        change.kind == EventKind::kRolledBack ? VersionState::kLoaded : VersionState::kPrevious;
  }
  const bool trial = change.kind == EventKind::kPromoted &&
                     (change.traffic_percent != 0 || change.shadow_percent != 0);
  op.trial_version = trial ? change.version : 0;
  op.traffic_percent = trial ? change.traffic_percent : 0;
  op.shadow_percent = trial ? change.shadow_percent : 0;
  DropOldVersions(op);
}

void StateModel::AddEvent(OperatorEvent event, size_t max_events) {
  revision = event.revision;
  if (event.kind == EventKind::kGeneration) generation = event.generation;
  events.push_back(std::make_shared<const OperatorEvent>(std::move(event)));
  while (events.size() > max_events) events.pop_front();
}

std::string StateModel::ContentHash(const std::string& name, uint32_t version) const {
  const auto found = operators.find(name);
  if (found == operators.end()) return "";
  for (const StoredVersion& candidate : found->second.versions) {
    if (candidate.version == version) return candidate.spec.content_hash;
  }
  return "";
}

std::set<std::string> StateModel::UsedBlobs() const {
  std::set<std::string> used;
  for (const auto& [name, op] : operators) {
    for (const StoredVersion& version : op.versions) {
      for (const auto& [blob, sha256] : version.content.blobs) used.insert(sha256);
    }
  }
  for (const auto& [id, graph] : graphs) used.insert(id);
  for (const auto& [name, stored] : models) {
    for (const StoredModel::Version& version : stored.versions) {
      used.merge(version.Blobs());
    }
  }
  return used;
}

std::set<std::string> StateModel::UsedBufferContents() const {
  std::set<std::string> used;
  for (const auto& [id, buffer] : buffers) used.insert(buffer.sha256);
  return used;
}

}  // namespace resident
