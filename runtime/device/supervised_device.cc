#include "runtime/device/supervised_device.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/device/generation_change.h"
#include "runtime/device/heartbeat_monitor.h"
#include "runtime/ring/host_ring.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// Between looks at the heartbeat and at overdue tasks. A look costs some microseconds:
// at 20 a second an idle device's supervision is far below a thousandth of a core.
constexpr milliseconds kTick{50};
constexpr seconds kStartLimit{60};
constexpr seconds kResumeLimit{10};
// A park with nothing left in flight: how long the kernel may take to leave.
constexpr seconds kLeaveLimit{5};
constexpr seconds kShutdownLimit{2};
// A broken control plane: how long until the engine must be seen to have ended.
constexpr seconds kEndLimit{1};

bool IsFaultSignal(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGABRT;
}

// Slots that hold an operator in `after` and another one, or none, in `before`.
std::vector<uint32_t> SlotsWithOtherOperators(const Generation* before, const Generation& after) {
  std::unordered_map<uint32_t, std::string_view> symbols;
  if (before != nullptr) {
    for (const GenerationOperator& op : before->operators) symbols[op.slot] = op.symbol;
  }
  std::vector<uint32_t> slots;
  for (const GenerationOperator& op : after.operators) {
    const auto found = symbols.find(op.slot);
    if (found == symbols.end() || found->second != op.symbol) slots.push_back(op.slot);
  }
  return slots;
}

}  // namespace

struct SupervisedDevice::Watched {
  EngineProcess& engine;
  HeartbeatMonitor heart;
  Clock::time_point next_tick;
  Parking parking = Parking::kRunning;
  std::unique_ptr<GenerationChange> change;  // While one is under way.
  uint64_t changes = 0;                      // Numbers of this engine's.
  Clock::time_point resident_since;
  Clock::time_point park_began;
  // Since when a park has had nothing in flight to wait for.
  std::optional<Clock::time_point> park_idle_since;
  // The next step of parking is due now, not at the next tick.
  bool step_at_once = false;
};

absl::StatusOr<std::unique_ptr<Device>> Device::Create(const DeviceOptions& options) {
  auto device = std::make_unique<SupervisedDevice>(options);
  absl::Status started = device->AwaitFirstStart();
  if (!started.ok()) return started;
  return device;
}

SupervisedDevice::SupervisedDevice(const DeviceOptions& options)
    : options_(options),
      wake_(std::make_shared<WakeEvent>()),
      generation_(options.engine.generation),
      queue_(options.queue) {
  queue_.OnWorkWhileParked([this] {
    {
      absl::MutexLock lock(&mu_);
      work_arrived_ = true;
    }
    wake_->Signal();
  });
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

std::shared_ptr<EngineSession> SupervisedDevice::session() {
  absl::MutexLock lock(&mu_);
  return session_;
}

absl::Status SupervisedDevice::Park() {
  absl::MutexLock lock(&mu_);
  if (stop_) return StoppedError();
  if (state_ == State::kUnhealthy) return UnhealthyError();
  admin_parked_ = true;
  resume_wanted_ = false;
  wake_->Signal();
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return state_ == State::kParked || state_ == State::kUnhealthy || stop_ || !admin_parked_;
  };
  mu_.Await(absl::Condition(&settled));
  if (state_ == State::kParked) return absl::OkStatus();
  if (stop_) return StoppedError();
  if (state_ == State::kUnhealthy) return UnhealthyError();
  return absl::AbortedError("the device was resumed while it was being parked");
}

absl::Status SupervisedDevice::Resume() {
  absl::MutexLock lock(&mu_);
  if (stop_) return StoppedError();
  admin_parked_ = false;
  resume_wanted_ = true;
  wake_->Signal();
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || admin_parked_ ||
           (!resume_wanted_ && (state_ == State::kResident || state_ == State::kUnhealthy));
  };
  mu_.Await(absl::Condition(&settled));
  if (stop_) return StoppedError();
  if (state_ == State::kUnhealthy) return UnhealthyError();
  if (admin_parked_) return absl::AbortedError("the device was parked while it was being resumed");
  return absl::OkStatus();
}

Device::Snapshot SupervisedDevice::snapshot() const {
  Snapshot snapshot;
  std::shared_ptr<LiveSession> session;
  {
    absl::MutexLock lock(&mu_);
    snapshot.state = state_;
    snapshot.detail = detail_;
    snapshot.engine_pid = engine_pid_;
    snapshot.info = info_;
    snapshot.generation_changes = generation_changes_;
    snapshot.last_generation_pause = last_generation_pause_;
    snapshot.last_switch = last_switch_;
    snapshot.failed_generation_changes = failed_generation_changes_;
    snapshot.parks = parks_;
    snapshot.resumes = resumes_;
    snapshot.restarts_by_cause = restarts_by_cause_;
    session = session_;
  }
  if (session != nullptr) snapshot.memory_used_bytes = session->memory_used_bytes();
  snapshot.queue = queue_.counters();
  return snapshot;
}

void SupervisedDevice::OnRestart(
    std::function<void(const std::shared_ptr<EngineSession>&)> restore) {
  absl::MutexLock lock(&mu_);
  restore_ = std::move(restore);
}

absl::Status SupervisedDevice::LoadGeneration(std::shared_ptr<const Generation> generation,
                                              milliseconds park_deadline) {
  absl::MutexLock load_lock(&load_mu_);
  Loading loading{.generation = std::move(generation),
                  .operators = {},
                  .park_deadline = park_deadline,
                  .engine_pid = 0,
                  .result = std::nullopt};
  std::shared_ptr<EngineClient> client;
  {
    absl::MutexLock lock(&mu_);
    if (stop_) return StoppedError();
    if (state_ == State::kUnhealthy) return UnhealthyError();
    if (client_ == nullptr) {
      return absl::UnavailableError(absl::StrCat(
          "device ", options_.index, " has no engine at present: ", detail_, ". Fix: try again"));
    }
    if (loading.generation->number <= info_.generation) {
      return absl::FailedPreconditionError(absl::StrCat(
          "device ", options_.index, " runs generation ", info_.generation, " already, and ",
          loading.generation->number, " is not above it. Fix: number generations upwards"));
    }
    client = client_;
    loading.engine_pid = engine_pid_;
  }
  // On this thread, beside the running kernel: it may take a while.
  absl::StatusOr<std::vector<OperatorResources>> staged = client->Stage(*loading.generation);
  absl::MutexLock lock(&mu_);
  if (!staged.ok()) {
    ++failed_generation_changes_;
    return staged.status();
  }
  loading.operators = *std::move(staged);
  if (stop_) return StoppedError();
  if (engine_pid_ != loading.engine_pid) {
    ++failed_generation_changes_;
    return absl::UnavailableError(absl::StrCat("the ", Name(), " was replaced while generation ",
                                               loading.generation->number,
                                               " was staged. Fix: load it again"));
  }
  loading_ = &loading;  // The supervisor's until it has set the result.
  wake_->Signal();
  const auto settled = [&loading] { return loading.result.has_value(); };
  mu_.Await(absl::Condition(&settled));
  return *loading.result;
}

void SupervisedDevice::SetGeneration(std::shared_ptr<const Generation> generation) {
  absl::MutexLock lock(&mu_);
  generation_ = std::move(generation);
}

void SupervisedDevice::OnFault(
    std::function<std::shared_ptr<const Generation>(const DeviceFault&)> fault) {
  absl::MutexLock lock(&mu_);
  fault_ = std::move(fault);
}

void SupervisedDevice::OnStateChange(std::function<void(State)> changed) {
  absl::MutexLock lock(&mu_);
  changed_ = std::move(changed);
}

void SupervisedDevice::Shutdown() {
  absl::MutexLock shutdown_lock(&shutdown_mu_);
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    // A start is not waited for: it can take long.
    if (starting_ != nullptr) starting_->child().Kill(SIGKILL);
  }
  wake_->Signal();
  if (supervisor_.joinable()) supervisor_.join();
}

void SupervisedDevice::Supervise() {
  prctl(PR_SET_NAME, "resident-super");
  bool restart = false;
  while (true) {
    End end;
    EngineInfo info;
    absl::StatusOr<std::unique_ptr<EngineProcess>> engine = StartEngine(&info);
    if (engine.ok()) {
      Adopt(**engine, info, restart);
      end = Watch(**engine);
      Retire(**engine, end);
    } else if (!restart) {
      absl::MutexLock lock(&mu_);
      first_start_ = engine.status();
      return;
    } else {
      end = End{
          "start",
          absl::StrCat("the ", Name(), " did not start: ", std::string(engine.status().message())),
          {}};
      ReportFault(end, {});
    }
    engine = absl::CancelledError();  // Reaped and unmapped before the next one.
    restart = true;
    if (!AwaitRestart(end)) return;
  }
}

absl::StatusOr<std::unique_ptr<EngineProcess>> SupervisedDevice::StartEngine(EngineInfo* info) {
  DeviceOptions options = options_;
  {
    absl::MutexLock lock(&mu_);
    options.engine.generation = generation_;
  }
  auto engine = EngineProcess::Launch(options);
  if (!engine.ok()) return engine;
  {
    absl::MutexLock lock(&mu_);
    if (stop_) return StoppedError();
    starting_ = engine->get();
  }
  absl::StatusOr<EngineInfo> started = (*engine)->Start(kStartLimit);
  {
    absl::MutexLock lock(&mu_);
    starting_ = nullptr;
  }
  if (!started.ok()) return started.status();
  *info = *std::move(started);
  return engine;
}

void SupervisedDevice::Adopt(EngineProcess& engine, const EngineInfo& info, bool restart) {
  const uint64_t epoch = queue_.SetRing(std::make_shared<HostRing>(engine.region(), info.workers));
  live_session_ =
      std::make_shared<LiveSession>(epoch, info, engine.region(), engine.client(), wake_);
  std::function<void(const std::shared_ptr<EngineSession>&)> restore;
  {
    absl::MutexLock lock(&mu_);
    info_ = info;
    client_ = engine.client();
    engine_pid_ = engine.child().pid();
    restored_ = false;
    if (restart) restore = restore_;
  }
  if (!restore) {
    Publish();
    return;
  }
  // On a thread of its own: the engine is watched meanwhile, and should it end, the
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
  {
    absl::MutexLock lock(&mu_);
    session_ = live_session_;
  }
  SetState(State::kResident, "");
  absl::MutexLock lock(&mu_);
  if (!first_start_) first_start_ = absl::OkStatus();
}

SupervisedDevice::End SupervisedDevice::Watch(EngineProcess& engine) {
  const Clock::time_point now = Clock::now();
  Watched watched{.engine = engine,
                  .heart = HeartbeatMonitor(options_.heartbeat_limit, kTick, now),
                  .next_tick = now + kTick,
                  .change = nullptr,
                  .resident_since = now,
                  .park_began = now,
                  .park_idle_since = std::nullopt};
  pollfd events[] = {{engine.child().pidfd(), POLLIN, 0}, {wake_->fd(), POLLIN, 0}};
  while (true) {
    if (!std::exchange(watched.step_at_once, false)) {
      Clock::time_point until = watched.next_tick;
      if (watched.change != nullptr) until = std::min(until, watched.change->next_step());
      const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
      poll(events, 2, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    }
    wake_->Drain();
    const Wants wants = TakeWants();
    if (wants.stop) return End{};
    if (const auto exit = engine.child().Wait(seconds(0))) return DescribeExit(engine, *exit);
    UnmapReleased(engine);
    if (Clock::now() >= watched.next_tick) {
      watched.next_tick = Clock::now() + kTick;
      if (auto end = Tick(watched)) return *std::move(end);
    }
    if (auto end = StepLoading(watched, wants)) return *std::move(end);
    // A kernel that is about to be changed is not parked besides.
    if (watched.change != nullptr) continue;
    if (auto end = StepParking(watched, wants)) return *std::move(end);
  }
}

std::optional<SupervisedDevice::End> SupervisedDevice::Tick(Watched& watched) {
  if (watched.heart.IsLate(watched.engine.heartbeat(), Clock::now())) {
    return End{"heartbeat",
               absl::StrCat("the ", Name(), " gave no sign of life for ",
                            options_.heartbeat_limit.count(), " ms and was ended"),
               {}};
  }
  if (queue_.counters().in_flight == 0) return std::nullopt;
  const std::vector<OverdueTask> overdue =
      queue_.FindOverdue([this](uint32_t slot) { return TimeLimitOf(slot); });
  if (overdue.empty()) return std::nullopt;
  const uint32_t slot = overdue.front().operator_slot;
  const int64_t limit = std::chrono::duration_cast<milliseconds>(TimeLimitOf(slot)).count();
  End end{"hang", "", {}};
  if (slot == kNoOperatorSlot) {
    end.cause =
        absl::StrCat("the kernel of device ", options_.index, " did not take up a task within ",
                     limit, " ms (--task_time_limit), and the ", Name(), " was ended");
  } else {
    const bool own = TimeLimitOf(slot) != TimeLimitOf(kNoOperatorSlot);
    end.cause = absl::StrCat("a task of ", SlotName(slot), " ran for more than ", limit, " ms (",
                             own ? "its operator's limit" : "--task_time_limit", "), and the ",
                             Name(), " was ended");
  }
  for (const OverdueTask& task : overdue) {
    if (task.operator_slot != kNoOperatorSlot) end.suspects.push_back(task.operator_slot);
  }
  std::sort(end.suspects.begin(), end.suspects.end());
  end.suspects.erase(std::unique(end.suspects.begin(), end.suspects.end()), end.suspects.end());
  return end;
}

nanoseconds SupervisedDevice::TimeLimitOf(uint32_t operator_slot) const {
  milliseconds limit{0};
  if (options_.slot_time_limit && operator_slot != kNoOperatorSlot) {
    limit = options_.slot_time_limit(operator_slot);
  }
  if (limit.count() == 0) limit = options_.task_time_limit;
  return limit.count() == 0 ? nanoseconds::max() : nanoseconds(limit);
}

std::optional<SupervisedDevice::End> SupervisedDevice::StepLoading(Watched& watched,
                                                                   const Wants& wants) {
  if (wants.loading == nullptr) return std::nullopt;
  if (watched.change == nullptr) {
    if (watched.parking == Parking::kParking) return std::nullopt;
    if (watched.parking == Parking::kParked) return LoadWhileParked(watched, wants.loading);
    watched.change = std::make_unique<GenerationChange>(watched.engine, queue_, ++watched.changes,
                                                        wants.loading->generation->number,
                                                        wants.loading->park_deadline);
  }
  switch (watched.change->Step()) {
    case GenerationChange::Progress::kWaiting:
      return std::nullopt;
    case GenerationChange::Progress::kDone:
      break;
    case GenerationChange::Progress::kLost:
      // What waits for the load is answered when the engine is retired.
      return DescribeFailedCall(watched.engine, "change its generation", watched.change->result());
  }
  const absl::Status result = watched.change->result();
  if (result.code() == absl::StatusCode::kUnavailable) {
    // Most likely it has ended: whoever waits is told how.
    if (const auto exit = watched.engine.child().Wait(kEndLimit)) {
      return DescribeExit(watched.engine, *exit);
    }
  }
  if (const nanoseconds pause = watched.change->pause(); pause.count() > 0) {
    generation_pause_.Observe(static_cast<uint64_t>(pause.count()));
    absl::MutexLock lock(&mu_);
    last_generation_pause_ = pause;
    last_switch_ = watched.change->times();
  }
  watched.change.reset();
  watched.resident_since = Clock::now();
  FinishLoading(wants.loading, result);
  return std::nullopt;
}

std::optional<SupervisedDevice::End> SupervisedDevice::LoadWhileParked(Watched& watched,
                                                                       Loading* loading) {
  const absl::StatusOr<SwitchTimes> times =
      watched.engine.client()->Switch(++watched.changes, /*launch=*/false, nanoseconds(0));
  if (!times.ok() && watched.engine.child().Wait(seconds(0))) {
    return DescribeFailedCall(watched.engine, "change its generation", times.status());
  }
  FinishLoading(loading, times.status());
  return std::nullopt;
}

void SupervisedDevice::FinishLoading(Loading* loading, absl::Status result) {
  if (result.ok()) {
    std::shared_ptr<const Generation> before;
    {
      absl::MutexLock lock(&mu_);
      before = generation_;
    }
    // Their tasks come only once the load has been answered.
    for (const uint32_t slot : SlotsWithOtherOperators(before.get(), *loading->generation)) {
      queue_.ForgetEstimate(slot);
    }
  }
  absl::MutexLock lock(&mu_);
  if (result.ok()) {
    generation_ = loading->generation;
    info_.generation = loading->generation->number;
    info_.operators = std::move(loading->operators);
    ++generation_changes_;
  } else {
    ++failed_generation_changes_;
  }
  loading->result = std::move(result);
  loading_ = nullptr;
}

std::optional<SupervisedDevice::End> SupervisedDevice::StepParking(Watched& watched,
                                                                   const Wants& wants) {
  switch (watched.parking) {
    case Parking::kRunning:
      return BeginParking(watched, wants);
    case Parking::kParking:
      return FinishParking(watched, wants);
    case Parking::kParked:
      break;
  }
  if (wants.parked) {
    absl::ReleasableMutexLock lock(&mu_);
    const bool was_idle = state_ == State::kIdleParked;
    lock.Release();
    if (was_idle) SetState(State::kParked, "");
    return std::nullopt;
  }
  bool admin = false;
  {
    absl::MutexLock lock(&mu_);
    admin = state_ == State::kParked;
  }
  if (admin || wants.resume || wants.work || queue_.counters().queued_tasks > 0) {
    return ResumeKernel(watched);
  }
  return std::nullopt;
}

std::optional<SupervisedDevice::End> SupervisedDevice::BeginParking(Watched& watched,
                                                                    const Wants& wants) {
  {
    absl::MutexLock lock(&mu_);
    if (session_ == nullptr) return std::nullopt;  // Still being restored.
    resume_wanted_ = false;                        // It is resident.
  }
  const Clock::time_point now = Clock::now();
  bool idle = false;
  if (options_.park_after.count() > 0) {
    const Clock::time_point idle_since = queue_.idle_since();
    idle = idle_since != Clock::time_point::max() &&
           now - std::max(idle_since, watched.resident_since) >= options_.park_after;
  }
  if (!wants.parked && !idle) return std::nullopt;
  {
    absl::MutexLock lock(&mu_);
    work_arrived_ = false;  // From before the park.
  }
  // A full ring has no room for the marker: the next tick tries again.
  if (!queue_.BeginPark().ok()) return std::nullopt;
  watched.parking = Parking::kParking;
  watched.park_began = now;
  watched.park_idle_since.reset();
  watched.step_at_once = true;
  return std::nullopt;
}

std::optional<SupervisedDevice::End> SupervisedDevice::FinishParking(Watched& watched,
                                                                     const Wants& wants) {
  // The wait is the engine's, a tick at a time, so that the other checks go on.
  watched.step_at_once = true;
  const absl::Status status = watched.engine.client()->AwaitPark(kTick);
  const Clock::time_point now = Clock::now();
  if (status.ok()) {
    watched.parking = Parking::kParked;
    park_duration_.Observe(static_cast<uint64_t>(nanoseconds(now - watched.park_began).count()));
    {
      absl::MutexLock lock(&mu_);
      ++parks_;
    }
    SetState(wants.parked ? State::kParked : State::kIdleParked, "");
    return std::nullopt;
  }
  if (status.code() != absl::StatusCode::kDeadlineExceeded) {
    return DescribeFailedCall(watched.engine, "park", status);
  }
  // While tasks are in flight the park waits for them, and Tick() for one that hangs.
  if (queue_.counters().in_flight > 0) {
    watched.park_idle_since.reset();
    return std::nullopt;
  }
  if (!watched.park_idle_since) watched.park_idle_since = now;
  if (now - *watched.park_idle_since < kLeaveLimit) return std::nullopt;
  return End{
      "hang",
      absl::StrCat("the kernel of device ", options_.index, " did not leave within ",
                   kLeaveLimit.count(), " s of its last task, and the ", Name(), " was ended"),
      {}};
}

std::optional<SupervisedDevice::End> SupervisedDevice::ResumeKernel(Watched& watched) {
  const Clock::time_point began = Clock::now();
  const absl::Status status = watched.engine.client()->Resume(kResumeLimit);
  if (!status.ok()) return DescribeFailedCall(watched.engine, "resume", status);
  queue_.EndPark();
  watched.parking = Parking::kRunning;
  watched.resident_since = Clock::now();
  resume_duration_.Observe(
      static_cast<uint64_t>(nanoseconds(watched.resident_since - began).count()));
  {
    absl::MutexLock lock(&mu_);
    ++resumes_;
    work_arrived_ = false;
    resume_wanted_ = false;
  }
  SetState(State::kResident, "");
  return std::nullopt;
}

void SupervisedDevice::UnmapReleased(EngineProcess& engine) {
  for (uint64_t address : live_session_->TakeReleased()) {
    // An engine that cannot unmap keeps the mapping until it ends; if it is because
    // it has ended, that is found out elsewhere.
    engine.client()->UnmapShared(address).IgnoreError();
  }
}

SupervisedDevice::Wants SupervisedDevice::TakeWants() {
  bool restored = false;
  Wants wants;
  {
    absl::MutexLock lock(&mu_);
    wants = Wants{stop_, admin_parked_, resume_wanted_, work_arrived_, loading_};
    restored = std::exchange(restored_, false);
  }
  if (restored) {
    restorer_.join();
    Publish();
  }
  return wants;
}

void SupervisedDevice::Retire(EngineProcess& engine, const End& end) {
  {
    absl::MutexLock lock(&mu_);
    session_ = nullptr;
    client_ = nullptr;
    engine_pid_ = 0;
  }
  live_session_->End();
  if (!end.kind.empty()) {
    SetState(State::kRestarting, end.cause);
  } else if (engine.client()->Shutdown(kShutdownLimit).code() !=
             absl::StatusCode::kDeadlineExceeded) {
    engine.child().Wait(kShutdownLimit);
  }
  engine.child().Kill(SIGKILL);
  engine.child().Wait(ChildProcess::kReapLimit);

  // Breadcrumbs tell who was running; they are read before the ring goes.
  std::vector<uint32_t> suspects = end.suspects;
  if (end.kind == "fault") suspects = queue_.RunningSlots();
  std::string cause = end.cause;
  if (end.kind.empty()) cause = "the daemon is shutting down";
  if (end.kind == "fault" && !suspects.empty()) {
    cause += "; running:";
    for (uint32_t slot : suspects) absl::StrAppend(&cause, " ", SlotName(slot));
  }
  if (!end.kind.empty()) {
    std::vector<RunningTask> running = queue_.RunningTasks();
    running.erase(std::remove_if(running.begin(), running.end(),
                                 [&](const RunningTask& task) {
                                   return std::find(suspects.begin(), suspects.end(),
                                                    task.task.operator_slot) == suspects.end();
                                 }),
                  running.end());
    ReportFault(End{end.kind, cause, suspects}, std::move(running));
  }
  FailLoading(cause);
  queue_.LoseRing(cause, suspects);
  if (restorer_.joinable()) restorer_.join();
  live_session_.reset();
}

void SupervisedDevice::ReportFault(const End& end, std::vector<RunningTask> running) {
  std::function<std::shared_ptr<const Generation>(const DeviceFault&)> fault;
  {
    absl::MutexLock lock(&mu_);
    fault = fault_;
  }
  if (!fault) return;
  auto generation = fault(DeviceFault{end.kind, end.cause, end.suspects, std::move(running)});
  absl::MutexLock lock(&mu_);
  if (generation != nullptr) generation_ = std::move(generation);
}

void SupervisedDevice::FailLoading(const std::string& cause) {
  absl::MutexLock lock(&mu_);
  if (loading_ == nullptr) return;
  ++failed_generation_changes_;
  loading_->result = absl::UnavailableError(
      absl::StrCat("generation ", loading_->generation->number, " was not loaded: ", cause,
                   ". Fix: load it again once the device serves"));
  loading_ = nullptr;
}

bool SupervisedDevice::AwaitRestart(const End& end) {
  const auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_; };
  const auto retry = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || resume_wanted_; };
  if (end.kind.empty()) return false;
  {
    absl::MutexLock lock(&mu_);
    if (stop_) return false;
    ++restarts_by_cause_[end.kind];
  }
  const auto wait = restart_policy_.OnFailure(Clock::now());
  if (wait) {
    SetState(State::kRestarting, end.cause);
    absl::MutexLock lock(&mu_);
    return !mu_.AwaitWithTimeout(absl::Condition(&stopped), absl::FromChrono(*wait));
  }

  const std::string detail = absl::StrCat(
      end.cause, "; that was failure ", RestartPolicy::kMostFailures, " within ",
      RestartPolicy::kWindow.count(),
      " s, so the engine is not started again. Fix: remove the "
      "cause, then resume the device (residentctl admin resume) or restart the daemon");
  {
    absl::MutexLock lock(&mu_);
    resume_wanted_ = false;  // One from before cannot have known.
  }
  SetState(State::kUnhealthy, detail);
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&retry));
    if (stop_) return false;
  }
  restart_policy_.Forget();
  SetState(State::kRestarting, "resumed after it was given up");
  return true;
}

SupervisedDevice::End SupervisedDevice::DescribeExit(EngineProcess& engine,
                                                     const ChildExit& exit) const {
  const std::string words = engine.last_words();
  if (!words.empty()) return {"fault", absl::StrCat("the ", Name(), " ended: ", words), {}};
  // Nobody else ends a process with these signals, or makes it exit.
  const bool fault = exit.signal ? IsFaultSignal(*exit.signal) : exit.status != 0;
  return {fault ? "fault" : "killed", absl::StrCat("the ", Name(), " ", exit.ToString()), {}};
}

SupervisedDevice::End SupervisedDevice::DescribeFailedCall(EngineProcess& engine, const char* call,
                                                           const absl::Status& status) const {
  // An engine whose device has faulted fails the call first and ends itself then.
  if (const auto exit = engine.child().Wait(kEndLimit)) return DescribeExit(engine, *exit);
  return {status.code() == absl::StatusCode::kDeadlineExceeded ? "hang" : "fault",
          absl::StrCat("the ", Name(), " failed to ", call, ": ", std::string(status.message())),
          {}};
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
    detail_ = detail;
    if (state_ != state) changed = changed_;
    state_ = state;
  }
  if (changed) changed(state);
}

absl::Status SupervisedDevice::StoppedError() const {
  return absl::UnavailableError(absl::StrCat("device ", options_.index, " is shutting down"));
}

absl::Status SupervisedDevice::UnhealthyError() const {
  return absl::UnavailableError(
      absl::StrCat("device ", options_.index, " is unhealthy: ", detail_));
}

}  // namespace resident
