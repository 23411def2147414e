#include "runtime/operators/install/shadow_tally.h"

namespace resident {

void ShadowTally::Add(const OperatorVersion& version, uint64_t tasks, uint64_t mismatches) {
  absl::MutexLock lock(&mu_);
  const auto [entry, fresh] = entries_.try_emplace({version.op->name(), version.version});
  if (fresh) {
    entry->second.gone = version.drained;
    std::erase_if(entries_, [](const auto& other) { return other.second.gone->HasBeenNotified(); });
  }
  entry->second.counters.tasks += tasks;
  entry->second.counters.mismatches += mismatches;
}

ShadowTally::Counters ShadowTally::Get(const std::string& name, uint32_t version) const {
  absl::MutexLock lock(&mu_);
  const auto entry = entries_.find({name, version});
  return entry == entries_.end() ? Counters() : entry->second.counters;
}

void ShadowTally::Forget(const std::string& name, uint32_t version) {
  absl::MutexLock lock(&mu_);
  entries_.erase({name, version});
}

size_t ShadowTally::size() const {
  absl::MutexLock lock(&mu_);
  return entries_.size();
}

}  // namespace resident
