// Device: one GPU (or the CPU) with its supervised engine process, and what batches
// for it need: a queue, buffer memory, staging memory.
//
// The supervisor starts the engine, watches it, and replaces it when it dies, faults,
// stops its heartbeat or runs a task past the limit. Every engine's life is an
// EngineSession, with an epoch: addresses belong to a session and die with it.
//
// A spare engine, prepared beforehand, takes the place of one that ends (spare_engine.h).
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
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "runtime/base/limits.h"
#include "runtime/device/engine_end_reason.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_type.h"
#include "runtime/engine/generation.h"
#include "runtime/queue/batch.h"
#include "runtime/queue/device_queue.h"
#include "runtime/queue/operator_stats.h"
#include "runtime/ring/shared_region.h"

namespace resident {

class SpareEngine;  // runtime/device/spare_engine.h

// Memory that goes back to its allocator when the last reference goes.
struct DeviceMemory {
  uint64_t address;     // As operators see it.
  uint64_t size_bytes;  // As asked for.
};
struct StagingMemory {
  uint8_t* host;     // As this process sees it.
  uint64_t address;  // As operators see it.
  uint64_t size_bytes;
};

// One engine process's life. Stays usable as an object after the engine has ended;
// what it hands out is then only memory of this process.
class EngineSession {
 public:
  virtual ~EngineSession() = default;

  virtual uint64_t epoch() const = 0;
  virtual const EngineInfo& info() const = 0;

  // Device memory for a buffer, aligned to 256 bytes. RESOURCE_EXHAUSTED: how much
  // was asked for, is free, and is free in one piece.
  virtual absl::StatusOr<std::shared_ptr<const DeviceMemory>> AllocateMemory(uint64_t bytes) = 0;
  virtual uint64_t memory_used_bytes() const = 0;

  // Staging memory for what a batch carries inline, aligned to 64 bytes. Contents are
  // not initialised. RESOURCE_EXHAUSTED as above.
  virtual absl::StatusOr<std::shared_ptr<const StagingMemory>> AllocateStaging(uint64_t bytes) = 0;

  // Makes a client's shared-memory object reachable for operators until the last
  // reference goes. `fd` is not kept. UNAVAILABLE: the engine has ended.
  virtual absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapShared(int fd, uint64_t bytes) = 0;
};

// How an engine was lost.
struct DeviceFault {
  EngineEndReason reason = EngineEndReason::kFault;
  std::string cause;  // For people.
  // Operator slots that may be to blame, each once. Empty: nobody's task is.
  std::vector<uint32_t> suspects;
  // What workers were running of the suspects' tasks (runtime/device/arguments_text.h).
  std::vector<RunningTask> running;
};

struct DeviceOptions {
  uint32_t index = 0;
  // What runs the device. REQUIRES: not null.
  const EngineType* engine_type = nullptr;
  // engine.generation: what the first engine starts with.
  EngineOptions engine;
  DeviceLimits limits;
  DeviceQueue::Options queue;
  // --park_after: idle time after which the kernel leaves the device. 0: never.
  std::chrono::milliseconds park_after{10'000};
  // --task_time_limit: a task that runs longer ends its engine. 0: no limit.
  std::chrono::milliseconds task_time_limit{10'000};
  // The same for the operator in a slot; 0: task_time_limit. Called from the
  // supervisor's thread. Default: task_time_limit for all.
  std::function<std::chrono::milliseconds(uint32_t)> slot_time_limit;
  // The engine's heartbeat may be this late. It comes ten times as often, at most
  // every 50 ms.
  std::chrono::milliseconds heartbeat_limit{5'000};
  // --spare_engine: keep a prepared engine beside the one that serves (spare_engine.h).
  bool spare_engine = true;
  // Program to run as `PROGRAM engine ...`; default: this one (/proc/self/exe).
  std::string engine_program;
  // What to call the operator in a slot, in messages; default: "operator slot N".
  std::function<std::string(uint32_t)> slot_name;
};

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

  // How an engine was replaced: from the moment that its end was noticed to the moment that tasks
  // are taken again.
  struct Restart {
    std::chrono::nanoseconds total{0};  // 0: none was replaced yet.
    bool spare = false;                 // By the spare.
    // Some go on at the same time.
    std::vector<EnginePhase> phases;
  };

  struct Snapshot {
    State state = State::kStarting;
    std::string detail;
    int64_t engine_pid = 0;
    EngineInfo info;  // Of the present or the last engine.
    // Generations loaded since the first, and attempts that failed.
    uint64_t generation_changes = 0;
    uint64_t failed_generation_changes = 0;
    // Of the last change of a resident kernel: the pause (see generation_pause) and what
    // the engine took of it. 0: none yet.
    std::chrono::nanoseconds last_generation_pause{0};
    SwitchTimes last_switch;
    uint64_t parks = 0;
    uint64_t resumes = 0;
    // Engines lost. A reason that did not occur may be absent.
    std::map<EngineEndReason, uint64_t> restarts_by_reason;
    // Of the spare that is ready; 0: there is none.
    int64_t spare_pid = 0;
    Restart last_restart;
    uint64_t memory_used_bytes = 0;
    DeviceQueue::Counters queue;
  };

  // Starts an engine for the device and waits until it serves. Errors: as
  // Engine::Start; a device that cannot start once is not supervised.
  static absl::StatusOr<std::unique_ptr<Device>> Create(const DeviceOptions& options);
  virtual ~Device() = default;

  virtual uint32_t index() const = 0;
  virtual DeviceQueue& queue() = 0;
  // The present engine's session; null while there is none.
  virtual std::shared_ptr<EngineSession> session() = 0;
  // Whether what could run on any device may come here: there is an engine, and nobody has
  // parked it or is about to.
  virtual bool open_to_all() { return session() != nullptr; }

  // Who waits for a park or a resume. It takes effect whether or not somebody waits.
  struct Waiter {
    // Called once, from any thread; it must not block. Those that the device cannot answer now
    // are answered when its state changes.
    std::function<void(const absl::Status&)> settled;
    // Whether nobody waits any more; it is then answered CANCELLED at the next occasion. May be
    // null.
    std::function<bool()> gone;
  };
  // Takes the kernel off the device until a resume (Admin.Park); settled once it has left.
  // Tasks queue meanwhile. An engine that ends while parked is replaced, and parked.
  // UNAVAILABLE: unhealthy, or shutting down. ABORTED: a resume came meanwhile.
  virtual void StartPark(Waiter waiter) = 0;
  // Puts it back; settled once it is. A device that is unhealthy gets a new engine
  // and a clean slate. UNAVAILABLE: it is unhealthy again, or shutting down. ABORTED: a park came
  // meanwhile.
  virtual void StartResume(Waiter waiter) = 0;
  // The same; wait for the outcome.
  absl::Status Park() { return Await(&Device::StartPark); }
  absl::Status Resume() { return Await(&Device::StartResume); }

  // Makes this generation the device's: waits for a moment with no task running, parks,
  // loads, launches. Tasks queue meanwhile; none is lost. A device that is parked takes
  // it in and stays parked. Later engines start with it too.
  //
  // A task that runs long makes this wait, never the traffic: submission is held back
  // for a moment only if what runs has begun just now, and goes on if that does not
  // drain (docs/architecture.md). Errors, after which the former generation serves:
  // DEADLINE_EXCEEDED (tasks ran all through `park_deadline`), INVALID_ARGUMENT (it
  // cannot be loaded: as Engine::Stage), UNAVAILABLE (there is no engine, or it ended
  // meanwhile: its replacement starts with the former generation), FAILED_PRECONDITION
  // (its number is not above the present one). One call at a time is served, the others
  // wait.
  virtual absl::Status LoadGeneration(std::shared_ptr<const Generation> generation,
                                      std::chrono::milliseconds park_deadline) = 0;
  // What the next engine starts with, without a change of the present one.
  virtual void SetGeneration(std::shared_ptr<const Generation> generation) = 0;

  virtual Snapshot snapshot() const = 0;
  // The spare engine, for who validates a version; null: the device keeps none.
  virtual std::shared_ptr<SpareEngine> spare() { return nullptr; }
  // Whether it has ever had an engine, so that what operators are compiled for is known.
  virtual bool started() const { return true; }

  // Durations of parks (marker to kernel gone) and resumes.
  virtual const DurationHistogram& park_duration() const = 0;
  virtual const DurationHistogram& resume_duration() const = 0;
  // Pauses of changes of generation: from the moment that nothing is submitted any more
  // to the moment that tasks are again.
  virtual const DurationHistogram& generation_pause() const = 0;

  // Called with each new engine's session after a restart, before session() gives it
  // out: puts durable buffers back. On a thread of its own; it may enqueue batches of
  // its own client and wait for them, and must return once those end.
  virtual void OnRestart(std::function<void(const std::shared_ptr<EngineSession>&)> restore) = 0;
  // Called when an engine was lost (also one that did not start), before its replacement
  // starts and before the tasks that it cost have their outcome, from the supervisor's
  // thread: it must not wait for tasks. Returns the generation that the replacement starts
  // with; null: the present one.
  virtual void OnFault(
      std::function<std::shared_ptr<const Generation>(const DeviceFault&)> fault) = 0;
  // Called on every change of state, from the supervisor's thread.
  virtual void OnStateChange(std::function<void(State)> changed) = 0;

  // Ends the engine. Batches that are queued or in flight end UNAVAILABLE.
  virtual void Shutdown() = 0;

 private:
  absl::Status Await(void (Device::*start)(Waiter)) {
    absl::Notification settled;
    absl::Status outcome;
    (this->*start)({[&](const absl::Status& status) {
                      outcome = status;
                      settled.Notify();
                    },
                    nullptr});
    settled.WaitForNotification();
    return outcome;
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_DEVICE_H_
