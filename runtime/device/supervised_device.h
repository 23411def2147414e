// SupervisedDevice: the DeviceControl of a daemon, with the thread that starts its engine,
// watches it, parks it and replaces it.
//
// Only the supervisor's thread acts on an engine; the other threads write requests (under mu_) and
// wake it.
//
// While that thread watches an engine, it never waits for it: it starts calls and polls their
// results. So an engine that has stopped is noticed and terminated in time, whatever calls it has
// not answered.
//
// An engine's life, on that thread:
//
//   TakeNext ─▶ Adopt ─▶ Watch ──────────────────────────────────▶ Retire ─▶ restart,
//                            │ until it ends, is killed, or the device            or unhealthy
//                            │ shuts down:
//                            ├─ once a tick (50 ms, idle 500): heartbeat, overdue tasks
//                            ├─ StepLoading: a change of generation (generation_change.h)
//                            └─ StepParking: running ─▶ parking ─▶ parked ─▶ resuming ─▶ running
//
// StepLoading and what it calls are in supervised_loading.cc, StepParking's in
// supervised_parking.cc.
//
// The end of an engine. The process's lifeline reports it first (EngineProcess::lifeline). Then the
// next engine is started, on a thread of its own (next_engine.h). Nothing is submitted any more,
// but a GPU's kernel still runs for a short time without its process. The park marker makes it
// complete the tasks in flight, which get their results as usual, and return, so that the system
// destroys the context ten times as fast. If nothing is in flight then, another thread reaps the
// process.
//
// Invariants:
//   1. A task in flight gets its result (LoseRing) only when the engine process has been reaped,
//      however long that takes: nothing writes to a client's memory after that, and a task that
//      is sent again does not run at the same time as the first one. Only the daemon's shutdown
//      does not wait for an engine that the system cannot end.
//   2. session() is that of the engine whose ring the queue has, or null. After a
//      restart it is null until the restorer has returned: a client cannot get
//      addresses of an engine before its durable buffers are restored.
//
// Locks: mu_ is acquired last. While it is held, nothing waits for another thread or for an engine,
// and the only callback that is called is Waiter::gone. Other components are called to wake or to
// start a thread only (WakeEvent, NextEngine).
#ifndef RESIDENT_RUNTIME_DEVICE_SUPERVISED_DEVICE_H_
#define RESIDENT_RUNTIME_DEVICE_SUPERVISED_DEVICE_H_

#include <atomic>
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
#include "runtime/device/device_control.h"
#include "runtime/device/engine_end.h"
#include "runtime/device/engine_process.h"
#include "runtime/device/live_session.h"
#include "runtime/device/next_engine.h"
#include "runtime/device/spare_engine.h"
#include "runtime/device/supervision.h"

namespace resident {

class SupervisedDevice final : public DeviceControl {
 public:
  explicit SupervisedDevice(const DeviceOptions& options);
  ~SupervisedDevice() override;

  // Waits for the result of the first start.
  absl::Status AwaitFirstStart();

  void StartPark(Waiter waiter) override;
  void StartResume(Waiter waiter) override;
  absl::Status LoadGeneration(std::shared_ptr<const Generation> generation,
                              std::chrono::milliseconds park_deadline) override;
  void SetGeneration(std::shared_ptr<const Generation> generation) override;
  void Shutdown() override;

 private:
  // A LoadGeneration call that waits for the supervisor.
  struct Loading {
    std::shared_ptr<const Generation> generation;
    std::vector<OperatorResources> operators;  // Reported by the engine.
    std::chrono::milliseconds park_deadline{0};
    int64_t engine_pid = 0;  // The engine that has preloaded it.
    std::optional<absl::Status> result;
  };
  // Requests of other threads.
  struct Wants {
    bool stop;
    bool parked;
    bool resume;
    bool work;
    Loading* loading;  // Null: nothing to load.
  };
  // kHolding: nothing is submitted, and the tasks in flight end first; a resume can withdraw the
  // park. From kParking on it cannot: the marker is in the ring.
  enum class Parking : uint8_t { kRunning, kHolding, kParking, kParked, kResuming };
  struct Watched;  // The engine that is being watched (supervised_watched.h).

  void Supervise();
  // Begins to start the next engine, unless it has begun already.
  void BeginNext();
  // Waits for the next engine, and launches its kernel.
  absl::StatusOr<std::unique_ptr<EngineProcess>> TakeNext(EngineInfo* info);
  // Ends the next engine, which is not needed.
  void DropNext();
  void Adopt(EngineProcess& engine, const EngineInfo& info, bool restart);
  void Publish();
  EngineEnd Watch(EngineProcess& engine);
  // Called repeatedly while the process of the watched engine ends. Returns its end when known.
  std::optional<EngineEnd> StepExit(Watched& watched);
  void Retire(std::unique_ptr<EngineProcess> engine, const EngineEnd& end);
  // Waits until the system has ended the killed engine, or up to a limit if the daemon shuts down.
  void AwaitReaped(EngineProcess& engine, const EngineEnd& end);
  // Has another thread wait for that.
  void ReapLater(std::unique_ptr<EngineProcess> engine);
  // Records that a step of the replacement has ended.
  void MarkRestart(const std::string& name);
  // Waits as long as the policy requires. Returns false if the device shuts down.
  bool AwaitRestart(const EngineEnd& end);

  // The longest time between ticks, and between heartbeats of the engine.
  std::chrono::milliseconds IdleTick() const;
  // Returns when the next tick is due.
  Clock::time_point NextTick(const Watched& watched) const;
  // Checks the heartbeat and overdue tasks. Returns why the engine must be terminated, if it must.
  std::optional<EngineEnd> Tick(Watched& watched);
  std::optional<EngineEnd> StepLoading(Watched& watched, const Wants& wants);
  void LoadWhileParked(Watched& watched, Loading* loading);
  // Passes the result to the waiting thread. If it is OK, the generation becomes the device's.
  void FinishLoading(Loading* loading, absl::Status result);
  // Fails a waiting LoadGeneration because the engine has ended.
  void FailLoading(const std::string& cause);
  // Returns when an idle kernel must be parked; max(): never.
  Clock::time_point ParkAt(const Watched& watched) const;
  std::optional<EngineEnd> StepParking(Watched& watched, const Wants& wants);
  void BeginParking(Watched& watched, const Wants& wants);
  void StepHolding(Watched& watched, const Wants& wants);
  // The park marker is in the ring.
  void AwaitPark(Watched& watched);
  std::optional<EngineEnd> FinishParking(Watched& watched, const Wants& wants);
  void FinishResuming(Watched& watched);
  // Returns the callback that wakes the supervisor when a call to the engine is answered.
  EngineClient::OnAnswer WakeSupervisor() const;

  // The result of a park or a resume; nullopt: it has not ended.
  std::optional<absl::Status> ParkOutcome() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<absl::Status> ResumeOutcome() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls the waiters whose park or resume has ended, and drops those that have gone. Must be
  // called after each change of the state that ParkOutcome and ResumeOutcome read.
  void SettleWaiters() ABSL_LOCKS_EXCLUDED(mu_);
  // Calls the OnFault callback, which may choose the next engine's generation.
  void ReportFault(const EngineEnd& end, std::vector<RunningTask> running);
  std::chrono::nanoseconds FindTimeLimit(uint32_t operator_slot) const;
  Wants TakeRequests();

  std::string Name() const;  // "engine of device 0"
  std::string SlotName(uint32_t operator_slot) const;

  void SetState(State state, const std::string& detail);
  absl::Status StoppedError() const;
  absl::Status UnhealthyError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const DeviceOptions options_;
  const std::shared_ptr<WakeEvent> wake_;
  // Set when a task arrives while the kernel is parked.
  const std::shared_ptr<std::atomic<bool>> work_arrived_ =
      std::make_shared<std::atomic<bool>>(false);

  // Used by the supervisor's thread only.
  RestartPolicy restart_policy_;
  std::shared_ptr<LiveSession> live_session_;  // Session of the engine that is being watched.
  std::thread restorer_;
  // The replacement that is in progress, and when it began.
  Clock::time_point end_noticed_;
  Clock::time_point step_began_;
  Restart restart_;
  uint64_t first_changes_ = 0;  // Changes of generation of the engine before it was watched.

  // Members guarded by mu_, in addition to those of Device and DeviceControl.
  std::optional<absl::Status> first_start_ ABSL_GUARDED_BY(mu_);
  // The engine that is being started; null: none.
  std::shared_ptr<NextEngine> next_ ABSL_GUARDED_BY(mu_);
  // Buffer memory of the next engine; 0: see the options.
  uint64_t memory_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const Generation> generation_ ABSL_GUARDED_BY(mu_);  // Null: the first one.
  std::shared_ptr<EngineClient> client_ ABSL_GUARDED_BY(mu_);          // The current engine's.
  Loading* loading_ ABSL_GUARDED_BY(mu_) = nullptr;
  // Requests of other threads, in addition to park_requested_.
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool resume_requested_ ABSL_GUARDED_BY(mu_) = false;
  bool restored_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Waiter> parks_awaited_ ABSL_GUARDED_BY(mu_);
  std::vector<Waiter> resumes_awaited_ ABSL_GUARDED_BY(mu_);

  // Held during a whole LoadGeneration call, so that only one runs at a time.
  absl::Mutex load_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  absl::Mutex shutdown_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // Held while the supervisor is joined.
  std::thread supervisor_ ABSL_GUARDED_BY(shutdown_mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_SUPERVISED_DEVICE_H_
