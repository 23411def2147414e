// SupervisedDevice: the Device (device.h), with the thread that starts its engine,
// watches it, parks it and replaces it.
//
// Everything that happens to an engine happens on the supervisor's thread, one thing
// at a time; the other threads say what they want (under mu_) and wake it.
//
// While it watches an engine, that thread never waits for the engine: calls are started, and looked
// at when they are answered. So an engine that has stopped is noticed, and ended, in time, whatever
// it was asked to do.
//
// An engine's life, on that thread:
//
//   TakeNext ─▶ Adopt ─▶ Watch ──────────────────────────────────▶ Retire ─▶ restart,
//                            │ until it ends, is ended, or the device             or give up
//                            │ shuts down:
//                            ├─ once a tick (50 ms, at rest 500): heartbeat, overdue tasks
//                            ├─ StepLoading: a change of generation (generation_change.h)
//                            └─ StepParking: running ─▶ parking ─▶ parked ─▶ resuming ─▶ running
//
// StepLoading and what it calls are in supervised_loading.cc, StepParking's in
// supervised_parking.cc.
//
// Its end. The process's lifeline tells it first (EngineProcess::lifeline); from then on the next
// engine is brought up, on a thread of its own (next_engine.h). Nothing is submitted any more, but
// a GPU's kernel runs on for a moment without its process: the park marker makes it end what is in
// flight, which gets its outcome as ever, and leave, which lets the system take the context down
// ten times as fast. If nothing is in flight then, the process is reaped beside what follows.
//
// Invariants:
//   1. A task in flight is given its outcome (LoseRing) only when the engine process
//      has been reaped, however long that takes: nothing writes to a client's memory after
//      that, and a task that is sent again does not run beside itself. Only the daemon's own end
//      does not wait for an engine that the system cannot end.
//   2. session() is that of the engine whose ring the queue has, or null. After a
//      restart it is null until the restorer has returned: a client cannot have
//      addresses of an engine whose durable buffers are not back.
//
// Locks: mu_ is taken last and never held during a call to anything else.
#ifndef RESIDENT_RUNTIME_DEVICE_SUPERVISED_DEVICE_H_
#define RESIDENT_RUNTIME_DEVICE_SUPERVISED_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/process/wake_event.h"
#include "runtime/device/device.h"
#include "runtime/device/engine_end.h"
#include "runtime/device/engine_process.h"
#include "runtime/device/live_session.h"
#include "runtime/device/next_engine.h"
#include "runtime/device/restart_policy.h"
#include "runtime/device/spare_engine.h"

namespace resident {

class SupervisedDevice final : public Device {
 public:
  explicit SupervisedDevice(const DeviceOptions& options);
  ~SupervisedDevice() override;

  // Waits for the outcome of the first start.
  absl::Status AwaitFirstStart();

  uint32_t index() const override { return options_.index; }
  DeviceQueue& queue() override { return queue_; }
  std::shared_ptr<EngineSession> session() override;
  bool open_to_all() override;
  std::shared_ptr<SpareEngine> spare() override { return spare_; }
  void StartPark(Waiter waiter) override;
  void StartResume(Waiter waiter) override;
  absl::Status LoadGeneration(std::shared_ptr<const Generation> generation,
                              std::chrono::milliseconds park_deadline) override;
  void SetGeneration(std::shared_ptr<const Generation> generation) override;
  Snapshot snapshot() const override;
  const DurationHistogram& park_duration() const override { return park_duration_; }
  const DurationHistogram& resume_duration() const override { return resume_duration_; }
  const DurationHistogram& generation_pause() const override { return generation_pause_; }
  void OnFault(std::function<std::shared_ptr<const Generation>(const DeviceFault&)> fault) override;
  void OnRestart(std::function<void(const std::shared_ptr<EngineSession>&)> restore) override;
  void OnStateChange(std::function<void(State)> changed) override;
  void Shutdown() override;

 private:
  // A generation that a thread waits to have loaded.
  struct Loading {
    std::shared_ptr<const Generation> generation;
    std::vector<OperatorResources> operators;  // As the engine says.
    std::chrono::milliseconds park_deadline{0};
    int64_t engine_pid = 0;  // Where it is staged.
    std::optional<absl::Status> result;
  };
  // What other threads want.
  struct Wants {
    bool stop;
    bool parked;
    bool resume;
    bool work;
    Loading* loading;  // Null: nothing to load.
  };
  enum class Parking : uint8_t { kRunning, kParking, kParked, kResuming };
  struct Watched;  // An engine that is being watched (supervised_watched.h).

  void Supervise();
  // Begins to bring the next engine up, unless that has been begun.
  void BeginNext();
  // Waits for it, and launches its kernel.
  absl::StatusOr<std::unique_ptr<EngineProcess>> TakeNext(EngineInfo* info);
  // It is not needed.
  void DropNext();
  void Adopt(EngineProcess& engine, const EngineInfo& info, bool restart);
  void Publish();
  EngineEnd Watch(EngineProcess& engine);
  // Called while the process of a watched engine ends.
  std::optional<EngineEnd> StepDeath(Watched& watched);
  void Retire(std::unique_ptr<EngineProcess> engine, const EngineEnd& end);
  // Waits until the system has ended the killed engine; at the daemon's end not for ever.
  void AwaitReaped(EngineProcess& engine, const EngineEnd& end);
  // The same beside what else goes on.
  void ReapLater(std::unique_ptr<EngineProcess> engine);
  // A step of the replacement is over.
  void MarkRestart(const std::string& name);
  // Waits as long as the policy says; false: the device shuts down.
  bool AwaitRestart(const EngineEnd& end);

  // The longest time between ticks, and between the engine's beats.
  std::chrono::milliseconds RestTick() const;
  // When the next look is due, as things stand.
  Clock::time_point NextTick(const Watched& watched) const;
  // One look; what it finds, if it is the engine's end.
  std::optional<EngineEnd> Tick(Watched& watched);
  std::optional<EngineEnd> StepLoading(Watched& watched, const Wants& wants);
  void LoadWhileParked(Watched& watched, Loading* loading);
  // Tells the waiting thread what came of it, and makes the generation the device's.
  void FinishLoading(Loading* loading, absl::Status result);
  // The engine ends: whoever waits for a generation on it hears so.
  void FailLoading(const std::string& cause);
  // When an idle kernel is to leave the device, as things stand; max(): it is not to.
  Clock::time_point ParkAt(const Watched& watched) const;
  std::optional<EngineEnd> StepParking(Watched& watched, const Wants& wants);
  void BeginParking(Watched& watched, const Wants& wants);
  std::optional<EngineEnd> FinishParking(Watched& watched, const Wants& wants);
  void FinishResuming(Watched& watched);
  // What a call to the engine does when it is answered.
  EngineClient::OnAnswer WakeSupervisor() const;

  // How a park or a resume has come out; nullopt: not yet.
  std::optional<absl::Status> ParkOutcome() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<absl::Status> ResumeOutcome() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers those whose park or resume has come out, and drops those that are gone. To be called
  // after each change of what the outcomes depend on.
  void SettleWaiters() ABSL_LOCKS_EXCLUDED(mu_);
  // Asks the owner what to start the next engine with.
  void ReportFault(const EngineEnd& end, std::vector<RunningTask> running);
  std::chrono::nanoseconds TimeLimitOf(uint32_t operator_slot) const;
  Wants TakeWants();

  std::string Name() const;  // "engine of device 0"
  std::string SlotName(uint32_t operator_slot) const;

  void SetState(State state, const std::string& detail);
  absl::Status StoppedError() const;
  absl::Status UnhealthyError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const DeviceOptions options_;
  const std::shared_ptr<WakeEvent> wake_;
  const std::shared_ptr<SpareEngine> spare_;  // Null: there is to be none.
  DurationHistogram park_duration_;
  DurationHistogram resume_duration_;
  DurationHistogram generation_pause_;

  // The supervisor thread's own.
  RestartPolicy restart_policy_;
  std::shared_ptr<LiveSession> live_session_;  // Of the engine being watched.
  std::thread restorer_;
  // The replacement under way; since when.
  Clock::time_point end_noticed_;
  Clock::time_point step_began_;
  Restart restart_;
  uint64_t first_changes_ = 0;  // That the present engine has made before it was watched.

  mutable absl::Mutex mu_;
  std::optional<absl::Status> first_start_ ABSL_GUARDED_BY(mu_);
  State state_ ABSL_GUARDED_BY(mu_) = State::kStarting;
  std::string detail_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<LiveSession> session_ ABSL_GUARDED_BY(mu_);  // As session() gives it.
  // The engine that is being brought up; null: none is.
  std::shared_ptr<NextEngine> next_ ABSL_GUARDED_BY(mu_);
  // What the next engine takes; 0: as the options say.
  uint64_t memory_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  Restart last_restart_ ABSL_GUARDED_BY(mu_);
  EngineInfo info_ ABSL_GUARDED_BY(mu_);
  int64_t engine_pid_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t parks_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t resumes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<EngineEndReason, uint64_t> restarts_by_reason_ ABSL_GUARDED_BY(mu_);
  std::function<void(const std::shared_ptr<EngineSession>&)> restore_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Generation> generation_ ABSL_GUARDED_BY(mu_);  // Null: the first.
  std::shared_ptr<EngineClient> client_ ABSL_GUARDED_BY(mu_);          // Of the present engine.
  Loading* loading_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::chrono::nanoseconds last_generation_pause_ ABSL_GUARDED_BY(mu_){0};
  SwitchTimes last_switch_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_changes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t failed_generation_changes_ ABSL_GUARDED_BY(mu_) = 0;
  std::function<std::shared_ptr<const Generation>(const DeviceFault&)> fault_ ABSL_GUARDED_BY(mu_);
  std::function<void(State)> changed_ ABSL_GUARDED_BY(mu_);
  // What other threads want of the supervisor.
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool admin_parked_ ABSL_GUARDED_BY(mu_) = false;
  bool resume_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool work_arrived_ ABSL_GUARDED_BY(mu_) = false;
  bool restored_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Waiter> parks_awaited_ ABSL_GUARDED_BY(mu_);
  std::vector<Waiter> resumes_awaited_ ABSL_GUARDED_BY(mu_);

  // Held for a whole LoadGeneration: one at a time.
  absl::Mutex load_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  absl::Mutex shutdown_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // Whoever joins the supervisor.
  std::thread supervisor_ ABSL_GUARDED_BY(shutdown_mu_);

  DeviceQueue queue_;  // Last: its thread calls into this object.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_SUPERVISED_DEVICE_H_
