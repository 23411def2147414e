#include "server/models/table/model_table.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/operators/trial/traffic_share.h"
#include "server/models/table/errors.h"

namespace resident {

absl::StatusOr<ModelTable::Added> ModelTable::Add(const std::string& name,
                                                  std::shared_ptr<const ServedModel> served,
                                                  int64_t loaded_ms, const std::string& loaded_by) {
  absl::MutexLock lock(&mu_);
  if (closed_) return errors::Draining();
  const auto found = models_.find(name);
  if (found != models_.end()) {
    const Entry& entry = found->second;
    for (const auto& [number, version] : entry.versions) {
      if (version.served->content_hash() != served->content_hash()) continue;
      return Added{.version = number, .revision = entry.revision, .already_loaded = true};
    }
    if (entry.versions.size() >= kMaxVersions) {
      return errors::TooManyModelVersions(name, kMaxVersions);
    }
  } else if (models_.size() >= kMaxModels) {
    return errors::TooManyModels(kMaxModels);
  }
  Entry& entry = models_[name];
  const uint32_t number = ++last_numbers_[name];
  entry.revision = ++revision_;
  entry.versions[number] = {.version = number,
                            .state = State::kLoaded,
                            .served = std::move(served),
                            .loaded_ms = loaded_ms,
                            .loaded_by = loaded_by};
  return Added{.version = number, .revision = entry.revision, .already_loaded = false};
}

absl::StatusOr<ModelTable::Entry*> ModelTable::FindForChange(const std::string& name,
                                                             Revision expected) {
  const auto found = models_.find(name);
  if (found == models_.end()) return errors::NoSuchModel(name);
  Entry& entry = found->second;
  if (expected.value_or(entry.revision) != entry.revision) {
    return errors::StaleModelRevision(name, *expected, entry.revision);
  }
  return &entry;
}

ModelTable::Change ModelTable::Switch(Entry& entry, uint32_t to) {
  const uint32_t from = entry.active;
  const bool shared = std::exchange(entry.share_version, 0) != 0;
  entry.share_percent = 0;
  if (from == to) {
    if (shared) entry.revision = ++revision_;
    return {.version = to, .previous_version = from, .revision = entry.revision};
  }
  const auto set = [&](uint32_t number, State state) {
    if (number != 0) entry.versions[number].state = state;
  };
  set(entry.previous, State::kLoaded);
  set(from, State::kPrevious);
  set(to, State::kActive);
  entry.previous = from;
  entry.active = to;
  entry.revision = ++revision_;
  return {.version = to, .previous_version = from, .revision = entry.revision};
}

absl::StatusOr<ModelTable::Change> ModelTable::Activate(const std::string& name, uint32_t version,
                                                        Revision expected) {
  absl::MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Entry* const entry, FindForChange(name, expected));
  if (version == 0) version = entry->versions.rbegin()->first;
  if (!entry->versions.contains(version)) {
    return errors::NoSuchModelVersion(name, version, entry->active);
  }
  return Switch(*entry, version);
}

absl::StatusOr<ModelTable::Change> ModelTable::Rollback(const std::string& name,
                                                        Revision expected) {
  absl::MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Entry* const entry, FindForChange(name, expected));
  if (entry->previous == 0) return errors::NoPreviousModelVersion(name);
  return Switch(*entry, entry->previous);
}

absl::StatusOr<ModelTable::Change> ModelTable::Share(const std::string& name, uint32_t version,
                                                     double percent, Revision expected) {
  if (!IsValidPercent(percent)) return errors::ModelSharePercent(percent);
  absl::MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Entry* const entry, FindForChange(name, expected));
  if (version == 0) version = entry->versions.rbegin()->first;
  if (!entry->versions.contains(version)) {
    return errors::NoSuchModelVersion(name, version, entry->active);
  }
  if (entry->active == 0) return errors::NoActiveModelVersion(name);
  if (version == entry->active && percent != 0) return errors::ModelVersionIsActive(name, version);
  entry->share_version = percent == 0 ? 0 : version;
  entry->share_percent = percent;
  entry->shared = 0;
  entry->revision = ++revision_;
  return Change{
      .version = entry->active, .previous_version = entry->active, .revision = entry->revision};
}

absl::StatusOr<ModelTable::Change> ModelTable::Remove(const std::string& name, uint32_t version,
                                                      Revision expected) {
  std::vector<std::shared_ptr<const ServedModel>> removed;  // Destroyed without the lock.
  absl::MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Entry* const entry, FindForChange(name, expected));
  Change change{.previous_version = entry->active};
  if (version == 0) {
    change.revision = ++revision_;
    for (auto& [number, each] : entry->versions) removed.push_back(std::move(each.served));
    models_.erase(name);
    if (last_numbers_.size() > kMaxNumbers) {
      for (auto it = last_numbers_.begin(); it != last_numbers_.end();) {
        it = models_.contains(it->first) ? std::next(it) : last_numbers_.erase(it);
      }
    }
    return change;
  }
  const auto found = entry->versions.find(version);
  if (found == entry->versions.end()) {
    return errors::NoSuchModelVersion(name, version, entry->active);
  }
  if (version == entry->active) return errors::ModelVersionIsActive(name, version);
  if (version == entry->previous) entry->previous = 0;
  if (version == entry->share_version) entry->share_version = 0;
  removed.push_back(std::move(found->second.served));
  entry->versions.erase(found);
  change.version = entry->active;
  change.revision = entry->revision = ++revision_;
  if (!entry->versions.empty()) return change;
  models_.erase(name);
  return change;
}

void ModelTable::Restore(const StoredModel& stored,
                         std::vector<std::shared_ptr<const ServedModel>> versions) {
  absl::MutexLock lock(&mu_);
  assert(!models_.contains(stored.name));
  Entry& entry = models_[stored.name];
  entry.revision = stored.revision;
  entry.active = stored.active;
  entry.previous = stored.previous;
  entry.share_version = stored.share_version;
  entry.share_percent = stored.share_percent;
  revision_ = std::max(revision_, stored.revision);
  last_numbers_[stored.name] = stored.last_version;
  for (size_t i = 0; i < versions.size(); ++i) {
    const StoredModel::Version& from = stored.versions[i];
    const State state = from.version == stored.active     ? State::kActive
                        : from.version == stored.previous ? State::kPrevious
                                                          : State::kLoaded;
    entry.versions[from.version] = {.version = from.version,
                                    .state = state,
                                    .served = std::move(versions[i]),
                                    .loaded_ms = from.loaded_ms,
                                    .loaded_by = from.loaded_by};
  }
}

std::optional<StoredModel> ModelTable::Store(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(name);
  if (found == models_.end()) return std::nullopt;
  const Entry& entry = found->second;
  StoredModel stored{.name = name,
                     .revision = entry.revision,
                     .last_version = last_numbers_.at(name),
                     .active = entry.active,
                     .previous = entry.previous,
                     .share_version = entry.share_version,
                     .share_percent = entry.share_version == 0 ? 0 : entry.share_percent,
                     .versions = {}};
  for (const auto& [number, version] : entry.versions) {
    StoredModel::Version& to = stored.versions.emplace_back(version.served->stored());
    to.version = number;
    to.loaded_ms = version.loaded_ms;
    to.loaded_by = version.loaded_by;
  }
  return stored;
}

void ModelTable::Close() {
  std::map<std::string, Entry> removed;  // Destroyed without the lock.
  absl::MutexLock lock(&mu_);
  closed_ = true;
  removed.swap(models_);
}

absl::StatusOr<ModelTable::Found> ModelTable::Find(const std::string& name,
                                                   uint32_t version) const {
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(name);
  if (found == models_.end()) return errors::NoSuchModel(name);
  const Entry& entry = found->second;
  if (version == 0 && entry.active == 0) return errors::NoActiveModelVersion(name);
  if (version == 0) {
    const bool picked =
        entry.share_version != 0 && IsPicked(entry.shared, ParseShare(entry.share_percent));
    version = picked ? entry.share_version : entry.active;
  }
  const auto chosen = entry.versions.find(version);
  if (chosen == entry.versions.end()) {
    return errors::NoSuchModelVersion(name, version, entry.active);
  }
  return Found{.version = chosen->first, .served = chosen->second.served};
}

bool ModelTable::Has(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  return models_.contains(name);
}

ModelTable::Model ModelTable::Describe(const std::string& name, const Entry& entry) {
  Model model{.name = name,
              .revision = entry.revision,
              .versions = {},
              .share_version = entry.share_version,
              .share_percent = entry.share_version == 0 ? 0 : entry.share_percent};
  for (const auto& [number, version] : entry.versions) model.versions.push_back(version);
  return model;
}

absl::StatusOr<ModelTable::Model> ModelTable::Describe(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(name);
  if (found == models_.end()) return errors::NoSuchModel(name);
  return Describe(name, found->second);
}

std::vector<ModelTable::Model> ModelTable::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<Model> models;
  for (const auto& [name, entry] : models_) models.push_back(Describe(name, entry));
  return models;
}

}  // namespace resident
