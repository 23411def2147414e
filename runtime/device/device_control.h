// DeviceControl: a Device (device.h) with the operations that park, change and end it. There are
// three implementations: SupervisedDevice (Create), FailedDevice (its engine did not start) and, in
// tests, FakeDevice.
//
// The supervisor starts the engine, watches it, and replaces it when it exits, faults, stops its
// heartbeat or runs a task past the limit. A spare engine, prepared in advance, replaces one that
// ends (spare_engine.h).
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
  std::string cause;  // Message.
  // Operator slots that may have caused it, each once. Empty: it was not caused by a task.
  std::vector<uint32_t> suspects;
  // Tasks of the suspects that workers were running.
  std::vector<RunningTask> running;
};

struct DeviceOptions {
  uint32_t index = 0;
  // The type of the device's engine. REQUIRES: not null.
  const EngineType* engine_type = nullptr;
  // engine.generation: the generation of the first engine.
  EngineOptions engine;
  DeviceLimits limits;
  DeviceQueue::Options queue;
  // --park_after: idle time after which the kernel is parked. 0: never.
  std::chrono::milliseconds park_after{10'000};
  // --task_time_limit: if a task runs longer, the engine stops it; and if it has not ended
  // `stop_grace` later, the engine is terminated. 0: no limit.
  std::chrono::milliseconds task_time_limit{10'000};
  // Longer than an engine needs to stop a task on a busy machine.
  std::chrono::milliseconds stop_grace{100};
  // Returns the limit for the operator in a slot; 0: task_time_limit. Called from the
  // supervisor's thread. Default: task_time_limit for all.
  std::function<std::chrono::milliseconds(uint32_t)> slot_time_limit;
  // How late the engine's heartbeat may be. The engine beats ten times as often, but at most
  // every 50 ms.
  std::chrono::milliseconds heartbeat_limit{5'000};
  // --spare_engine: keep a prepared engine next to the one that serves (spare_engine.h).
  bool spare_engine = true;
  // Program to run as `PROGRAM engine ...`; default: this one (/proc/self/exe).
  std::string engine_program;
  // Returns the name of the operator in a slot for messages; default: "operator slot N".
  std::function<std::string(uint32_t)> slot_name;
};

class DeviceControl : public Device {
 public:
  // Starts an engine for the device and waits until it serves. Errors: those of
  // Engine::Start. If the first start fails, the device is not supervised.
  static absl::StatusOr<std::unique_ptr<DeviceControl>> Create(const DeviceOptions& options);
  virtual ~DeviceControl() = default;

  // A waiter for a park or a resume, which takes effect with or without waiters.
  struct Waiter {
    // Called once with the result, from any thread; it must not block. If there is no result yet,
    // it is called when the device's state changes.
    std::function<void(const absl::Status&)> settled;
    // Returns whether the waiter has gone; `settled` is called with CANCELLED when waiters
    // are next checked. Called from any thread, under a lock: it must not block and must not call
    // the device. May be null.
    std::function<bool()> gone;
  };
  // Parks the kernel until a resume (Admin.Park); settled when the kernel has returned.
  // Tasks queue meanwhile. An engine that ends while parked is replaced, and the new one is parked.
  // UNAVAILABLE: unhealthy, or shutting down. ABORTED: a resume was requested meanwhile.
  virtual void StartPark(Waiter waiter) = 0;
  // Resumes the kernel; settled when it runs. A device that is unhealthy gets a new engine, and
  // its failures are forgotten. UNAVAILABLE: it is unhealthy again, or shutting down. ABORTED: a
  // park was requested meanwhile.
  virtual void StartResume(Waiter waiter) = 0;
  // The same, but they wait for the result.
  absl::Status Park() { return Await(&DeviceControl::StartPark); }
  absl::Status Resume() { return Await(&DeviceControl::StartResume); }

  // Changes the device to this generation: waits for a moment with no task running, parks,
  // loads, launches. Tasks queue meanwhile; none is lost. A device that is parked loads the
  // generation and stays parked. Later engines start with it too.
  //
  // A task that runs long delays this call, but not other tasks: submission is held only if the
  // running tasks have begun recently, and continues if they do not end
  // (docs/architecture.md). Errors, after which the previous generation serves:
  // DEADLINE_EXCEEDED (tasks were running during all of `park_deadline`), INVALID_ARGUMENT (it
  // cannot be loaded; see Engine::Preload), UNAVAILABLE (there is no engine, or it ended
  // meanwhile; its replacement starts with the previous generation), FAILED_PRECONDITION
  // (its number is not above the current one). One call is served at a time; the others wait.
  virtual absl::Status LoadGeneration(std::shared_ptr<const Generation> generation,
                                      std::chrono::milliseconds park_deadline) = 0;
  // Sets the generation of the next engine; the current engine is not changed.
  virtual void SetGeneration(std::shared_ptr<const Generation> generation) = 0;

  // Ends the engine. Batches that are queued or in flight fail with UNAVAILABLE. No callback is
  // called afterwards.
  virtual void Shutdown() = 0;

  using RestoreCallback = std::function<void(const std::shared_ptr<EngineSession>&)>;
  using FaultCallback = std::function<std::shared_ptr<const Generation>(const DeviceFault&)>;
  using StateCallback = std::function<void(State)>;
  // Called with each new engine's session after a restart, before session() returns it, to restore
  // durable buffers. It runs on its own thread; it may enqueue batches of its own client and wait
  // for them, and must return when those end.
  void OnRestart(RestoreCallback restore);
  // Called when an engine was lost (also one that did not start), before its replacement
  // starts and before its tasks get their results. It is called on the supervisor's thread and
  // must not wait for tasks. Returns the generation of the replacement; null: the current one.
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
