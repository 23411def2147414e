// Batch: many tasks of one operator on their way through a device, and what became
// of each. The columnar form of everything between the gRPC services and the ring.
//
// Life: the server fills in the first part and enqueues the batch
// (device_queue.h); the queue submits its tasks to the ring and records outcomes;
// `done` is called exactly once, when every task has one.
//
// Thread safety: until Enqueue the batch belongs to its maker; from then until
// `done` to the queue (only `cancelled` may be touched); afterwards to its maker.
#ifndef RESIDENT_RUNTIME_QUEUE_BATCH_H_
#define RESIDENT_RUNTIME_QUEUE_BATCH_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/layout/task.h"

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

struct Batch {
  // --- Filled in by the maker -------------------------------------------------

  // One descriptor for each task: operator slot, flags and words. `token` is the
  // ring's to fill in.
  std::vector<TaskDescriptor> tasks;
  // Tasks not in compact form: task i's arguments are
  // arguments[i * arguments_per_task ...]. 0: all tasks are compact.
  uint32_t arguments_per_task = 0;
  std::vector<Argument> arguments;
  // Task i + 1 is submitted after task i completed.
  bool in_order = false;
  // Whether `results` is wanted.
  bool wants_results = false;
  // Tasks not in the ring by then are skipped.
  Clock::time_point deadline = Clock::time_point::max();
  // Worker time that one of its tasks may take, in nanoseconds; 0: unknown (ring_backlog.h).
  uint64_t task_bound_ns = 0;
  // Epoch of the engine that the addresses in the tasks belong to
  // (DeviceQueue::epoch() when it was made): tasks not submitted when that engine
  // ends are UNAVAILABLE.
  uint64_t epoch = 0;
  // Counters of the operator version. Outlives the batch.
  OperatorStats* stats = nullptr;
  // Kept alive until the batch is destroyed: buffers, staging memory.
  std::vector<std::shared_ptr<const void>> keep_alive;
  // Called once, from any thread, without locks held. Must not block.
  std::function<void(Batch&)> done;

  // --- May be set by anybody at any time --------------------------------------

  // Tasks not yet in the ring are skipped from now on.
  std::atomic<bool> cancelled{false};

  // --- Filled in by the queue -------------------------------------------------

  std::vector<TaskStatus> status;   // One for each task.
  std::vector<uint32_t> device_ns;  // Likewise.
  std::vector<uint16_t> detail;     // Likewise; 0 unless the device reported one.
  std::vector<std::array<uint8_t, kResultBytes>> results;  // If wanted.
  // Why tasks ended ABORTED or UNAVAILABLE; empty otherwise.
  std::string cause;

  uint64_t client = 0;            // Whose it is.
  std::shared_ptr<QueueUse> use;  // Where it is counted.
  uint32_t submitted = 0;         // Tasks given to the ring, or skipped.
  uint32_t finished = 0;          // Tasks with an outcome.
  uint32_t failed = 0;            // Of these, not OK.
  Clock::time_point enqueued_at;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_BATCH_H_
