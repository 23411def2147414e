#include "runtime/queue/device_queue.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/status_macros.h"
#include "runtime/queue/batch_outcome.h"
#include "runtime/queue/client_queues.h"
#include "runtime/queue/completion_alarm.h"
#include "runtime/queue/hot_lanes.h"
#include "runtime/queue/ring_tasks.h"
#include "runtime/ring/doorbell.h"
#include "runtime/ring/host_ring.h"

namespace resident {
namespace {

using std::chrono::nanoseconds;

// How long the dispatch loop sleeps between two polls of the ring while tasks are in flight and
// none completes. It doubles from the minimum to the maximum.
constexpr nanoseconds kMinPollBackoff = std::chrono::microseconds(20);
constexpr nanoseconds kMaxPollBackoff = std::chrono::microseconds(500);
// How long the dispatcher pauses while callers run the dispatch loop inline.
constexpr absl::Duration kInlineCallersPause = absl::Microseconds(50);
// While lanes are polled: iterations without progress for each yield, which is a system call and
// costs as much as a submission's way through memory.
constexpr uint32_t kPollsPerYield = 64;
// How long polling of lanes before a submission does not count for Options::lane_spin_share.
constexpr nanoseconds kFreePolling = std::chrono::microseconds(20);

}  // namespace

// Two locks, always taken in this order:
//
//   dispatch_mu_  the ring and the tasks in flight; held for one iteration of the dispatch loop.
//   mu_           clients and their queues; held briefly.
//
// A batch moves from a client's queue (under mu_) to the ring (under dispatch_mu_) as its
// tasks are submitted, and is then owned by the slots of its tasks; an in-order batch is queued
// again after each task. It counts against its client's limits until it has ended
// (queue_use.h).
class DeviceQueue::Impl {
 public:
  explicit Impl(const Options& options)
      : options_(options),
        time_(*options.time),
        lanes_(options.max_hot_lanes, options.lane_spin),
        queues_(*options.time) {
    dispatcher_ = std::thread([this] { DispatchLoop(); });
  }

  ~Impl() {
    LoseRing("the daemon is stopping", {});
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      wake_dispatcher_ = true;
    }
    dispatcher_.join();
  }

  void AddClient(ClientId id) {
    absl::MutexLock lock(&mu_);
    queues_.Add(id);
  }

  void RemoveClient(ClientId id) {
    {
      PriorityLock lock_dispatch(this);
      absl::MutexLock lock(&mu_);
      if (!queues_.Remove(id)) return;
      // In-order batches with a task in the ring are not in `queues_`.
      tasks_.CancelInOrder(id);
    }
    NoteCancelled();
  }

  absl::Status Enqueue(ClientId id, std::shared_ptr<Batch> batch, nanoseconds inline_time) {
    if (batch->count() == 0) return absl::InvalidArgumentError("a batch has at least one task");
    assert(batch->submitted == 0 && batch->finished == 0);
    batch->client = id;
    PrepareOutcomes(*batch);
    const Clock::time_point now = batch->enqueued_at = Clock::now();
    const std::shared_ptr<Batch> held = inline_time.count() != 0 ? batch : nullptr;
    {
      absl::MutexLock lock(&mu_);
      if (!has_ring_ || batch->epoch != epoch_) {
        return absl::UnavailableError(absl::StrCat(
            has_ring_ ? "the device's engine was replaced while the batch was prepared"
                      : "the device has no running engine",
            loss_.empty() ? "" : absl::StrCat(" (", loss_, ")"), ". Fix: send the batch again"));
      }
      RETURN_IF_ERROR(
          queues_.Push(id, std::move(batch), options_.max_queued_tasks, options_.max_queued_bytes));
      NoteBusy(now);
      NoteSource(nullptr, now);
      work_arrived_.store(true, std::memory_order_seq_cst);
      if (inline_time.count() == 0) WakeDispatcher();
    }
    if (inline_time.count() != 0) RunInline(held, inline_time);
    return absl::OkStatus();
  }

  void NoteCancelled() {
    absl::MutexLock lock(&mu_);
    drop_expired_ = true;
    work_arrived_.store(true, std::memory_order_seq_cst);
    WakeDispatcher();
  }

  void AddLane(ClientId client, std::shared_ptr<LaneSource> lane) {
    PriorityLock lock_dispatch(this);
    lanes_.Add(client, std::move(lane));
    NoteLanes();
    absl::MutexLock lock(&mu_);
    WakeDispatcher();
  }

  void RemoveLane(const LaneSource* lane) {
    PriorityLock lock_dispatch(this);
    lanes_.Remove(lane);
    lanes_wait_ = false;  // The next iteration looks again.
    NoteLanes();
  }

  void NoteLaneWork(const LaneSource* lane) {
    absl::MutexLock lock(&mu_);
    rung_lanes_.insert(lane);
    lanes_rung_.store(true, std::memory_order_release);
    WakeDispatcher();
  }

  uint64_t SetRing(std::shared_ptr<HostRing> ring) {
    PriorityLock lock_dispatch(this);
    lanes_.WakeAll();
    NoteLanes();
    absl::MutexLock lock(&mu_);
    assert(!has_ring_);
    wake_control_ = ring->region().control();
    tasks_.SetRing(std::move(ring));
    has_ring_ = true;
    parked_ = false;
    loss_.clear();
    WakeDispatcher();
    idle_since_ = Clock::now();
    return ring_epoch_ = ++epoch_;
  }

  uint64_t epoch() const {
    absl::MutexLock lock(&mu_);
    return epoch_;
  }

  void LoseRing(const std::string& cause, const std::vector<uint32_t>& suspects) {
    Finished finished;
    {
      PriorityLock lock_dispatch(this);
      {
        absl::MutexLock lock(&mu_);
        if (!has_ring_) return;
        has_ring_ = false;
        parked_ = false;
        loss_ = cause;
      }
      const std::string not_run = absl::StrCat(cause, "; the task did not run. Fix: send it again");
      tasks_.LoseRing(cause, suspects, &finished.batches);
      absl::MutexLock lock(&mu_);
      for (auto& batch : tasks_.TakeReady()) {
        queues_.PushReady(std::move(batch), &finished.batches);
      }
      queues_.SkipAll(TaskStatus::kUnavailable, not_run, &finished.batches);
      wake_control_ = nullptr;
      clients_wait_ = false;
      in_flight_.store(0, std::memory_order_relaxed);
      NoteIdle();
    }
    Deliver(&finished);
  }

  absl::Status BeginPark() {
    PriorityLock lock_dispatch(this);
    absl::MutexLock lock(&mu_);
    if (!has_ring_) return absl::FailedPreconditionError("no engine to park");
    if (parked_) return absl::FailedPreconditionError("parked already");
    // If the ring is full, a task is in flight: its completion makes room for the marker.
    tasks_.BeginPark();
    parked_ = true;
    called_for_resume_ = false;
    return absl::OkStatus();
  }

  void EndPark() {
    Finished finished;
    {
      PriorityLock lock_dispatch(this);
      tasks_.EndPark();
      lanes_wait_ = false;
      lanes_.WakeAll();
      NoteLanes();
      {
        absl::MutexLock lock(&mu_);
        parked_ = false;
        work_arrived_.store(true, std::memory_order_seq_cst);
      }
      // On this thread, because the dispatcher takes tens of microseconds to wake.
      RunIteration(&finished, /*full_scan=*/false);
      absl::MutexLock lock(&mu_);
      WakeDispatcher();
    }
    Deliver(&finished);
  }

  absl::Status Hold() {
    PriorityLock lock_dispatch(this);
    absl::MutexLock lock(&mu_);
    if (!has_ring_) return absl::FailedPreconditionError("no engine to hold tasks back from");
    if (parked_) return absl::FailedPreconditionError("parked already");
    tasks_.Hold();
    parked_ = true;
    called_for_resume_ = true;  // No callback is needed: the caller of Hold ends the hold.
    return absl::OkStatus();
  }

  bool ParkIfDrained() {
    Finished finished;
    bool published = false;
    {
      PriorityLock lock_dispatch(this);
      if (tasks_.ring() == nullptr) return false;
      RunIteration(&finished, /*full_scan=*/true);
      published = tasks_.in_flight() == 0 && tasks_.PublishPark();
    }
    Deliver(&finished);
    return published;
  }

  void OnWorkWhileParked(std::function<void()> callback) {
    absl::MutexLock lock(&mu_);
    on_work_while_parked_ = std::move(callback);
  }

  Clock::time_point idle_since() const {
    absl::MutexLock lock(&mu_);
    return idle_since_;
  }

  std::vector<OverdueTask> FindOverdue(const TimeLimit& limit) {
    PriorityLock lock_dispatch(this);
    return tasks_.FindOverdue(limit);
  }

  std::vector<uint32_t> RunningSlots() {
    PriorityLock lock_dispatch(this);
    return tasks_.RunningSlots();
  }

  std::vector<RunningTask> RunningTasks() {
    PriorityLock lock_dispatch(this);
    return tasks_.RunningTasks();
  }

  void ForgetEstimate(uint32_t operator_slot) {
    PriorityLock lock_dispatch(this);
    tasks_.ForgetEstimate(operator_slot);
  }

  Counters counters() const {
    Counters counters;
    counters.in_flight = in_flight_.load(std::memory_order_relaxed);
    counters.next_sequence = next_sequence_.load(std::memory_order_relaxed);
    counters.ring_slots = ring_slots_.load(std::memory_order_relaxed);
    for (size_t reason = 0; reason < stopped_.size(); ++reason) {
      counters.stopped[reason] = stopped_[reason].load(std::memory_order_relaxed);
    }
    absl::MutexLock lock(&mu_);
    counters.queued_tasks = queues_.queued_tasks();
    counters.completed_tasks = completed_tasks_;
    counters.busy = busy_;
    if (idle_since_ == Clock::time_point::max()) counters.busy += Clock::now() - busy_since_;
    counters.lane_wakeups = lane_wakeups_.load(std::memory_order_relaxed);
    counters.lane_polling = nanoseconds(lane_polling_ns_.load(std::memory_order_relaxed));
    return counters;
  }

  const DurationHistogram& stop_durations() const { return stop_durations_; }

  ClientCounters client_counters(ClientId id) const {
    absl::MutexLock lock(&mu_);
    return queues_.counters(id);
  }

 private:
  // What to call once no lock is held.
  struct Finished {
    FinishedBatches batches;
    std::function<void()> call_for_resume;
    std::vector<std::shared_ptr<LaneSource>> lanes;  // To notify.
  };

  // Takes dispatch_mu_ before the threads that run the dispatch loop. Under load these threads
  // take it again as soon as they have released it, so another thread would wait for
  // milliseconds. They do not take it while a PriorityLock waits.
  class ABSL_SCOPED_LOCKABLE PriorityLock {
   public:
    explicit PriorityLock(Impl* impl) ABSL_EXCLUSIVE_LOCK_FUNCTION(impl->dispatch_mu_)
        : impl_(*impl) {
      impl_.priority_waiters_.fetch_add(1, std::memory_order_relaxed);
      // Waking up from a sleep would take tens of microseconds.
      while (!impl_.dispatch_mu_.TryLock()) std::this_thread::yield();
      impl_.priority_waiters_.fetch_sub(1, std::memory_order_relaxed);
    }
    ~PriorityLock() ABSL_UNLOCK_FUNCTION() { impl_.dispatch_mu_.Unlock(); }
    PriorityLock(const PriorityLock&) = delete;
    PriorityLock& operator=(const PriorityLock&) = delete;

   private:
    Impl& impl_;
  };

  // The function is long because the state of the thread (it spins, backs off, or sleeps) is in
  // local variables, and the order of what each state reads and writes prevents a lost wake-up.
  void DispatchLoop() {
    prctl(PR_SET_NAME, "resident-queue");
    prctl(PR_SET_TIMERSLACK, 1000);
    Clock::time_point last_progress = time_.Now();
    nanoseconds poll_backoff = kMinPollBackoff;
    bool idle = false;  // No progress for `options_.spin`.
    std::shared_ptr<HostRing> ring;
    CompletionAlarm alarm;
    uint32_t polls = 0;  // Of lanes, without progress.
    while (true) {
      if (inline_callers_.load(std::memory_order_relaxed) > 0) {
        // A caller that waits for an outcome runs the loop inline. If this thread found the
        // outcome, it would reach the caller through two more thread switches.
        alarm.Clear();
        absl::MutexLock lock(&mu_);
        mu_.AwaitWithTimeout(absl::Condition(&wake_dispatcher_), kInlineCallersPause);
        wake_dispatcher_ = false;
        idle = false;
      }
      Finished finished;
      bool progress;
      // Set before the last poll of the ring: a completion after it ends the sleep.
      if (idle) alarm.Set(ring);
      while (priority_waiters_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
      {
        absl::MutexLock lock_dispatch(&dispatch_mu_);
        progress = RunIteration(&finished, /*full_scan=*/idle);
        ring = tasks_.ring();
      }
      Deliver(&finished);
      const Clock::time_point now = time_.Now();
      CheckDeadlines(now);
      if (now.time_since_epoch().count() >= next_stop_.load(std::memory_order_relaxed)) {
        progress |= StopExpired(now);
      }
      const bool hot = hot_lanes_.load(std::memory_order_relaxed) > 0;
      CountLanePolling(now, hot && !progress);
      if (progress) {
        alarm.Clear();
        last_progress = now;
        poll_backoff = kMinPollBackoff;
        idle = false;
        continue;
      }
      if (hot) {
        alarm.Clear();
        idle = false;
        if (++polls % kPollsPerYield == 0) {
          std::this_thread::yield();
        } else {
          Pause();
        }
        continue;
      }
      if (!idle) {
        std::this_thread::yield();
        idle = now - last_progress >= options_.spin;
        continue;
      }
      if (alarm.is_set() && in_flight_.load(std::memory_order_relaxed) > 0) {
        sleeping_.store(true, std::memory_order_seq_cst);
        // Work that arrived before `sleeping_` was set did not raise the alarm.
        if (!work_arrived_.load(std::memory_order_seq_cst)) {
          const auto stop =
              Clock::time_point(Clock::duration(next_stop_.load(std::memory_order_relaxed)));
          alarm.Await(std::clamp<nanoseconds>(stop - now, kMinPollBackoff, poll_backoff));
        }
        sleeping_.store(false, std::memory_order_relaxed);
        poll_backoff = std::min(poll_backoff * 2, kMaxPollBackoff);
        continue;
      }
      alarm.Clear();
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
      // Work that waits for the end of a park may still pass its deadline.
      const bool waiting = idle_since_ == Clock::time_point::max();
      time_.Await(mu_, absl::Condition(&wake_dispatcher_),
                  waiting ? next_deadline_check_ : Clock::time_point::max());
      wake_dispatcher_ = false;
      last_progress = time_.Now();
      idle = false;
    }
  }

  // A pause of the processor that lets the other thread of its core run.
  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  // Counts the time since the last call if lanes were polled meanwhile `in_vain`, and lets them all
  // fall asleep when they have used up their share. A submission that arrives within kFreePolling
  // was worth the polling for it. Only the dispatcher calls this.
  void CountLanePolling(Clock::time_point now, bool in_vain) ABSL_LOCKS_EXCLUDED(dispatch_mu_) {
    const Clock::time_point before = std::exchange(last_poll_, in_vain ? now : Clock::time_point());
    if (!in_vain) {
      if (polled_ > kFreePolling) ChargePolling();
      polled_ = nanoseconds(0);
      return;
    }
    // Tasks in flight are polled for anyway.
    if (before == Clock::time_point() || in_flight_.load(std::memory_order_relaxed) > 0) return;
    if (now - poll_window_ >= kLaneShareWindow) {
      poll_window_ = now;
      polled_in_window_ = nanoseconds(0);
    }
    polled_ += now - before;
    if (polled_ <= kFreePolling ||
        polled_in_window_ + polled_ < kLaneShareWindow * options_.lane_spin_share) {
      return;
    }
    ChargePolling();
    absl::MutexLock lock(&dispatch_mu_);
    lanes_.AllFallAsleep();
    NoteLanes();
  }
  void ChargePolling() {
    polled_in_window_ += polled_;
    lane_polling_ns_.fetch_add(static_cast<uint64_t>(polled_.count()), std::memory_order_relaxed);
    polled_ = nanoseconds(0);
  }

  // Makes the next iteration drop expired batches, if there may be any; afterwards, the time of the
  // next check is later than `now`. Only the dispatcher calls this.
  void CheckDeadlines(Clock::time_point now) ABSL_LOCKS_EXCLUDED(mu_) {
    if (now < next_deadline_check_) return;
    next_deadline_check_ = now + kDeadlineCheckInterval;
    absl::MutexLock lock(&mu_);
    if (now < queues_.next_deadline()) return;
    drop_expired_ = true;
    work_arrived_.store(true, std::memory_order_relaxed);
    wake_dispatcher_ = true;  // The next iteration follows without a sleep.
  }

  // Returns whether the device was asked to stop a task.
  bool StopExpired(Clock::time_point now) ABSL_LOCKS_EXCLUDED(dispatch_mu_) {
    absl::MutexLock lock(&dispatch_mu_);
    const bool asked = tasks_.StopExpired(now);
    NoteStops();
    return asked;
  }
  // Copies what others read without dispatch_mu_.
  void NoteStops() ABSL_EXCLUSIVE_LOCKS_REQUIRED(dispatch_mu_) {
    next_stop_.store(tasks_.next_stop().time_since_epoch().count(), std::memory_order_relaxed);
    if (!tasks_.TakeStopsChanged()) return;
    for (size_t reason = 0; reason < stopped_.size(); ++reason) {
      stopped_[reason].store(tasks_.stopped(static_cast<StopReason>(reason)),
                             std::memory_order_relaxed);
    }
  }

  // Makes the dispatcher look for work, whatever it is waiting for.
  void WakeDispatcher() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    wake_dispatcher_ = true;
    if (wake_control_ != nullptr && sleeping_.load(std::memory_order_seq_cst)) {
      Doorbell::ForCompletions(wake_control_).Ring();
    }
  }

  // Runs the dispatch loop until the batch has ended or `timeout` has passed.
  void RunInline(const std::shared_ptr<Batch>& batch, nanoseconds timeout) {
    const Clock::time_point until = Clock::now() + timeout;
    bool done = false;
    inline_callers_.fetch_add(1, std::memory_order_relaxed);
    while (!done) {
      if (priority_waiters_.load(std::memory_order_relaxed) > 0 || !dispatch_mu_.TryLock()) {
        if (Clock::now() > until) break;
        std::this_thread::yield();
        continue;
      }
      Finished finished;
      RunIteration(&finished, /*full_scan=*/false);
      // Another thread's iteration may have consumed the batch's last completion.
      done = batch->finished == batch->count();
      dispatch_mu_.Unlock();
      Deliver(&finished);
      if (!done && Clock::now() > until) break;
    }
    inline_callers_.fetch_sub(1, std::memory_order_relaxed);
    // The dispatcher does the remaining work.
    absl::MutexLock lock(&mu_);
    if (in_flight_.load(std::memory_order_relaxed) > 0 ||
        work_arrived_.load(std::memory_order_acquire) || queues_.queued_tasks() > 0 ||
        hot_lanes_.load(std::memory_order_relaxed) > 0) {
      WakeDispatcher();
    }
  }

  // One iteration of the dispatch loop: completions, then submissions. Returns whether there was
  // progress. `full_scan`: finds every completion.
  bool RunIteration(Finished* finished, bool full_scan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(dispatch_mu_) {
    bool progress = tasks_.Consume(full_scan, &finished->batches);
    if (!lanes_.empty()) progress |= VisitLanes(finished);
    progress |= SubmitTasks(finished);
    in_flight_.store(tasks_.in_flight(), std::memory_order_relaxed);
    NoteStops();
    if (const HostRing* const ring = tasks_.ring().get()) {
      next_sequence_.store(ring->next_sequence(), std::memory_order_relaxed);
      ring_slots_.store(ring->slots(), std::memory_order_relaxed);
    }
    if (!finished->batches.empty()) {
      absl::MutexLock lock(&mu_);
      NoteIdle();
    }
    return progress;
  }

  // Takes what the hot lanes have, and gives it to their clients' queues. Returns whether anything
  // was taken.
  bool VisitLanes(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(dispatch_mu_) {
    if (lanes_rung_.load(std::memory_order_acquire)) {
      absl::flat_hash_set<const LaneSource*> rung;
      {
        absl::MutexLock lock(&mu_);
        rung.swap(rung_lanes_);
        lanes_rung_.store(false, std::memory_order_relaxed);
      }
      lane_wakeups_.fetch_add(lanes_.WakeUp(rung), std::memory_order_relaxed);
    }
    const bool may_take = tasks_.ring() != nullptr && !tasks_.held();
    const HotLanes::Round round =
        lanes_.Visit(may_take ? options_.quantum_tasks : 0, ring_epoch_, Clock::now);
    NoteLanes();
    if (round.empty() && !(round.waiting && tasks_.held())) return false;
    for (const HotLanes::Taken& taken : round.taken) {
      finished->lanes.push_back(taken.lane);
      if (taken.batch == nullptr) continue;
      taken.batch->client = taken.client;
      taken.batch->enqueued_at = round.now;
      PrepareOutcomes(*taken.batch);
    }
    absl::MutexLock lock(&mu_);
    for (const HotLanes::Taken& taken : round.taken) {
      if (taken.batch == nullptr) continue;
      NoteSource(taken.lane.get(), round.now);
      if (round.taken.size() == 1 && IsLone(*taken.batch, round.now)) {
        taken.batch->tasks[0].flags |= kTaskSlowAnswer;
      }
      NoteBusy(round.now);
      queues_.PushFromLane(taken.client, taken.batch, &finished->batches);
    }
    drop_expired_ |= round.cancelled;
    lanes_wait_ = round.waiting;
    work_arrived_.store(true, std::memory_order_relaxed);
    return !round.empty();
  }
  // `source` brings work at `now`: a lane, or null: a call of Enqueue.
  void NoteSource(const LaneSource* source, Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (source != last_source_) other_work_ = last_work_;
    last_source_ = source;
    last_work_ = now;
  }
  // Whether a batch of a lane, which is not queued yet, is a single small task, there is no other
  // work, and none has come from elsewhere lately. REQUIRES: NoteSource was called for the lane.
  bool IsLone(const Batch& batch, Clock::time_point now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(dispatch_mu_, mu_) {
    return batch.tasks.size() == 1 && (batch.tasks[0].flags & kTaskCompact) != 0 &&
           other_work_ + options_.only_source_time <= now && tasks_.in_flight() == 0 &&
           queues_.queued_tasks() == 0;
  }
  // Copies the number of hot lanes for readers without dispatch_mu_.
  void NoteLanes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(dispatch_mu_) {
    hot_lanes_.store(lanes_.hot(), std::memory_order_relaxed);
  }

  // Returns whether there was progress.
  bool SubmitTasks(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(dispatch_mu_) {
    if (tasks_.ring() == nullptr) return false;
    tasks_.SubmitDuePark();
    if (!work_arrived_.load(std::memory_order_acquire) && !tasks_.has_ready() &&
        !(clients_wait_ && tasks_.HasRoom() && tasks_.room_version() != served_room_version_)) {
      return false;
    }
    bool progress = false;
    bool published = false;
    {
      absl::MutexLock lock(&mu_);
      work_arrived_.store(false, std::memory_order_relaxed);
      // They are served after the clients that are waiting already.
      for (auto& batch : tasks_.TakeReady()) {
        queues_.PushReady(std::move(batch), &finished->batches);
      }
      if (std::exchange(drop_expired_, false)) {
        queues_.DropExpired(&finished->batches);
        // It ends soon: the dispatch loop looks for it without a pause.
        progress = tasks_.StopExpired(time_.Now());
      }
      if (!parked_) {
        const size_t finished_before = finished->batches.size();
        published = queues_.ServeAll(options_.quantum_tasks, &tasks_, &finished->batches);
        progress |= published || finished->batches.size() != finished_before;
        served_room_version_ = tasks_.room_version();
      } else if ((!queues_.empty() || lanes_wait_) && !called_for_resume_ &&
                 on_work_while_parked_) {
        called_for_resume_ = true;
        finished->call_for_resume = on_work_while_parked_;
      }
      clients_wait_ = !queues_.empty() && !parked_;
    }
    if (published) tasks_.RingDoorbell();
    return progress;
  }

  // A task arrived at `now`, which was read before mu_ was locked and can therefore be before the
  // time when another thread found the queue idle.
  void NoteBusy(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (idle_since_ == Clock::time_point::max()) return;
    busy_since_ = std::max(now, idle_since_);
    idle_since_ = Clock::time_point::max();
  }

  void NoteIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(dispatch_mu_, mu_) {
    const bool busy = queues_.queued_tasks() > 0 || tasks_.in_flight() > 0;
    if (busy || idle_since_ != Clock::time_point::max()) return;
    idle_since_ = Clock::now();
    busy_ += idle_since_ - busy_since_;
  }

  // Counts the finished batches and calls their `done`. Called without locks.
  void Deliver(Finished* finished) ABSL_LOCKS_EXCLUDED(mu_, dispatch_mu_) {
    if (finished->call_for_resume) finished->call_for_resume();
    for (const auto& lane : finished->lanes) lane->Notify();
    finished->lanes.clear();
    if (finished->batches.empty()) return;
    for (const auto& batch : finished->batches) CountOutcomes(*batch);
    {
      absl::MutexLock lock(&mu_);
      for (const auto& batch : finished->batches) {
        assert(batch->finished == batch->count());
        completed_tasks_ += batch->count();
        queues_.Ended(*batch);
      }
    }
    for (const auto& batch : finished->batches) {
      if (batch->done) batch->done(*batch);
    }
    finished->batches.clear();
  }

  const Options options_;
  TimeSource& time_;

  mutable absl::Mutex dispatch_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  DurationHistogram stop_durations_;
  RingTasks tasks_ ABSL_GUARDED_BY(dispatch_mu_){&stop_durations_};
  bool clients_wait_ ABSL_GUARDED_BY(dispatch_mu_) = false;  // Clients wait for room in the ring.
  HotLanes lanes_ ABSL_GUARDED_BY(dispatch_mu_);
  // A lane had something to take during the hold or park.
  bool lanes_wait_ ABSL_GUARDED_BY(dispatch_mu_) = false;
  uint64_t ring_epoch_ ABSL_GUARDED_BY(dispatch_mu_) = 0;  // The value of epoch_.
  // RingTasks::room_version when the clients were last served: until it changes, there is room for
  // no client that waits.
  uint64_t served_room_version_ ABSL_GUARDED_BY(dispatch_mu_) = 0;

  mutable absl::Mutex mu_;
  ClientQueues queues_ ABSL_GUARDED_BY(mu_);
  bool has_ring_ ABSL_GUARDED_BY(mu_) = false;
  bool parked_ ABSL_GUARDED_BY(mu_) = false;
  bool called_for_resume_ ABSL_GUARDED_BY(mu_) = false;
  bool drop_expired_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool wake_dispatcher_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t completed_tasks_ ABSL_GUARDED_BY(mu_) = 0;
  std::string loss_ ABSL_GUARDED_BY(mu_);
  Clock::time_point idle_since_ ABSL_GUARDED_BY(mu_) = Clock::now();
  // While a task is queued or in flight (idle_since_ is max()): since when.
  Clock::time_point busy_since_ ABSL_GUARDED_BY(mu_);
  // Time with a task, up to idle_since_, or up to busy_since_ while there is one.
  nanoseconds busy_ ABSL_GUARDED_BY(mu_){0};
  std::function<void()> on_work_while_parked_ ABSL_GUARDED_BY(mu_);
  // What brought work last, and when; and when anything else last did.
  const LaneSource* last_source_ ABSL_GUARDED_BY(mu_) = nullptr;
  Clock::time_point last_work_ ABSL_GUARDED_BY(mu_) = Clock::time_point::min();
  Clock::time_point other_work_ ABSL_GUARDED_BY(mu_) = Clock::time_point::min();
  // Lanes of NoteLaneWork.
  absl::flat_hash_set<const LaneSource*> rung_lanes_ ABSL_GUARDED_BY(mu_);
  // The ring's control block, for waking the dispatcher; null without a ring.
  ControlBlock* wake_control_ ABSL_GUARDED_BY(mu_) = nullptr;

  // Whether there may be something to submit. If not, an iteration need not take mu_.
  std::atomic<bool> work_arrived_{false};
  std::atomic<bool> sleeping_{false};
  // Callers that wait for a PriorityLock.
  std::atomic<uint32_t> priority_waiters_{0};
  // Callers that run the dispatch loop inline.
  std::atomic<uint32_t> inline_callers_{0};
  std::atomic<bool> lanes_rung_{false};  // rung_lanes_ is not empty.
  std::atomic<uint64_t> lane_wakeups_{0};
  std::atomic<uint64_t> lane_polling_ns_{0};
  // Copies for readers without dispatch_mu_.
  std::atomic<uint32_t> hot_lanes_{0};
  std::atomic<uint32_t> in_flight_{0};
  std::atomic<Clock::rep> next_stop_{Clock::time_point::max().time_since_epoch().count()};
  std::array<std::atomic<uint64_t>, kStopReasons> stopped_{};
  std::atomic<uint64_t> next_sequence_{0};
  std::atomic<uint32_t> ring_slots_{0};

  // Used by the dispatcher only.
  Clock::time_point next_deadline_check_;
  // When lanes were last polled in vain, and for how long since they had something; the beginning
  // of the present window of lane_spin_share, and the time of polling in it.
  Clock::time_point last_poll_;
  nanoseconds polled_{0};
  Clock::time_point poll_window_;
  nanoseconds polled_in_window_{0};
  std::thread dispatcher_;
};

DeviceQueue::DeviceQueue(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
DeviceQueue::~DeviceQueue() = default;
void DeviceQueue::AddClient(ClientId client) { impl_->AddClient(client); }
void DeviceQueue::RemoveClient(ClientId client) { impl_->RemoveClient(client); }
absl::Status DeviceQueue::Enqueue(ClientId client, std::shared_ptr<Batch> batch,
                                  nanoseconds inline_time) {
  return impl_->Enqueue(client, std::move(batch), inline_time);
}
void DeviceQueue::NoteCancelled() { impl_->NoteCancelled(); }
void DeviceQueue::AddLane(ClientId client, std::shared_ptr<LaneSource> lane) {
  impl_->AddLane(client, std::move(lane));
}
void DeviceQueue::RemoveLane(const LaneSource* lane) { impl_->RemoveLane(lane); }
void DeviceQueue::NoteLaneWork(const LaneSource* lane) { impl_->NoteLaneWork(lane); }
uint64_t DeviceQueue::SetRing(std::shared_ptr<HostRing> ring) {
  return impl_->SetRing(std::move(ring));
}
uint64_t DeviceQueue::epoch() const { return impl_->epoch(); }
void DeviceQueue::LoseRing(const std::string& cause, const std::vector<uint32_t>& suspects) {
  impl_->LoseRing(cause, suspects);
}
absl::Status DeviceQueue::BeginPark() { return impl_->BeginPark(); }
void DeviceQueue::EndPark() { impl_->EndPark(); }
void DeviceQueue::OnWorkWhileParked(std::function<void()> callback) {
  impl_->OnWorkWhileParked(std::move(callback));
}
Clock::time_point DeviceQueue::idle_since() const { return impl_->idle_since(); }
absl::Status DeviceQueue::Hold() { return impl_->Hold(); }
bool DeviceQueue::ParkIfDrained() { return impl_->ParkIfDrained(); }
std::vector<OverdueTask> DeviceQueue::FindOverdue(nanoseconds limit) {
  return impl_->FindOverdue([limit](uint32_t) { return limit; });
}
std::vector<OverdueTask> DeviceQueue::FindOverdue(const TimeLimit& limit) {
  return impl_->FindOverdue(limit);
}
std::vector<RunningTask> DeviceQueue::RunningTasks() { return impl_->RunningTasks(); }
std::vector<uint32_t> DeviceQueue::RunningSlots() { return impl_->RunningSlots(); }
void DeviceQueue::ForgetEstimate(uint32_t operator_slot) { impl_->ForgetEstimate(operator_slot); }
DeviceQueue::Counters DeviceQueue::counters() const { return impl_->counters(); }
const DurationHistogram& DeviceQueue::stop_durations() const { return impl_->stop_durations(); }
DeviceQueue::ClientCounters DeviceQueue::client_counters(ClientId client) const {
  return impl_->client_counters(client);
}

}  // namespace resident
