// Batch: many tasks of one operator, and the outcome of each task, stored in columns.
// The gRPC services, the queue and the ring exchange tasks in this form.
//
// Lifetime: the server fills in the first part and enqueues the batch
// (device_queue.h); the queue submits its tasks to the ring and records outcomes;
// `done` is called exactly once, when every task has an outcome.
//
// Thread safety: before Enqueue the batch belongs to its creator; then to the queue
// (other threads may only set `cancelled`); after `done` to its creator again.
#ifndef RESIDENT_RUNTIME_QUEUE_BATCH_H_
#define RESIDENT_RUNTIME_QUEUE_BATCH_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/layout/task.h"
#include "runtime/queue/graph_nodes.h"
#include "runtime/queue/task_range.h"

namespace resident {

class OperatorStats;  // runtime/queue/operator_stats.h
class QueueUse;       // runtime/queue/queue_use.h

using Clock = std::chrono::steady_clock;

// How a task ended; the values are those of resident.v1.TaskStatus.
enum class TaskStatus : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,
  kDeadlineExceeded = 2,
  kCancelled = 3,
  kAborted = 4,
  kUnavailable = 5,
  kInternal = 6,
};

// Whether a task in the ring that ended so may have run in part: it was stopped, or its engine
// ended.
inline bool MayHaveRunInPart(TaskStatus status) {
  return status == TaskStatus::kAborted || status == TaskStatus::kUnavailable ||
         status == TaskStatus::kCancelled || status == TaskStatus::kDeadlineExceeded;
}

// Objects that must exist as long as something that refers to them. The few of most batches need no
// allocation.
using KeptAlive = absl::InlinedVector<std::shared_ptr<const void>, 4>;

struct Batch {
  // --- Filled in by the creator -----------------------------------------------

  // One descriptor for each task: operator slot, flags and words. The ring fills in
  // `token`. Empty if there is a range.
  std::vector<TaskDescriptor> tasks;
  // If not null, the tasks. Not for in-order batches, and not with wants_results.
  std::unique_ptr<const TaskRange> range;
  // If not null, the only task is a quantum of a graph: a GraphDescriptor.
  std::unique_ptr<const GraphNodes> graph;
  // Tasks not in compact form: task i's arguments are
  // arguments[i * arguments_per_task ...]. 0: all tasks are compact.
  uint32_t arguments_per_task = 0;
  std::vector<Argument> arguments;
  // Task i + 1 is submitted after task i completed.
  bool in_order = false;
  // Whether the queue fills in `results`.
  bool wants_results = false;
  // Tasks that are not in the ring at this time are skipped.
  Clock::time_point deadline = Clock::time_point::max();
  // Worker time that one of its tasks may take, in nanoseconds; 0: unknown (ring_backlog.h).
  uint64_t task_bound_ns = 0;
  // Whether one of its tasks may occupy a worker for longer than other clients should wait
  // (ring_backlog.h).
  bool long_tasks = false;
  // Epoch of the engine that the addresses in the tasks belong to: DeviceQueue::epoch()
  // when the batch was created. Tasks that are not submitted when that engine ends
  // become UNAVAILABLE.
  uint64_t epoch = 0;
  // Counters of the operator version. Outlives the batch.
  OperatorStats* stats = nullptr;
  // Kept alive until the batch is destroyed: buffers, staging memory.
  KeptAlive keep_alive;
  // Called once, from any thread, without locks held. Must not block.
  std::function<void(Batch&)> done;

  // --- Any thread may set this at any time ------------------------------------

  // Tasks not yet in the ring are skipped from now on, and those that run are stopped.
  std::atomic<bool> cancelled{false};
  // If not null, tells whether this task was cancelled by itself. Called from any thread.
  bool (*task_cancelled)(const Batch&, uint32_t index) = nullptr;

  // --- Filled in by the queue -------------------------------------------------

  // One element for each task in each of these. Of a range: `device_ns` is empty unless the range
  // has times; the other two are empty while no task has failed.
  std::vector<TaskStatus> status;
  std::vector<uint32_t> device_ns;
  std::vector<uint16_t> detail;                            // 0: the device reported none.
  std::vector<std::array<uint8_t, kResultBytes>> results;  // Empty without wants_results.
  // Why tasks ended ABORTED or UNAVAILABLE; empty otherwise.
  std::string cause;
  // Of a graph that ended with its engine: Breadcrumb::task of a worker that was running a
  // suspected operator.
  std::optional<uint32_t> suspect;

  uint64_t client = 0;            // The client that enqueued it.
  std::shared_ptr<QueueUse> use;  // Counts its tasks and bytes for that client.
  uint32_t submitted = 0;         // Tasks that were submitted to the ring, or skipped.
  uint32_t finished = 0;          // Tasks with an outcome.
  uint32_t failed = 0;            // Tasks with an outcome that is not OK.
  uint32_t skipped = 0;           // Tasks that did not reach the ring: the last ones.
  // Of a range: the tasks that ran, and the worker time that they took.
  uint32_t range_ran = 0;
  uint64_t range_ns = 0;
  Clock::time_point enqueued_at;

  uint32_t count() const { return range ? range->count : static_cast<uint32_t>(tasks.size()); }
  uint16_t operator_slot(uint32_t i) const {
    return range ? range->descriptor.operator_slot : tasks[i].operator_slot;
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_BATCH_H_
