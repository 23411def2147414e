// Device: the interface of one GPU (or the CPU) for the rest of the daemon: its queue, the session
// of its engine, its state and its figures. Code that starts, parks, changes or ends it uses
// DeviceControl (device_control.h), which is the same object.
//
//            ┌────────────────────────── backoff ◀──────────────┐
//            ▼                                                  │
//   starting ──▶ resident ◀──▶ idle parked / parked ──▶ restarting ──▶ unhealthy
//                   └────────────── engine ended ───────────▲     (5 failures a minute)
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_DEVICE_H_
#define RESIDENT_RUNTIME_DEVICE_DEVICE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/engine_end_reason.h"
#include "runtime/device/engine_session.h"
#include "runtime/engine/engine.h"
#include "runtime/queue/batch.h"
#include "runtime/queue/device_queue.h"
#include "runtime/queue/operator_stats.h"
#include "runtime/ring/shared_region.h"

namespace resident {

class SpareEngine;  // runtime/device/spare_engine.h

class Device {
 public:
  enum class State : uint8_t {  // Values of resident.v1.DeviceStatus.State.
    kStarting = 1,
    kResident = 2,
    kIdleParked = 3,
    kParked = 4,
    kRestarting = 5,
    kUnhealthy = 6,
  };

  // How an engine was replaced: from the detection of its end until tasks are accepted again.
  struct Restart {
    std::chrono::nanoseconds total{0};  // 0: none was replaced yet.
    bool spare = false;                 // True: replaced by the spare.
    // Some of them run at the same time.
    std::vector<EnginePhase> phases;
  };

  struct Snapshot {
    State state = State::kStarting;
    std::string detail;
    int64_t engine_pid = 0;
    EngineInfo info;  // Describes the current engine, or the last one.
    // Generations loaded since the first, and attempts that failed.
    uint64_t generation_changes = 0;
    uint64_t failed_generation_changes = 0;
    // The pause of the last change of generation of a resident kernel (see generation_pause) and
    // the engine's part of it. 0: none yet.
    std::chrono::nanoseconds last_generation_pause{0};
    SwitchTimes last_switch;
    uint64_t parks = 0;
    uint64_t resumes = 0;
    // Engines lost, by reason. A reason that did not occur may be absent.
    std::map<EngineEndReason, uint64_t> restarts_by_reason;
    // Process of the spare that is ready; 0: there is none.
    int64_t spare_pid = 0;
    Restart last_restart;
    uint64_t memory_used_bytes = 0;
    DeviceQueue::Counters queue;
  };

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  uint32_t index() const { return index_; }
  DeviceQueue& queue() { return queue_; }
  // The current engine's session; null while there is none.
  std::shared_ptr<EngineSession> session() const;
  // Whether work that can run on any device may be sent here: there is an engine, and no park was
  // requested.
  bool open_to_all() const;
  // Whether it has ever had an engine, so that the compile target of operators is known.
  bool started() const { return started_; }
  Snapshot snapshot() const;
  // The spare engine, which the validation of a version may take; null: the device keeps none.
  const std::shared_ptr<SpareEngine>& spare() const { return spare_; }

  // Durations of parks (from the marker until the kernel has returned) and resumes.
  const DurationHistogram& park_duration() const { return park_duration_; }
  const DurationHistogram& resume_duration() const { return resume_duration_; }
  // Pauses of changes of generation: from the hold of submission until tasks are submitted again.
  const DurationHistogram& generation_pause() const { return generation_pause_; }
  // See DeviceQueue::stop_durations.
  const DurationHistogram& stop_duration() const { return queue_.stop_durations(); }

 protected:
  Device(uint32_t index, const DeviceQueue::Options& queue, bool started,
         std::shared_ptr<SpareEngine> spare);
  ~Device();

  DurationHistogram park_duration_;
  DurationHistogram resume_duration_;
  DurationHistogram generation_pause_;

  mutable absl::Mutex mu_;
  // Without spare_pid, memory_used_bytes and queue, which snapshot() reads from their owners.
  Snapshot status_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<EngineSession> session_ ABSL_GUARDED_BY(mu_);
  bool park_requested_ ABSL_GUARDED_BY(mu_) = false;

 private:
  const uint32_t index_;
  const bool started_;

 protected:
  const std::shared_ptr<SpareEngine> spare_;
  DeviceQueue queue_;  // Last member: its batches may use the others until it is destroyed.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_DEVICE_H_
