
#include "runtime/device/supervised_device.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/engine_process.h"
#include "runtime/device/errors.h"
#include "runtime/device/supervised_watched.h"
#include "runtime/ring/host_ring.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// How long to wait for the memory of an engine that has ended.
constexpr seconds kMemoryWait{4};
constexpr seconds kShutdownLimit{2};
// Interval of checks of an engine that was killed and has not ended.
constexpr seconds kReapPoll{5};

// "engine replaced by the spare 12.3 ms after the end of the previous engine; ..."
std::string RestartText(const Device::Restart& restart) {
  const auto ms = [](nanoseconds time) {
    return absl::StrFormat("%.1f ms", std::chrono::duration<double, std::milli>(time).count());
  };
  std::string text =
      absl::StrCat("engine replaced by ", restart.spare ? "the spare" : "a new process", " ",
                   ms(restart.total), " after the end of the previous engine");
  for (const EnginePhase& phase : restart.phases) {
    absl::StrAppend(&text, "; ", phase.name, " ", ms(phase.took));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceControl>> DeviceControl::Create(const DeviceOptions& options) {
  auto device = std::make_unique<SupervisedDevice>(options);
  RETURN_IF_ERROR(device->AwaitFirstStart());
  return device;
}

SupervisedDevice::SupervisedDevice(const DeviceOptions& options)
    : DeviceControl(options.index, options.queue, /*started=*/true,
                    options.spare_engine ? std::make_shared<SpareEngine>(options) : nullptr),
      options_(options),
      wake_(std::make_shared<WakeEvent>()),
      generation_(options.engine.generation) {
  // The callback owns what it uses, because the queue is a member of the base class and its thread
  // may still run the callback when this class has been destroyed.
  queue_.OnWorkWhileParked([arrived = work_arrived_, wake = wake_] {
    *arrived = true;
    wake->Signal();
  });
  EngineReaper::Start();
  absl::MutexLock lock(&shutdown_mu_);
  supervisor_ = std::thread([this] { Supervise(); });
}

SupervisedDevice::~SupervisedDevice() { Shutdown(); }

absl::Status SupervisedDevice::AwaitFirstStart() {
  absl::MutexLock lock(&mu_);
  const auto known = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return first_start_.has_value(); };
  mu_.Await(absl::Condition(&known));
  return *first_start_;
}

void SupervisedDevice::Shutdown() {
  absl::MutexLock shutdown_lock(&shutdown_mu_);
  std::shared_ptr<NextEngine> next;
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    next = next_;
  }
  // Do not wait for a start, because it can take long.
  if (spare_ != nullptr) spare_->Stop();
  if (next != nullptr) next->Cancel();
  next = nullptr;
  SettleWaiters();
  wake_->Signal();
  if (supervisor_.joinable()) supervisor_.join();
}

void SupervisedDevice::Supervise() {
  prctl(PR_SET_NAME, "resident-super");
  bool restart = false;
  while (true) {
    EngineEnd end;
    EngineInfo info;
    BeginNext();
    absl::StatusOr<std::unique_ptr<EngineProcess>> engine = TakeNext(&info);
    if (engine.ok()) {
      Adopt(**engine, info, restart);
      end = Watch(**engine);
      Retire(*std::move(engine), end);
    } else if (!restart) {
      absl::MutexLock lock(&mu_);
      first_start_ = engine.status();
      return;
    } else {
      {
        absl::MutexLock lock(&mu_);
        if (stop_) return;  // Shutdown has cancelled the start; that is not a failure.
      }
      end = EngineEnd{
          EngineEndReason::kStart,
          absl::StrCat("the ", Name(), " did not start: ", std::string(engine.status().message())),
          {}};
      ReportFault(end, {});
    }
    restart = true;
    if (!AwaitRestart(end)) break;
    MarkRestart("back off");
  }
  DropNext();
}

void SupervisedDevice::BeginNext() {
  DeviceOptions options = options_;
  absl::MutexLock lock(&mu_);
  if (stop_ || next_ != nullptr) return;
  options.engine.generation = generation_;
  options.engine.beat_every = IdleTick();
  options.engine.task_time_limit = options_.task_time_limit;
  options.engine.start_parked = true;
  if (options.engine.memory_bytes == 0) {
    options.engine.memory_bytes = options.limits.device_memory_mib << 20;
  }
  if (memory_bytes_ != 0) {
    // As much as the previous engine had, which may not have been released yet.
    options.engine.memory_bytes = memory_bytes_;
    options.engine.memory_wait = kMemoryWait;
  }
  next_ = std::make_shared<NextEngine>(options, spare_);
}

absl::StatusOr<std::unique_ptr<EngineProcess>> SupervisedDevice::TakeNext(EngineInfo* info) {
  std::shared_ptr<NextEngine> next;
  std::shared_ptr<const Generation> generation;
  {
    absl::MutexLock lock(&mu_);
    if (next_ == nullptr) return StoppedError();
    next = next_;
    generation = generation_;
  }
  auto engine = next->Take(generation, info);
  MarkRestart("await the next engine");
  {
    absl::MutexLock lock(&mu_);
    next_ = nullptr;
    // Another process may have taken the memory: the next try takes what is available.
    memory_bytes_ = engine.ok() ? info->memory_bytes : 0;
    if (stop_) return StoppedError();
  }
  restart_.spare = next->from_spare();
  first_changes_ = next->changes();
  restart_.phases.insert(restart_.phases.end(), next->phases().begin(), next->phases().end());
  return engine;
}

void SupervisedDevice::DropNext() {
  std::shared_ptr<NextEngine> next;  // Destroyed after the lock is released.
  absl::MutexLock lock(&mu_);
  next = std::move(next_);
}

void SupervisedDevice::MarkRestart(const std::string& name) {
  const Clock::time_point now = Clock::now();
  restart_.phases.push_back({name, now - std::exchange(step_began_, now)});
}

void SupervisedDevice::Adopt(EngineProcess& engine, const EngineInfo& info, bool restart) {
  const uint64_t epoch = queue_.SetRing(std::make_shared<HostRing>(engine.region(), info.workers));
  live_session_ = std::make_shared<LiveSession>(epoch, info, engine.region(), engine.client());
  std::function<void(const std::shared_ptr<EngineSession>&)> restore;
  {
    absl::MutexLock lock(&mu_);
    status_.info = info;
    client_ = engine.client();
    status_.engine_pid = engine.child().pid();
    restored_ = false;
    if (restart) restore = restore_;
  }
  if (!restore) {
    Publish();
    return;
  }
  // On a thread of its own, so that the engine is watched meanwhile. If the engine ends, the
  // restorer's batches end too.
  restorer_ = std::thread([this, restore = std::move(restore), session = live_session_] {
    prctl(PR_SET_NAME, "resident-restor");
    restore(session);
    {
      absl::MutexLock lock(&mu_);
      restored_ = true;
    }
    wake_->Signal();
  });
}

void SupervisedDevice::Publish() {
  const bool restarted = end_noticed_ != Clock::time_point();
  if (restarted) {
    MarkRestart("restore buffers");
    restart_.total = Clock::now() - std::exchange(end_noticed_, Clock::time_point());
    LogInfo("device ", options_.index, ": ", RestartText(restart_));
  }
  {
    absl::MutexLock lock(&mu_);
    session_ = live_session_;
    if (restarted) status_.last_restart = std::move(restart_);
  }
  SetState(State::kResident, "");
  if (spare_ != nullptr) spare_->Refill();
  absl::MutexLock lock(&mu_);
  if (!first_start_) first_start_ = absl::OkStatus();
}

EngineEnd SupervisedDevice::Watch(EngineProcess& engine) {
  const Clock::time_point now = Clock::now();
  Watched watched{.engine = engine,
                  .heart = HeartbeatMonitor(options_.heartbeat_limit, IdleTick(), now),
                  .next_tick = now + kTick,
                  .change = nullptr,
                  .changes = first_changes_,
                  .resident_since = now,
                  .park_began = now,
                  .park_idle_since = std::nullopt};
  pollfd events[] = {{engine.child().pidfd(), POLLIN, 0},
                     {wake_->fd(), POLLIN, 0},
                     {engine.lifeline(), POLLIN, 0}};
  while (true) {
    if (!std::exchange(watched.step_at_once, false)) {
      Clock::time_point until = watched.next_tick;
      if (watched.change != nullptr && !watched.failed) {
        until = std::min(until, watched.change_over ? *watched.change_over + kEngineEndLimit
                                                    : watched.change->next_step());
      }
      if (watched.parking == Parking::kHolding) until = std::min(until, Clock::now() + kHoldPoll);
      if (watched.failed) until = std::min(until, watched.failed->until);
      if (watched.died) until = Clock::now() + kExitPoll;
      const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
      // The lifeline stays readable after the process has begun to end, so it is polled only
      // before.
      const nfds_t count = watched.died ? 2 : 3;
      poll(events, count, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    }
    wake_->Drain();
    const Wants wants = TakeRequests();
    if (wants.stop) return EngineEnd{};
    if (const auto exit = engine.child().Wait(seconds(0)))
      return DescribeExit(engine, Name(), *exit);
    if (watched.died || (events[2].revents & (POLLIN | POLLHUP)) != 0) {
      if (auto end = StepExit(watched)) return *std::move(end);
      continue;
    }
    if (Clock::now() >= watched.next_tick) {
      if (auto end = Tick(watched)) return *std::move(end);
      watched.next_tick = NextTick(watched);
    }
    if (watched.failed) {
      if (Clock::now() < watched.failed->until) continue;
      return DescribeFailedCall(Name(), watched.failed->name, watched.failed->status);
    }
    if (auto end = StepLoading(watched, wants)) return *std::move(end);
    // A kernel is not parked while its generation is changed.
    if (watched.change != nullptr) continue;
    if (auto end = StepParking(watched, wants)) return *std::move(end);
  }
}

std::optional<EngineEnd> SupervisedDevice::StepExit(Watched& watched) {
  const Clock::time_point now = Clock::now();
  if (!watched.died) {
    watched.died = now;
    end_noticed_ = step_began_ = now;
    restart_ = Restart();
    // An engine that has closed its lifeline but still runs must end.
    watched.engine.child().Kill(SIGKILL);
    if (restart_policy_.AllowsRestart(now)) BeginNext();
    watched.change = nullptr;
    queue_.BeginPark().IgnoreError();
  }
  if (now - *watched.died < kExitGrace || queue_.counters().in_flight > 0) return std::nullopt;
  // The state of an unhealthy device must say how the engine ended: wait for the exit status.
  if (!restart_policy_.AllowsRestart(now)) return std::nullopt;
  const std::string reason = watched.engine.exit_reason();
  if (!reason.empty()) {
    return EngineEnd{
        EngineEndReason::kFault, absl::StrCat("the ", Name(), " ended: ", reason), {}, true};
  }
  return EngineEnd{EngineEndReason::kKilled, absl::StrCat("the ", Name(), " was killed"), {}, true};
}

// A tenth of the limit, so that several checks find no heartbeat before the engine counts as late.
milliseconds SupervisedDevice::IdleTick() const {
  return std::clamp(options_.heartbeat_limit / 10, kTick, kIdleTick);
}

Clock::time_point SupervisedDevice::NextTick(const Watched& watched) const {
  const Clock::time_point now = Clock::now();
  const DeviceQueue::Counters queue = queue_.counters();
  if (queue.in_flight > 0) return now + kTick;
  if (watched.parking == Parking::kRunning) {
    // Work that will be submitted soon, or a park that could not begin yet.
    if (queue.queued_tasks > 0 || ParkAt(watched) <= now) return now + kTick;
    return std::min(now + IdleTick(), ParkAt(watched));
  }
  return now + IdleTick();
}

std::optional<EngineEnd> SupervisedDevice::Tick(Watched& watched) {
  if (watched.heart.IsLate(watched.engine.heartbeat(), Clock::now())) {
    return EngineEnd{EngineEndReason::kHeartbeat,
                     absl::StrCat("the ", Name(), " had no heartbeat for ",
                                  options_.heartbeat_limit.count(), " ms and was terminated"),
                     {}};
  }
  if (queue_.counters().in_flight == 0) return std::nullopt;
  const std::vector<OverdueTask> overdue = queue_.FindOverdue([this](uint32_t slot) {
    const nanoseconds limit = FindTimeLimit(slot);
    return limit == nanoseconds::max() ? limit : limit + options_.stop_grace;
  });
  if (overdue.empty()) return std::nullopt;
  const uint32_t slot = overdue.front().operator_slot;
  const int64_t limit = std::chrono::duration_cast<milliseconds>(FindTimeLimit(slot)).count();
  EngineEnd end{EngineEndReason::kHang, "", {}};
  if (slot == kNoOperatorSlot) {
    end.cause =
        absl::StrCat("the kernel of device ", options_.index, " did not start a task within ",
                     limit, " ms (--task_time_limit), and the ", Name(), " was terminated");
  } else {
    const bool own = FindTimeLimit(slot) != FindTimeLimit(kNoOperatorSlot);
    end.cause = absl::StrCat("a task of ", SlotName(slot), " ran for more than ", limit, " ms (",
                             own ? "its operator's limit" : "--task_time_limit", "), and the ",
                             Name(), " was terminated");
  }
  for (const OverdueTask& task : overdue) {
    if (task.operator_slot != kNoOperatorSlot) end.suspects.push_back(task.operator_slot);
  }
  std::sort(end.suspects.begin(), end.suspects.end());
  end.suspects.erase(std::unique(end.suspects.begin(), end.suspects.end()), end.suspects.end());
  return end;
}

nanoseconds SupervisedDevice::FindTimeLimit(uint32_t operator_slot) const {
  milliseconds limit{0};
  if (options_.slot_time_limit && operator_slot != kNoOperatorSlot) {
    limit = options_.slot_time_limit(operator_slot);
  }
  if (limit.count() == 0) limit = options_.task_time_limit;
  return limit.count() == 0 ? nanoseconds::max() : nanoseconds(limit);
}

EngineClient::OnAnswer SupervisedDevice::WakeSupervisor() const {
  return [wake = wake_] { wake->Signal(); };
}

SupervisedDevice::Wants SupervisedDevice::TakeRequests() {
  bool restored = false;
  Wants wants;
  {
    absl::MutexLock lock(&mu_);
    wants = Wants{stop_, park_requested_, resume_requested_, *work_arrived_, loading_};
    restored = std::exchange(restored_, false);
  }
  if (restored) {
    restorer_.join();
    Publish();
  }
  return wants;
}

void SupervisedDevice::Retire(std::unique_ptr<EngineProcess> process, const EngineEnd& end) {
  EngineProcess& engine = *process;
  if (end_noticed_ == Clock::time_point()) {
    end_noticed_ = step_began_ = Clock::now();
    restart_ = Restart();
  }
  {
    absl::MutexLock lock(&mu_);
    session_ = nullptr;
    client_ = nullptr;
    status_.engine_pid = 0;
  }
  live_session_->End();
  if (end.reason) {
    SetState(State::kRestarting, end.cause);
  } else if (engine.client()->Shutdown(kShutdownLimit).code() !=
             absl::StatusCode::kDeadlineExceeded) {
    engine.child().Wait(kShutdownLimit);
  }
  engine.child().Kill(SIGKILL);
  if (end.reason && restart_policy_.AllowsRestart(Clock::now())) BeginNext();
  if (!end.drained) AwaitReaped(engine, end);
  MarkRestart(end.drained ? "end the engine" : "reap the engine");

  // Breadcrumbs show which tasks were running; read them before LoseRing.
  std::vector<uint32_t> suspects = end.suspects;
  if (end.reason == EngineEndReason::kFault && !end.drained) suspects = queue_.RunningSlots();
  std::string cause = end.cause;
  if (!end.reason) cause = "the daemon is shutting down";
  if (end.reason == EngineEndReason::kFault && !suspects.empty()) {
    cause += "; running:";
    for (uint32_t slot : suspects) absl::StrAppend(&cause, " ", SlotName(slot));
  }
  if (end.reason) {
    std::vector<RunningTask> running = queue_.RunningTasks();
    running.erase(std::remove_if(running.begin(), running.end(),
                                 [&](const RunningTask& task) {
                                   return std::find(suspects.begin(), suspects.end(),
                                                    task.task.operator_slot) == suspects.end();
                                 }),
                  running.end());
    ReportFault(EngineEnd{end.reason, cause, suspects}, std::move(running));
  }
  FailLoading(cause);
  queue_.LoseRing(cause, suspects);
  if (restorer_.joinable()) restorer_.join();
  live_session_.reset();
  if (end.drained) ReapLater(std::move(process));
  MarkRestart("answer its tasks");
}

void SupervisedDevice::ReapLater(std::unique_ptr<EngineProcess> engine) {
  const auto killed = Clock::now();
  EngineReaper::Reap(std::move(engine), [name = Name(),
                                         killed](const std::optional<ChildExit>& exit) {
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - killed).count();
    if (!exit) {
      LogError("the previous ", name, " was killed ", waited,
               " ms ago and has not ended. Fix: if it does not end, check the driver's messages "
               "(dmesg) and restart the machine");
      return;
    }
    LogInfo("the previous ", name, " ", exit->ToString(), "; it ended within ", waited, " ms");
  });
}

void SupervisedDevice::AwaitReaped(EngineProcess& engine, const EngineEnd& end) {
  const Clock::time_point killed = Clock::now();
  while (!engine.child().Wait(kReapPoll)) {
    const auto waited = std::chrono::duration_cast<seconds>(Clock::now() - killed);
    {
      absl::MutexLock lock(&mu_);
      if (stop_ && waited >= ChildProcess::kReapLimit) return;
    }
    if (!end.reason) continue;
    const std::string detail = absl::StrCat(
        end.cause, "; process ", engine.child().pid(), " was killed ", waited.count(),
        " s ago and has not ended, and its tasks get no result until it ends. Fix: if "
        "it does not end, check the driver's messages (dmesg) and restart the machine");
    if (waited.count() % 30 == 0) {
      LogError("device ", options_.index, ": ", detail);
    }
    SetState(State::kRestarting, detail);
  }
}

void SupervisedDevice::ReportFault(const EngineEnd& end, std::vector<RunningTask> running) {
  std::function<std::shared_ptr<const Generation>(const DeviceFault&)> fault;
  {
    absl::MutexLock lock(&mu_);
    fault = fault_;
  }
  if (!fault) return;
  auto generation = fault(DeviceFault{*end.reason, end.cause, end.suspects, std::move(running)});
  absl::MutexLock lock(&mu_);
  if (generation != nullptr) generation_ = std::move(generation);
}

bool SupervisedDevice::AwaitRestart(const EngineEnd& end) {
  const auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_; };
  const auto retry = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || resume_requested_; };
  if (!end.reason) return false;
  {
    absl::MutexLock lock(&mu_);
    if (stop_) return false;
    ++status_.restarts_by_reason[*end.reason];
  }
  const auto wait = restart_policy_.OnFailure(Clock::now());
  if (wait) {
    SetState(State::kRestarting, end.cause);
    absl::MutexLock lock(&mu_);
    return !mu_.AwaitWithTimeout(absl::Condition(&stopped), absl::FromChrono(*wait));
  }

  const std::string detail = absl::StrCat(
      end.cause, "; that was failure ", RestartPolicy::kMaxFailures, " within ",
      RestartPolicy::kWindow.count(),
      " s, so the engine is not started again. Fix: remove the "
      "cause, then resume the device (residentctl admin resume) or restart the daemon");
  {
    absl::MutexLock lock(&mu_);
    resume_requested_ = false;  // An earlier resume was not meant for this failure.
  }
  DropNext();
  SetState(State::kUnhealthy, detail);
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&retry));
    if (stop_) return false;
  }
  restart_policy_.Forget();
  SetState(State::kRestarting, "resumed after it was unhealthy");
  return true;
}

std::string SupervisedDevice::Name() const {
  return absl::StrCat("engine of device ", options_.index);
}

std::string SupervisedDevice::SlotName(uint32_t operator_slot) const {
  if (options_.slot_name) return options_.slot_name(operator_slot);
  return absl::StrCat("operator slot ", operator_slot);
}

void SupervisedDevice::SetState(State state, const std::string& detail) {
  std::function<void(State)> changed;
  {
    absl::MutexLock lock(&mu_);
    status_.detail = detail;
    if (status_.state != state) changed = changed_;
    status_.state = state;
  }
  if (changed) changed(state);
  SettleWaiters();
}

absl::Status SupervisedDevice::StoppedError() const {
  return absl::UnavailableError(absl::StrCat("device ", options_.index, " is shutting down"));
}

absl::Status SupervisedDevice::UnhealthyError() const {
  return errors::DeviceUnhealthy(options_.index, status_.detail);
}

}  // namespace resident
