// DeviceControl: a Device (device.h) with what starts, parks, changes and ends it. There are three:
// SupervisedDevice (Create), FailedDevice (one that did not start) and, in tests, FakeDevice.
//
// The supervisor starts the engine, watches it, and replaces it when it dies, faults, stops its
// heartbeat or runs a task past the limit. A spare engine, prepared beforehand, takes the place of
// one that ends (spare_engine.h).
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_DEVICE_CONTROL_H_
#define RESIDENT_RUNTIME_DEVICE_DEVICE_CONTROL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/limits.h"
#include "runtime/device/device.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_type.h"
#include "runtime/engine/generation.h"
#include "runtime/queue/device_queue.h"

namespace resident {

// How an engine was lost.
struct DeviceFault {
  EngineEndReason reason = EngineEndReason::kFault;
  std::string cause;  // For people.
  // Operator slots that may be to blame, each once. Empty: no task is.
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

class DeviceControl : public Device {
 public:
  // Starts an engine for the device and waits until it serves. Errors: as
  // Engine::Start; a device that cannot start once is not supervised.
  static absl::StatusOr<std::unique_ptr<DeviceControl>> Create(const DeviceOptions& options);
  virtual ~DeviceControl() = default;

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
  absl::Status Park() { return Await(&DeviceControl::StartPark); }
  absl::Status Resume() { return Await(&DeviceControl::StartResume); }

  // Makes this generation the device's: waits for a moment with no task running, parks,
  // loads, launches. Tasks queue meanwhile; none is lost. A device that is parked takes
  // it in and stays parked. Later engines start with it too.
  //
  // A task that runs long makes this wait, never the traffic: submission is held back
  // for a moment only if what runs has begun just now, and goes on if that does not
  // drain (docs/architecture.md). Errors, after which the former generation serves:
  // DEADLINE_EXCEEDED (tasks ran all through `park_deadline`), INVALID_ARGUMENT (it
  // cannot be loaded: as Engine::Preload), UNAVAILABLE (there is no engine, or it ended
  // meanwhile: its replacement starts with the former generation), FAILED_PRECONDITION
  // (its number is not above the present one). One call at a time is served, the others
  // wait.
  virtual absl::Status LoadGeneration(std::shared_ptr<const Generation> generation,
                                      std::chrono::milliseconds park_deadline) = 0;
  // What the next engine starts with, without a change of the present one.
  virtual void SetGeneration(std::shared_ptr<const Generation> generation) = 0;

  // Ends the engine. Batches that are queued or in flight end UNAVAILABLE, and no callback is
  // called afterwards.
  virtual void Shutdown() = 0;

  using RestoreCallback = std::function<void(const std::shared_ptr<EngineSession>&)>;
  using FaultCallback = std::function<std::shared_ptr<const Generation>(const DeviceFault&)>;
  using StateCallback = std::function<void(State)>;
  // Called with each new engine's session after a restart, before session() gives it
  // out: puts durable buffers back. On a thread of its own; it may enqueue batches of
  // its own client and wait for them, and must return once those end.
  void OnRestart(RestoreCallback restore);
  // Called when an engine was lost (also one that did not start), before its replacement
  // starts and before the tasks that it cost have their outcome, from the supervisor's
  // thread: it must not wait for tasks. Returns the generation that the replacement starts
  // with; null: the present one.
  void OnFault(FaultCallback fault);
  // Called on every change of state, from the supervisor's thread.
  void OnStateChange(StateCallback changed);

 protected:
  explicit DeviceControl(uint32_t index, const DeviceQueue::Options& queue, bool started = true,
                         std::shared_ptr<SpareEngine> spare = nullptr);

  RestoreCallback restore_ ABSL_GUARDED_BY(mu_);
  FaultCallback fault_ ABSL_GUARDED_BY(mu_);
  StateCallback changed_ ABSL_GUARDED_BY(mu_);

 private:
  absl::Status Await(void (DeviceControl::*start)(Waiter));
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_DEVICE_CONTROL_H_
