// ClientQueues: the batches that clients have queued for a device, served in round-robin order.
//
// Each client has a bounded queue of batches. Clients with something to submit are served one
// after the other, a quantum of tasks at a time. An in-order batch leaves its queue with each of
// its tasks and is queued again when that task has completed (PushReady), so that its next task
// waits until the client is served, like any other task. Batches that were taken from the client's
// lanes take turns with both.
//
// Thread safety: one thread at a time (DeviceQueue's mu_).
//
// Invariants:
//   1. A client is in `round_` exactly once while it has something to submit, and not otherwise;
//      a removed client stays there until it has nothing to submit.
//   2. queued_tasks() is the sum of the clients' queued tasks: those neither in the ring nor
//      skipped. The remaining tasks of in-order batches count too.
//   3. A batch's bytes count against its client's limit from Push until Ended.
//   4. No queued batch has an earlier deadline than next_deadline().
//
//   absl::Status taken = queues.Push(client, batch, max_queued_tasks, max_queued_bytes);
//   published |= queues.ServeAll(quantum, &ring_tasks, &finished);
#ifndef RESIDENT_RUNTIME_QUEUE_CLIENT_QUEUES_H_
#define RESIDENT_RUNTIME_QUEUE_CLIENT_QUEUES_H_

#include <array>
#include <cassert>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/base/time_source.h"
#include "runtime/queue/batch.h"
#include "runtime/queue/batch_outcome.h"
#include "runtime/queue/device_queue.h"
#include "runtime/queue/queue_use.h"
#include "runtime/queue/ring_tasks.h"

namespace resident {

class ClientQueues {
 public:
  // `time`: for deadlines; outlives this object.
  explicit ClientQueues(const TimeSource& time) : time_(time) {}

  void Add(ClientId client);
  // Cancels the client's queued batches and removes it; returns false if it does not exist.
  bool Remove(ClientId client);

  // Queues a batch. NOT_FOUND: no such client. RESOURCE_EXHAUSTED: the client would have more
  // than `max_queued_tasks` queued, or more than `max_queued_bytes` of descriptors and arguments
  // in batches that have not ended. A client that has none of these may exceed the limit.
  absl::Status Push(ClientId client, std::shared_ptr<Batch> batch, uint64_t max_queued_tasks,
                    uint64_t max_queued_bytes);

  // Queues a batch of a lane of the client (lane_source.h), which no limit refuses. If the client
  // was removed, the batch ends as cancelled.
  void PushFromLane(ClientId client, std::shared_ptr<Batch> batch, FinishedBatches* finished);

  // Queues an in-order batch whose last submitted task has completed, or skips its remaining
  // tasks if it was cancelled, is past its deadline or belongs to a client that was removed.
  void PushReady(std::shared_ptr<Batch> batch, FinishedBatches* finished);

  // Whether no client has something to submit. In-order batches with a task in the ring may
  // still have queued tasks.
  bool empty() const { return round_.empty(); }
  uint64_t queued_tasks() const { return all_->tasks(); }

  // Serves the clients in turn, at most `quantum` tasks of each, until the ring has no room, or
  // none for the next task of any client. Returns whether a task was published.
  bool ServeAll(uint32_t quantum, RingTasks* ring_tasks, FinishedBatches* finished);

  // Ends queued batches that were cancelled or are past their deadline.
  void DropExpired(FinishedBatches* finished);
  // Before this time DropExpired finds no batch that is past its deadline.
  Clock::time_point next_deadline() const { return next_deadline_; }
  // Ends every queued batch.
  void SkipAll(TaskStatus status, const std::string& cause, FinishedBatches* finished);

  // A batch has ended: adds its tasks to its client's completed tasks and removes its bytes.
  void Ended(const Batch& batch);
  DeviceQueue::ClientCounters counters(ClientId client) const;

 private:
  using Queue = std::deque<std::shared_ptr<Batch>>;
  enum Source : uint8_t {
    kQueue,  // Batches with tasks to submit.
    kReady,  // In-order batches whose last submitted task has completed.
    kLanes,  // Batches that were taken from lanes.
    kSources,
  };

  struct Client {
    // By Source. They take turns, so that none waits until another is empty.
    std::array<Queue, kSources> queues;
    uint8_t next = kQueue;          // The one that is served next, if it is not empty.
    std::shared_ptr<QueueUse> use;  // Shared with its batches: those in the ring outlive it.
    uint64_t completed_tasks = 0;
    bool in_round = false;

    bool has_work() const {
      return !queues[kQueue].empty() || !queues[kReady].empty() || !queues[kLanes].empty();
    }
    // REQUIRES: has_work().
    Queue& Next() {
      assert(has_work());
      while (queues[next].empty()) Advance();
      return queues[next];
    }
    void Advance() { next = next + 1 == kSources ? 0 : next + 1; }
  };

  // Submits at most `quantum` tasks of the next client. Returns whether a task was published.
  // REQUIRES: not empty.
  bool ServeNext(uint32_t quantum, RingTasks* ring_tasks, FinishedBatches* finished);
  // Appends the client to `round_`, unless it is there already.
  void JoinRound(const std::shared_ptr<Client>& client);
  // Ends batches of the queue that were cancelled or are past their deadline.
  void DropExpired(Queue& queue, FinishedBatches* finished);

  const TimeSource& time_;
  absl::flat_hash_map<ClientId, std::shared_ptr<Client>> clients_;
  // Clients with something to submit, in the order in which they are served.
  std::deque<std::shared_ptr<Client>> round_;
  Clock::time_point next_deadline_ = Clock::time_point::max();
  const std::shared_ptr<QueueUse> all_ = std::make_shared<QueueUse>(nullptr);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_CLIENT_QUEUES_H_
