// DeviceQueue: fair admission of many clients' batches to one device's ring.
//
// Each client has a bounded queue of batches. The queues are served in round-robin order, a
// quantum of tasks at a time, so that a client with a million queued tasks does not delay
// another client's single task. Tasks are submitted while the ring has room, estimated from
// the time that their operators take (ring_backlog.h). Completions are consumed in groups and
// recorded in their Batch.
//
// One thread runs the dispatch loop while there is work, and sleeps otherwise. A caller that
// waits for a small batch may run the dispatch loop inline (Enqueue's `inline_time`), which
// saves two thread switches for a lone task.
//
// The queue outlives engines. SetRing() gives it the ring of a new engine; LoseRing()
// ends the tasks that were in flight in the old ring:
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
// A task in the ring that runs when its batch is cancelled, or when its deadline passes, is
// stopped: between its chunks, or within the operator if that can be stopped there (task.h,
// StopReason). It ends as CANCELLED or DEADLINE_EXCEEDED, and as ABORTED when it exceeds its
// operator's time limit.
//
// Lanes (lane_source.h) are further sources of tasks, which the dispatch loop reads itself: no call
// of Enqueue announces them. An iteration takes at most `quantum_tasks` of all lanes together, in
// turn, and gives them to the queue of the lane's client. While a lane is hot the dispatch loop
// polls it, for at most `lane_spin_share` of a core. Nothing is taken during a hold or a park; a
// lane with something to take counts as work that arrives while parked. A lone task of a lane that
// is the only source of work says so to the device (kTaskSlowAnswer).
//
//   queue.AddClient(id);
//   absl::Status taken = queue.Enqueue(id, batch);   // If OK, batch->done is called later.
#ifndef RESIDENT_RUNTIME_QUEUE_DEVICE_QUEUE_H_
#define RESIDENT_RUNTIME_QUEUE_DEVICE_QUEUE_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/time_source.h"
#include "runtime/queue/batch.h"

namespace resident {

class DurationHistogram;  // runtime/queue/operator_stats.h
class HostRing;           // runtime/ring/host_ring.h
class LaneSource;         // runtime/queue/lane_source.h

using ClientId = uint64_t;

// OverdueTask::operator_slot if the kernel has stopped starting tasks, so no operator is known.
inline constexpr uint32_t kNoOperatorSlot = UINT32_MAX;

// How long a task of the operator in a slot may run.
using TimeLimit = std::function<std::chrono::nanoseconds(uint32_t operator_slot)>;

// A task found running for longer than the limit.
struct OverdueTask {
  uint64_t sequence;
  uint32_t operator_slot;
  std::chrono::nanoseconds running;
};

// A task that a worker was running, for example when its engine was lost.
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
    // Tasks that a client may submit before the next client is served.
    uint32_t quantum_tasks = 256;
    // How long the dispatch loop polls for completions without a pause before it sleeps
    // between two polls. Longer costs processor time, shorter costs latency.
    std::chrono::microseconds spin{50};
    // How long a lane is polled after its last submission, the part of a core that polling without
    // a result may use, over kLaneShareWindow, and the number of lanes that are polled at a time.
    // The others are asleep; those of them that have work take turns.
    std::chrono::nanoseconds lane_spin{200'000};
    double lane_spin_share = 0.25;
    uint32_t max_hot_lanes = 16;
    // A lone task of a lane gets kTaskSlowAnswer if nothing else brought work for this long: the
    // poller then waits longer for its answer, which delays the work of others by up to 0.6 us.
    std::chrono::nanoseconds only_source_time{10'000};
    // For the deadlines of batches and for `spin`; outlives the queue. A test whose time stands
    // still sets `spin` to 0, because the dispatch loop would poll without a pause.
    TimeSource* time = &TimeSource::Steady();
  };
  // How often queued batches are checked against their deadlines.
  static constexpr std::chrono::milliseconds kDeadlineCheckInterval{20};
  static constexpr std::chrono::milliseconds kLaneShareWindow{100};

  struct Counters {
    uint64_t queued_tasks = 0;     // Neither in the ring nor skipped.
    uint64_t completed_tasks = 0;  // With an outcome, since the queue was created.
    uint32_t in_flight = 0;
    uint64_t next_sequence = 0;
    uint32_t ring_slots = 0;
    // Time in which at least one task was queued or in flight, since the queue was created.
    std::chrono::nanoseconds busy{0};
    // Tasks that were stopped while they ran, or behind one that was, by StopReason.
    std::array<uint64_t, kStopReasons> stopped{};
    // How often a sleeping lane was woken, and the time of polling lanes without a result.
    uint64_t lane_wakeups = 0;
    std::chrono::nanoseconds lane_polling{0};
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
  // Removes the client and cancels its queued tasks. Its tasks in the ring still complete.
  void RemoveClient(ClientId client);

  // Queues a batch. With `inline_time`, the calling thread runs the dispatch loop until the
  // batch has ended or that time has passed; `done` may then be called from within. Errors:
  // RESOURCE_EXHAUSTED (the client's queue is full), UNAVAILABLE (no engine, stopped, or
  // batch->epoch is not the current one), NOT_FOUND (client). On an error `done` is not called.
  absl::Status Enqueue(ClientId client, std::shared_ptr<Batch> batch,
                       std::chrono::nanoseconds inline_time = std::chrono::nanoseconds(0));

  // Call it after batch->cancelled was set: the queue then skips its tasks now, and not only
  // when it would submit them, and asks the device to stop those that run.
  void NoteCancelled();

  // Adds a lane of a client; it is hot at first. REQUIRES: it was not added before.
  void AddLane(ClientId client, std::shared_ptr<LaneSource> lane);
  // Nothing is taken from the lane afterwards. What was taken is not changed. Idempotent.
  void RemoveLane(const LaneSource* lane);
  // A sleeping lane may have something to take. Does nothing for a lane that was not added.
  void NoteLaneWork(const LaneSource* lane);

  // Sets the ring of a new engine; returns its epoch. REQUIRES: no ring.
  uint64_t SetRing(std::shared_ptr<HostRing> ring);
  uint64_t epoch() const;

  // The engine has ended. Tasks in flight of the operator slots in `suspects` end
  // ABORTED, the other tasks in flight UNAVAILABLE. Queued tasks of this epoch did not
  // run and end UNAVAILABLE too. The message of each contains `cause`.
  void LoseRing(const std::string& cause, const std::vector<uint32_t>& suspects);

  // Stops submitting tasks, and submits the park marker behind the tasks in flight: at once, or,
  // if clients keep the ring full, as soon as a task has completed. The kernel leaves the device
  // when it reaches the marker; the caller waits until the engine reports this, and only then
  // calls EndPark. New tasks are queued meanwhile. FAILED_PRECONDITION: parked already, or no ring.
  absl::Status BeginPark();
  // The kernel is back, or a hold ends. Submits queued tasks before it returns.
  void EndPark();

  // The same in two steps, for a park that must not wait for a task: Hold stops
  // submitting; ParkIfDrained runs the dispatch loop once and, if nothing is in flight then,
  // submits the park marker and returns true. Before that, EndPark cancels the hold.
  // FAILED_PRECONDITION: parked or held already, or no ring.
  absl::Status Hold();
  bool ParkIfDrained();

  // Sets a callback for the first task that arrives while parked with BeginPark. The dispatch
  // loop calls it once for each park; the owner resumes the engine and calls EndPark.
  void OnWorkWhileParked(std::function<void()> callback);

  // The time since when nothing has been queued or in flight; time_point::max() while
  // something is.
  Clock::time_point idle_since() const;

  // Tasks that a worker has been running for longer than `limit`, according to its breadcrumb.
  std::vector<OverdueTask> FindOverdue(std::chrono::nanoseconds limit);
  // The same with a limit for each operator slot. It is called with kNoOperatorSlot if the
  // kernel starts no task at all.
  std::vector<OverdueTask> FindOverdue(const TimeLimit& limit);
  // Operator slots of the tasks that workers were running, according to their breadcrumbs: the
  // suspects when an engine faults.
  std::vector<uint32_t> RunningSlots();
  // The same tasks, in full.
  std::vector<RunningTask> RunningTasks();

  // The slot has another operator from now on: the duration of its tasks is unknown until
  // the first one completes, and few of them are submitted until then.
  void ForgetEstimate(uint32_t operator_slot);

  Counters counters() const;
  // The times from each request to stop a task that ran until its completion arrived, also of tasks
  // that could not be stopped.
  const DurationHistogram& stop_durations() const;
  ClientCounters client_counters(ClientId client) const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_DEVICE_QUEUE_H_
