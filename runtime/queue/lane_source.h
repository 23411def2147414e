// LaneSource: what a device's queue sees of a local lane (server/lanes/lane.h): a source of batches
// that a client process publishes in memory which it shares with the daemon.
//
// The dispatch loop looks at the lanes that are hot, takes what they have and serves it in the turn
// of the lane's client. A lane that had nothing for a while falls asleep: it is not looked at until
// DeviceQueue::NoteLaneWork.
//
//              AddLane, NoteLaneWork
//   (asleep) ─────────────────────────▶ hot ── Take, ..., nothing for Options::lane_spin ──┐
//       ▲                                                                                  │
//       └──────────────────────────── FallAsleep ──────────────────────────────────────────┘
//
// Thread safety: the queue calls all members except Notify under its dispatch_mu_, one at a time;
// they must neither block nor call the queue. Notify is called without locks, from any thread.
#ifndef RESIDENT_RUNTIME_QUEUE_LANE_SOURCE_H_
#define RESIDENT_RUNTIME_QUEUE_LANE_SOURCE_H_

#include <cstdint>
#include <memory>

#include "runtime/queue/batch.h"

namespace resident {

class LaneSource {
 public:
  // The result of a Take.
  struct Visit {
    // What was taken. Null: nothing. It is not enqueued yet; its `epoch` is that of Take, and its
    // client has places for its tasks (Needs::standing), so that no limit refuses it.
    std::shared_ptr<Batch> batch;
    // Submissions that were read: those of `batch`, and those that have ended already because they
    // were refused or cancelled.
    uint32_t consumed = 0;
    // The lane's previous batch, which waits in its client's queue, was cancelled.
    bool cancelled = false;
  };

  virtual ~LaneSource() = default;

  // Whether there may be something to take.
  virtual bool Ready() const = 0;
  // Reads the next submissions, at most `max_tasks`, or as many as become one range. It returns no
  // batch while the previous one has tasks that are not yet in the ring. `epoch`: of the queue's
  // engine.
  virtual Visit Take(uint32_t max_tasks, uint64_t epoch) = 0;

  // The queue does not look at the lane any more: from now on the client announces submissions, and
  // the lane calls DeviceQueue::NoteLaneWork. Returns false if there is something that could be
  // taken now.
  virtual bool FallAsleep() = 0;
  // The queue looks at the lane again.
  virtual void WakeUp() = 0;

  // Wakes the client if it sleeps, because a Take has ended submissions.
  virtual void Notify() = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_LANE_SOURCE_H_
