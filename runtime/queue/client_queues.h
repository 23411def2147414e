// ClientQueues: what clients have queued for a device, and whose turn it is.
//
// Each client has a bounded queue of batches. Clients with something queued are served in
// turn, a quantum of tasks at a time. An in-order batch leaves its queue when its first
// task is submitted; ring_tasks.h sees to the rest of it, which is its client's as before
// (queue_use.h).
//
// Thread safety: one thread at a time (DeviceQueue's mu_).
//
// Invariants:
//   1. A client is in `turn_` exactly once while its queue is not empty, and not otherwise;
//      a removed client stays there until its queue is empty.
//   2. queued_tasks() is the sum of the clients' queued tasks: those neither in the ring nor
//      skipped, of in-order batches that are under way too.
//   3. A batch's bytes are its client's from Push until Ended.
//
//   absl::Status taken = queues.Push(client, batch, max_queued_tasks, max_queued_bytes);
//   while (!queues.empty() && ring_tasks.HasRoom()) {
//     published |= queues.ServeNext(quantum, &ring_tasks, &finished);
//   }
#ifndef RESIDENT_RUNTIME_QUEUE_CLIENT_QUEUES_H_
#define RESIDENT_RUNTIME_QUEUE_CLIENT_QUEUES_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/queue/batch.h"
#include "runtime/queue/batch_outcome.h"
#include "runtime/queue/device_queue.h"
#include "runtime/queue/queue_use.h"
#include "runtime/queue/ring_tasks.h"

namespace resident {

class ClientQueues {
 public:
  void Add(ClientId client);
  // Cancels what the client has queued and forgets it; false if there is none.
  bool Remove(ClientId client);

  // Queues a batch. NOT_FOUND: no such client. RESOURCE_EXHAUSTED: it would have more
  // than `max_queued_tasks` queued, or than `max_queued_bytes` of descriptors and
  // arguments in batches that have not ended, and has some.
  absl::Status Push(ClientId client, std::shared_ptr<Batch> batch, uint64_t max_queued_tasks,
                    uint64_t max_queued_bytes);

  // Whether nobody has a turn: what is queued, if anything, is of in-order batches that are
  // under way.
  bool empty() const { return turn_.empty(); }
  uint64_t queued_tasks() const { return all_->tasks(); }

  // Gives the client whose turn it is at most `quantum` tasks' room in the ring. Returns
  // whether a task was published. REQUIRES: not empty.
  bool ServeNext(uint32_t quantum, RingTasks* ring_tasks, FinishedBatches* finished);

  // Ends queued batches that were cancelled or are past their deadline.
  void SkipDoomed(FinishedBatches* finished);
  // Ends every queued batch.
  void SkipAll(TaskStatus status, const std::string& cause, FinishedBatches* finished);

  // A batch has ended: its tasks are added to its client's count, its bytes taken off.
  void Ended(const Batch& batch);
  DeviceQueue::ClientCounters counters(ClientId client) const;

 private:
  struct Client {
    std::deque<std::shared_ptr<Batch>> queue;
    std::shared_ptr<QueueUse> use;  // Its batches' too: those under way outlive it.
    uint64_t completed_tasks = 0;
    bool in_turn = false;
  };

  // Ends what is left of the client's batch number `position`, which leaves its queue.
  void Skip(Client& client, size_t position, TaskStatus status, const std::string& cause,
            FinishedBatches* finished);
  // Takes the batch number `position` out of the client's queue.
  static std::shared_ptr<Batch> Pop(Client& client, size_t position);

  absl::flat_hash_map<ClientId, std::shared_ptr<Client>> clients_;
  // Clients with something queued, in the order of their turns.
  std::deque<std::shared_ptr<Client>> turn_;
  const std::shared_ptr<QueueUse> all_ = std::make_shared<QueueUse>(nullptr);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_CLIENT_QUEUES_H_
