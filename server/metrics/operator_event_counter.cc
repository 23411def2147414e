#include "server/metrics/operator_event_counter.h"

#include <array>
#include <utility>

namespace resident {
namespace {

constexpr size_t kEventsRead = 64;

constexpr std::array<std::pair<EventKind, const char*>, 10> kKinds = {{
    {EventKind::kInstalled, "installed"},
    {EventKind::kRejected, "rejected"},
    {EventKind::kActivated, "activated"},
    {EventKind::kRolledBack, "rolled_back"},
    {EventKind::kRemoved, "removed"},
    {EventKind::kPromoted, "promoted"},
    {EventKind::kQuarantined, "quarantined"},
    {EventKind::kRetired, "retired"},
    {EventKind::kGeneration, "generation"},
    {EventKind::kRegressed, "regressed"},
}};

}  // namespace

OperatorEventCounter::OperatorEventCounter(OperatorManager* manager)
    : manager_(manager),
      after_(manager->revision()),
      subscription_(manager->Subscribe([this] { Count(); })) {}

OperatorEventCounter::~OperatorEventCounter() { manager_->Unsubscribe(subscription_); }

void OperatorEventCounter::Count() {
  absl::MutexLock lock(&mu_);
  while (true) {
    const auto events = manager_->EventsAfter(after_, kEventsRead);
    if (!events.ok()) {
      // More events came at once than the manager keeps; the lost ones are not counted.
      after_ = manager_->revision();
      return;
    }
    if (events->empty()) return;
    for (const OperatorEvent& event : *events) ++counts_[event.kind];
    after_ = events->back().revision;
  }
}

std::map<std::string, uint64_t> OperatorEventCounter::counts() const {
  absl::MutexLock lock(&mu_);
  std::map<std::string, uint64_t> by_name;
  for (const auto& [kind, name] : kKinds) {
    const auto found = counts_.find(kind);
    by_name[name] = found == counts_.end() ? 0 : found->second;
  }
  return by_name;
}

}  // namespace resident
