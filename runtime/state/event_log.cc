#include "runtime/state/event_log.h"

#include <algorithm>
#include <utility>

#include "runtime/base/errors/state_errors.h"

namespace resident {
namespace {

// Events that are looked at under the lock at a time.
constexpr size_t kEventsAtOnce = 256;

OperatorEvent FromStored(const internal::StoredEvent& stored) {
  OperatorEvent event;
  event.revision = stored.revision();
  event.time_ms = stored.time_ms();
  event.kind = static_cast<EventKind>(stored.kind());
  event.operator_name = stored.operator_();
  event.version = stored.version();
  event.actor = stored.actor();
  event.content_hash = stored.content_hash();
  event.message = stored.message();
  event.generation = stored.generation();
  return event;
}

}  // namespace

void EventLog::Add(const std::vector<Event>& events) {
  std::vector<Event> dropped;  // Destroyed without the lock.
  absl::MutexLock lock(&mu_);
  for (const Event& event : events) {
    revision_ = event->revision();
    events_.push_back(event);
    if (events_.size() <= most_events_) continue;
    dropped.push_back(std::move(events_.front()));
    events_.pop_front();
  }
}

void EventLog::StartAt(uint64_t revision) {
  absl::MutexLock lock(&mu_);
  revision_ = revision;
}

uint64_t EventLog::revision() const {
  absl::MutexLock lock(&mu_);
  return revision_;
}

absl::StatusOr<std::vector<OperatorEvent>> EventLog::EventsAfter(uint64_t after,
                                                                 size_t most) const {
  std::vector<Event> found;
  {
    absl::MutexLock lock(&mu_);
    if (after >= revision_) return std::vector<OperatorEvent>();
    if (after + 1 < First()) return errors::EventsGone(after, First());
    const auto begin = events_.begin() + static_cast<int64_t>(after + 1 - First());
    const size_t count = std::min<size_t>(most, revision_ - after);
    found.assign(begin, begin + static_cast<int64_t>(count));
  }
  std::vector<OperatorEvent> list;
  for (const Event& event : found) list.push_back(FromStored(*event));
  return list;
}

std::vector<OperatorEvent> EventLog::EventsBefore(uint64_t before, const std::string& name,
                                                  size_t most) const {
  std::vector<OperatorEvent> list;
  uint64_t next = before == 0 ? UINT64_MAX : before;  // Revisions below it are to be looked at.
  while (list.size() < most) {
    std::vector<Event> some;
    {
      absl::MutexLock lock(&mu_);
      next = std::min(next, revision_ + 1);
      if (next <= First()) break;
      const auto end = events_.begin() + static_cast<int64_t>(next - First());
      const size_t count = std::min<size_t>(kEventsAtOnce, next - First());
      some.assign(end - static_cast<int64_t>(count), end);
    }
    next -= some.size();
    for (auto it = some.rbegin(); it != some.rend() && list.size() < most; ++it) {
      if (name.empty() || (*it)->operator_() == name) list.push_back(FromStored(**it));
    }
  }
  return list;
}

}  // namespace resident
