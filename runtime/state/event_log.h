// EventLog: the events that Watch and Audit show, which are those that are on disk.
//
// Its lock is its own and is held for some events at a time: who reads it is a gRPC thread
// that must not wait for a disk, and who adds to it answers a change.
//
// Invariant: revisions rise by one, so the place of each is known.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_STATE_EVENT_LOG_H_
#define RESIDENT_RUNTIME_STATE_EVENT_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "resident/internal/state.pb.h"
#include "runtime/model/operator_event.h"

namespace resident {

class EventLog {
 public:
  using Event = std::shared_ptr<const internal::StoredEvent>;

  // `most_events`: kept.
  explicit EventLog(size_t most_events) : most_events_(most_events) {}

  // REQUIRES: with the revisions that follow.
  void Add(const std::vector<Event>& events);
  // Of a journal whose last events are gone.
  void StartAt(uint64_t revision);

  // Of the last event; 0: none yet.
  uint64_t revision() const;
  // As StateStore's.
  absl::StatusOr<std::vector<OperatorEvent>> EventsAfter(uint64_t after, size_t most) const;
  std::vector<OperatorEvent> EventsBefore(uint64_t before, const std::string& name,
                                          size_t most) const;

 private:
  uint64_t First() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return revision_ + 1 - events_.size(); }

  const size_t most_events_;
  mutable absl::Mutex mu_;
  uint64_t revision_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_EVENT_LOG_H_
