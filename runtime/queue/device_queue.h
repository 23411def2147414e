// DeviceQueue: fair admission of many clients' batches to one device's ring.
//
// Each client has a bounded queue of batches. The queues are served in turn, a
// quantum of tasks at a time, so that a client with a million tasks queued does not
// delay another's one. Tasks go into the ring while it has room, by the time that their
// operators take (ring_backlog.h); completions are consumed in batches and recorded in
// their Batch.
//
// One thread runs the dispatch loop while there is work, and sleeps otherwise. A caller that
// waits for a small batch may run the dispatch loop inline (Enqueue's `inline_time`), which
// saves two thread switches for a lone task.
//
// The queue outlives engines. SetRing() gives it the ring of a new engine; LoseRing()
// ends what was in flight in the old one:
//
//                SetRing           BeginPark; Hold, then ParkIfDrained
//     (no ring) ─────────▶ running ────────────────────────────────────▶ parked
//         ▲                 │   ▲                EndPark                  │ │
//         │                 │   └─────────────────────────────────────────┘ │
//         └─────────────────┴───────────────────────────────────────────────┘
//                LoseRing
//
// Thread safety: all members may be called from any thread.
//
//   queue.AddClient(id);
//   absl::Status taken = queue.Enqueue(id, batch);   // batch->done follows if OK.
#ifndef RESIDENT_RUNTIME_QUEUE_DEVICE_QUEUE_H_
#define RESIDENT_RUNTIME_QUEUE_DEVICE_QUEUE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/queue/batch.h"

namespace resident {

class HostRing;  // runtime/ring/host_ring.h

using ClientId = uint64_t;

// OverdueTask::operator_slot of a kernel that completes nothing at all.
inline constexpr uint32_t kNoOperatorSlot = UINT32_MAX;

// How long a task of the operator in a slot may run.
using TimeLimit = std::function<std::chrono::nanoseconds(uint32_t operator_slot)>;

// A task found running for longer than the limit.
struct OverdueTask {
  uint64_t sequence;
  uint32_t operator_slot;
  std::chrono::nanoseconds running;
};

// A task that a worker was running (when its engine was lost, say).
struct RunningTask {
  uint64_t sequence = 0;
  uint32_t worker = 0;
  ClientId client = 0;
  TaskDescriptor task{};
  // One for each parameter; empty for a task in compact form (task.words has them).
  std::vector<Argument> arguments;
};

class DeviceQueue {
 public:
  struct Options {
    // Tasks that one client may have queued; see Limits::max_queued_tasks.
    uint64_t max_queued_tasks = 8u << 20;
    // Bytes of descriptors and arguments in a client's batches that have not ended; see
    // Limits::max_client_host_mib.
    uint64_t max_queued_bytes = uint64_t{2} << 30;
    // Tasks that a client may submit before the next one's turn.
    uint32_t quantum_tasks = 256;
    // How long the dispatch loop looks for completions without a pause before it sleeps
    // between two looks. Longer costs processor time, shorter costs latency.
    std::chrono::microseconds spin{50};
  };

  struct Counters {
    uint64_t queued_tasks = 0;     // Not yet in the ring, nor skipped.
    uint64_t completed_tasks = 0;  // With an outcome, ever.
    uint32_t in_flight = 0;
    uint64_t next_sequence = 0;
    uint32_t ring_slots = 0;
  };
  struct ClientCounters {
    uint64_t queued_tasks = 0;
    uint64_t completed_tasks = 0;
  };

  explicit DeviceQueue(const Options& options);
  // Ends everything queued or in flight as UNAVAILABLE.
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  void AddClient(ClientId client);
  // Cancels what the client has queued (tasks in the ring still complete) and
  // forgets it once its last batch is done.
  void RemoveClient(ClientId client);

  // Takes a batch. With `inline_time`, the calling thread runs the dispatch loop until the
  // batch has ended or that time has passed; `done` may then be called from within. Errors:
  // RESOURCE_EXHAUSTED (the client's queue is full), UNAVAILABLE (no engine, stopped, or
  // batch->epoch is not the present one), NOT_FOUND (client). On an error `done` is not called.
  absl::Status Enqueue(ClientId client, std::shared_ptr<Batch> batch,
                       std::chrono::nanoseconds inline_time = std::chrono::nanoseconds(0));

  // Tells the queue that batch->cancelled was set, so that its tasks are skipped
  // at once and not when their turn comes.
  void NoteCancelled();

  // A new engine's ring; returns its epoch. REQUIRES: no ring.
  uint64_t SetRing(std::shared_ptr<HostRing> ring);
  uint64_t epoch() const;

  // The engine has ended. Tasks in flight of the operator slots in `suspects` end
  // ABORTED, the others UNAVAILABLE, all with `cause`; so do queued ones of this
  // epoch, which did not run.
  void LoseRing(const std::string& cause, const std::vector<uint32_t>& suspects);

  // Stops submitting, and submits the park marker behind what is in flight: at once, or, if
  // clients keep the ring full, as soon as a task has completed. The kernel leaves once that
  // is done; the caller waits for the engine to say so, and only then ends the park. Tasks
  // queue meanwhile. FAILED_PRECONDITION: parked already, or no ring.
  absl::Status BeginPark();
  // The kernel is back, or a hold ends: what is queued is submitted, by this call.
  void EndPark();

  // The same in two steps, for a park that must not wait for a task: Hold stops
  // submitting; ParkIfDrained runs the dispatch loop once and, if nothing is in flight then,
  // submits the park marker and returns true. Until then EndPark takes the hold back.
  // FAILED_PRECONDITION: parked or held already, or no ring.
  absl::Status Hold();
  bool ParkIfDrained();

  // Called from the dispatch loop when a task arrives while parked by idleness (see
  // BeginPark): the owner resumes the engine and calls EndPark.
  void OnWorkWhileParked(std::function<void()> callback);

  // Since when there has been nothing queued and nothing in flight;
  // time_point::max() while there is.
  Clock::time_point idle_since() const;

  // Tasks that a worker has been running for longer than `limit`, by breadcrumb.
  std::vector<OverdueTask> FindOverdue(std::chrono::nanoseconds limit);
  // The same with a limit for each operator slot; asked for kNoOperatorSlot where the
  // kernel takes up nothing at all.
  std::vector<OverdueTask> FindOverdue(const TimeLimit& limit);
  // Operator slots of the tasks that workers were running, by breadcrumb: the
  // suspects when an engine faults.
  std::vector<uint32_t> RunningSlots();
  // The tasks themselves.
  std::vector<RunningTask> RunningTasks();

  // The slot holds another operator from now on: what its tasks take is unknown until
  // the first completes, and few of them go into the ring until then.
  void ForgetEstimate(uint32_t operator_slot);

  Counters counters() const;
  ClientCounters client_counters(ClientId client) const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_DEVICE_QUEUE_H_
