#include "runtime/executor/device_queue.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/executor/operator_stats.h"
#include "runtime/ring/host_ring.h"

namespace resident {
namespace {

using std::chrono::nanoseconds;

// In-flight tasks are kept to about what completes in this time, so that a client's
// lone task waits no longer than that behind another's long ones.
constexpr nanoseconds kTargetRingDelay = std::chrono::milliseconds(1);
constexpr double kMeanTasks = 64;
// How long a nap lasts at most while tasks are in flight and none completes.
constexpr nanoseconds kShortestNap = std::chrono::microseconds(20);
constexpr nanoseconds kLongestNap = std::chrono::microseconds(500);
// Completions consumed in one pass, so that submissions get their turn.
constexpr uint32_t kConsumeMost = 1024;
// With more tasks in flight than this, one that is late hides those behind it for up to
// kLookPastInterval.
constexpr uint32_t kFewInFlight = 16;
constexpr nanoseconds kLookPastInterval = std::chrono::microseconds(10);
// How often work that is held back (parked) is looked through for deadlines.
constexpr absl::Duration kDoomedCheck = absl::Milliseconds(20);
// How long the pump leaves the work to callers that wait for their own batches.
constexpr absl::Duration kAssistantsTurn = absl::Microseconds(50);
// No worker shows the task, yet it does not complete: the kernel itself is stuck.
constexpr uint32_t kNoOperatorSlot = UINT32_MAX;

TaskStatus ToTaskStatus(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kOk:
      return TaskStatus::kOk;
    case CompletionStatus::kInvalidArgument:
      return TaskStatus::kInvalidArgument;
    case CompletionStatus::kInternal:
    case CompletionStatus::kNoOperator:
    case CompletionStatus::kOutOfBounds:
      return TaskStatus::kInternal;
  }
  return TaskStatus::kInternal;
}

void FutexWait(uint32_t* word, uint32_t value, nanoseconds most) {
  timespec timeout{};
  timeout.tv_sec = most.count() / 1'000'000'000;
  timeout.tv_nsec = most.count() % 1'000'000'000;
  syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void FutexWake(uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

// Lets the pump sleep until an engine completes something. From Set() on, the CPU engine
// raises completion_event with each completion; Await() returns if it was raised since
// Set() or the last Await(). A GPU raises nothing: the wait is bounded.
class CompletionAlarm {
 public:
  ~CompletionAlarm() { Clear(); }

  void Set(const std::shared_ptr<HostRing>& ring) {
    if (ring == ring_) return;
    Clear();
    if (ring == nullptr) return;
    ring_ = ring;
    control_ = ring_->region().control();
    std::atomic_ref<uint32_t>(control_->completion_waiters).fetch_add(1, std::memory_order_seq_cst);
    seen_ = std::atomic_ref<uint32_t>(control_->completion_event).load(std::memory_order_acquire);
  }
  void Clear() {
    if (ring_ == nullptr) return;
    std::atomic_ref<uint32_t>(control_->completion_waiters).fetch_sub(1, std::memory_order_relaxed);
    ring_ = nullptr;
  }
  bool is_set() const { return ring_ != nullptr; }

  void Await(nanoseconds most) {
    FutexWait(&control_->completion_event, seen_, most);
    seen_ = std::atomic_ref<uint32_t>(control_->completion_event).load(std::memory_order_acquire);
  }

 private:
  std::shared_ptr<HostRing> ring_;  // Keeps the region mapped.
  ControlBlock* control_ = nullptr;
  uint32_t seen_ = 0;
};

}  // namespace

// Two locks, never taken in the other order:
//
//   pump_mu_  the ring and what is in flight; held for one pass of the pump at a time.
//   mu_       clients and their queues; held briefly.
//
// A batch moves from a client's queue (under mu_) to the pump when its first task is
// submitted, and is then owned by the slots of its tasks.
class DeviceQueue::Impl {
 public:
  explicit Impl(const Options& options) : options_(options) {
    pump_ = std::thread([this] { PumpLoop(); });
  }

  ~Impl() {
    LoseRing("the daemon is stopping", {});
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      wake_pump_ = true;
    }
    pump_.join();
  }

  void AddClient(ClientId id) {
    absl::MutexLock lock(&mu_);
    clients_.try_emplace(id, std::make_shared<Client>());
  }

  void RemoveClient(ClientId id) {
    {
      absl::MutexLock pump_lock(&pump_mu_);
      absl::MutexLock lock(&mu_);
      const auto found = clients_.find(id);
      if (found == clients_.end()) return;
      for (const auto& batch : found->second->queue) batch->cancelled = true;
      clients_.erase(found);  // Stays in its turn until its queue is empty.
      // In-order batches that are under way have left the queue.
      for (const auto& batch : ordered_ready_) {
        if (batch->client == id) batch->cancelled = true;
      }
      if (ring_ != nullptr) {
        ring_->ForEachInFlight([&](uint64_t sequence) ABSL_NO_THREAD_SAFETY_ANALYSIS {
          Batch& batch = *entries_[sequence & (ring_->slots() - 1)].batch;
          if (batch.client == id && batch.in_order) batch.cancelled = true;
        });
      }
    }
    NoteCancelled();
  }

  absl::Status Enqueue(ClientId id, std::shared_ptr<Batch> batch, nanoseconds assist) {
    const uint32_t count = static_cast<uint32_t>(batch->tasks.size());
    if (count == 0) return absl::InvalidArgumentError("a batch has at least one task");
    batch->client = id;
    batch->status.assign(count, TaskStatus::kOk);
    batch->device_ns.assign(count, 0);
    batch->detail.assign(count, 0);
    if (batch->wants_results) batch->results.resize(count);
    batch->enqueued_at = Clock::now();
    const std::shared_ptr<Batch> held = assist.count() != 0 ? batch : nullptr;
    {
      absl::MutexLock lock(&mu_);
      const auto found = clients_.find(id);
      if (found == clients_.end()) {
        return absl::NotFoundError(
            "the client's queue is gone: its session has ended. Fix: open a new session");
      }
      Client& client = *found->second;
      if (!has_ring_ || batch->epoch != epoch_) {
        return absl::UnavailableError(absl::StrCat(
            has_ring_ ? "the device's engine was replaced while the batch was prepared"
                      : "the device has no engine at present",
            loss_.empty() ? "" : absl::StrCat(" (", loss_, ")"), ". Fix: send the batch again"));
      }
      if (client.queued_tasks != 0 && client.queued_tasks + count > options_.max_queued_tasks) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the client has ", client.queued_tasks, " tasks queued; ", count,
                         " more would pass the limit of ", options_.max_queued_tasks,
                         ". Fix: wait for results, or raise --max_queued_tasks"));
      }
      client.queued_tasks += count;
      queued_tasks_ += count;
      idle_since_ = Clock::time_point::max();
      client.queue.push_back(std::move(batch));
      if (!client.in_turn) {
        client.in_turn = true;
        turn_.push_back(found->second);
      }
      work_arrived_.store(true, std::memory_order_seq_cst);
      if (assist.count() == 0) WakePump();
    }
    if (assist.count() != 0) Assist(held, assist);
    return absl::OkStatus();
  }

  void NoteCancelled() {
    absl::MutexLock lock(&mu_);
    look_for_doomed_ = true;
    work_arrived_.store(true, std::memory_order_seq_cst);
    WakePump();
  }

  uint64_t SetRing(std::shared_ptr<HostRing> ring) {
    absl::MutexLock pump_lock(&pump_mu_);
    absl::MutexLock lock(&mu_);
    entries_.assign(ring->slots(), Entry{});
    crumbs_.assign(ring->worker_count(), Crumb{});
    in_flight_limit_ = std::min(ring->slots(), std::max(64u, 4 * ring->worker_count()));
    nap_control_ = ring->region().control();
    ring_ = std::move(ring);
    has_ring_ = true;
    park_published_ = false;
    parked_ = false;
    loss_.clear();
    WakePump();
    idle_since_ = Clock::now();
    return ++epoch_;
  }

  uint64_t epoch() const {
    absl::MutexLock lock(&mu_);
    return epoch_;
  }

  void LoseRing(const std::string& cause, const std::vector<uint32_t>& suspects) {
    Finished finished;
    {
      absl::MutexLock pump_lock(&pump_mu_);
      {
        absl::MutexLock lock(&mu_);
        if (!has_ring_) return;
        has_ring_ = false;
        parked_ = false;
        loss_ = cause;
      }
      // Completions that arrived before the end still count.
      while (ConsumeCompletions(&finished, /*thorough=*/true)) {
      }
      ring_->ForEachInFlight([&](uint64_t sequence) {
        pump_mu_.AssertHeld();  // Which the lock analysis does not see in here.
        Entry& entry = entries_[sequence & (ring_->slots() - 1)];
        Batch& batch = *entry.batch;
        const bool suspect = std::find(suspects.begin(), suspects.end(),
                                       batch.tasks[entry.index].operator_slot) != suspects.end();
        batch.cause = suspect ? absl::StrCat(cause, "; its operator is a suspect")
                              : absl::StrCat(cause,
                                             "; the task may have run. Fix: send it again if "
                                             "that is safe");
        Finish(entry, suspect ? TaskStatus::kAborted : TaskStatus::kUnavailable, 0, 0, &finished);
      });
      const std::string not_run = absl::StrCat(cause, "; the task did not run. Fix: send it again");
      for (auto& batch : ordered_ready_)
        SkipRest(batch, TaskStatus::kUnavailable, not_run, &finished);
      ordered_ready_.clear();
      absl::MutexLock lock(&mu_);
      for (auto& client : turn_) {
        while (!client->queue.empty()) {
          SkipQueued(*client, 0, TaskStatus::kUnavailable, not_run, &finished);
        }
        client->in_turn = false;
      }
      turn_.clear();
      nap_control_ = nullptr;
      backlog_ = false;
      ring_.reset();
      in_flight_.store(0, std::memory_order_relaxed);
      NoteIdle();
    }
    Deliver(&finished);
  }

  absl::Status BeginPark() {
    absl::MutexLock pump_lock(&pump_mu_);
    absl::MutexLock lock(&mu_);
    if (!has_ring_) return absl::FailedPreconditionError("no engine to park");
    if (parked_) return absl::FailedPreconditionError("parked already");
    if (!ring_->PublishPark()) {
      return absl::UnavailableError("the ring is full. Fix: park again in a moment");
    }
    RingDoorbell();
    park_published_ = true;
    parked_ = true;
    called_for_resume_ = false;
    return absl::OkStatus();
  }

  void EndPark() {
    absl::MutexLock pump_lock(&pump_mu_);
    if (park_published_ && ring_ != nullptr) ring_->Resumed();
    park_published_ = false;
    absl::MutexLock lock(&mu_);
    parked_ = false;
    work_arrived_.store(true, std::memory_order_seq_cst);
    WakePump();
  }

  void OnWorkWhileParked(std::function<void()> callback) {
    absl::MutexLock lock(&mu_);
    on_work_while_parked_ = std::move(callback);
  }

  Clock::time_point idle_since() const {
    absl::MutexLock lock(&mu_);
    return idle_since_;
  }

  std::vector<OverdueTask> FindOverdue(nanoseconds limit) {
    std::vector<OverdueTask> overdue;
    absl::MutexLock pump_lock(&pump_mu_);
    if (ring_ == nullptr) return overdue;
    const Clock::time_point now = Clock::now();
    bool any_running = false;
    for (uint32_t w = 0; w < crumbs_.size(); ++w) {
      const Breadcrumb crumb = ReadCrumb(w);
      const auto sequence = ring_->InFlightWithStamp(crumb.stamp);
      if (!sequence) {
        crumbs_[w].stamp = 0;
        continue;
      }
      any_running = true;
      if (crumbs_[w].stamp != crumb.stamp) {
        crumbs_[w] = {crumb.stamp, now};
      } else if (now - crumbs_[w].since > limit) {
        overdue.push_back({*sequence, crumb.operator_slot, now - crumbs_[w].since});
      }
    }
    const nanoseconds quiet = now - std::max(last_completion_, busy_since_);
    if (!any_running && ring_->in_flight() > 0 && quiet > limit) {
      overdue.push_back({ring_->next_sequence(), kNoOperatorSlot, quiet});
    }
    return overdue;
  }

  std::vector<uint32_t> RunningSlots() {
    std::vector<uint32_t> slots;
    absl::MutexLock pump_lock(&pump_mu_);
    if (ring_ == nullptr) return slots;
    bool faulted = false;  // The CPU engine knows which worker faulted.
    for (uint32_t w = 0; w < crumbs_.size(); ++w) {
      const Breadcrumb crumb = ReadCrumb(w);
      if (!ring_->InFlightWithStamp(crumb.stamp)) continue;
      if (crumb.fault_signal != 0 && !faulted) {
        faulted = true;
        slots.clear();
      }
      if (faulted == (crumb.fault_signal != 0)) slots.push_back(crumb.operator_slot);
    }
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    return slots;
  }

  Counters counters() const {
    Counters counters;
    counters.in_flight = in_flight_.load(std::memory_order_relaxed);
    counters.next_sequence = next_sequence_.load(std::memory_order_relaxed);
    counters.ring_slots = ring_slots_.load(std::memory_order_relaxed);
    absl::MutexLock lock(&mu_);
    counters.queued_tasks = queued_tasks_;
    counters.completed_tasks = completed_tasks_;
    return counters;
  }

  ClientCounters client_counters(ClientId id) const {
    absl::MutexLock lock(&mu_);
    const auto found = clients_.find(id);
    if (found == clients_.end()) return {};
    return {found->second->queued_tasks, found->second->completed_tasks};
  }

 private:
  struct Client {
    std::deque<std::shared_ptr<Batch>> queue;
    uint64_t queued_tasks = 0;
    uint64_t completed_tasks = 0;
    bool in_turn = false;
  };

  // The task in a ring slot.
  struct Entry {
    std::shared_ptr<Batch> batch;
    uint32_t index = 0;
  };

  // What a worker was seen running, and since when.
  struct Crumb {
    uint32_t stamp = 0;
    Clock::time_point since;
  };

  // Batches whose `done` is to be called once no lock is held.
  struct Finished {
    std::vector<std::shared_ptr<Batch>> batches;
    std::function<void()> call_for_resume;
  };

  void PumpLoop() {
    prctl(PR_SET_NAME, "resident-pump");
    prctl(PR_SET_TIMERSLACK, 1000);
    Clock::time_point last_progress = Clock::now();
    nanoseconds nap = kShortestNap;
    bool quiet = false;  // Nothing has moved for the time that the pump spins.
    std::shared_ptr<HostRing> ring;
    CompletionAlarm alarm;
    while (true) {
      if (assistants_.load(std::memory_order_relaxed) > 0) {
        // Somebody who waits for an outcome is at it. An outcome found here would reach
        // its caller by way of two more threads.
        alarm.Clear();
        absl::MutexLock lock(&mu_);
        mu_.AwaitWithTimeout(absl::Condition(&wake_pump_), kAssistantsTurn);
        wake_pump_ = false;
        quiet = false;
      }
      Finished finished;
      bool progress;
      // Set before the last look: what completes after it ends the nap.
      if (quiet) alarm.Set(ring);
      {
        absl::MutexLock pump_lock(&pump_mu_);
        progress = Pass(&finished, /*thorough=*/quiet);
        ring = ring_;
      }
      Deliver(&finished);
      if (progress) {
        alarm.Clear();
        last_progress = Clock::now();
        nap = kShortestNap;
        quiet = false;
        continue;
      }
      if (!quiet) {
        std::this_thread::yield();
        quiet = Clock::now() - last_progress >= options_.spin;
        continue;
      }
      if (alarm.is_set() && in_flight_.load(std::memory_order_relaxed) > 0) {
        napping_.store(true, std::memory_order_seq_cst);
        // Work that arrived before `napping_` was set rang nothing.
        if (!work_arrived_.load(std::memory_order_seq_cst)) alarm.Await(nap);
        napping_.store(false, std::memory_order_relaxed);
        nap = std::min(nap * 2, kLongestNap);
        LookForDoomedNowAndThen();
        continue;
      }
      alarm.Clear();
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
      // Work that cannot go on (parked) may still pass its deadline.
      const bool waiting = idle_since_ == Clock::time_point::max();
      const absl::Duration most = waiting ? kDoomedCheck : absl::InfiniteDuration();
      if (!mu_.AwaitWithTimeout(absl::Condition(&wake_pump_), most)) {
        look_for_doomed_ = true;
        work_arrived_.store(true, std::memory_order_relaxed);
      }
      wake_pump_ = false;
      last_progress = Clock::now();
      quiet = false;
    }
  }

  // With the ring full of slow tasks, nothing else looks at the queues.
  void LookForDoomedNowAndThen() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const Clock::time_point now = Clock::now();
    if (queued_tasks_ == 0 || now - looked_for_doomed_ < absl::ToChronoNanoseconds(kDoomedCheck)) {
      return;
    }
    looked_for_doomed_ = now;
    look_for_doomed_ = true;
    work_arrived_.store(true, std::memory_order_relaxed);
  }

  // Makes the pump look again, whatever it is waiting for.
  void WakePump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    wake_pump_ = true;
    if (nap_control_ != nullptr && napping_.load(std::memory_order_seq_cst)) {
      std::atomic_ref<uint32_t>(nap_control_->completion_event).fetch_add(1);
      FutexWake(&nap_control_->completion_event);
    }
  }

  void Assist(const std::shared_ptr<Batch>& batch, nanoseconds most) {
    const Clock::time_point until = Clock::now() + most;
    bool done = false;
    assistants_.fetch_add(1, std::memory_order_relaxed);
    while (!done) {
      if (!pump_mu_.TryLock()) {
        if (Clock::now() > until) break;
        std::this_thread::yield();
        continue;
      }
      Finished finished;
      Pass(&finished, /*thorough=*/false);
      // Another thread's pass may have found it.
      done = batch->finished == batch->tasks.size();
      pump_mu_.Unlock();
      Deliver(&finished);
      if (!done && Clock::now() > until) break;
    }
    assistants_.fetch_sub(1, std::memory_order_relaxed);
    // Whatever is left is the pump's.
    absl::MutexLock lock(&mu_);
    if (in_flight_.load(std::memory_order_relaxed) > 0 ||
        work_arrived_.load(std::memory_order_acquire) || queued_tasks_ > 0) {
      WakePump();
    }
  }

  // One round: completions, then submissions. Returns whether anything moved.
  // `thorough`: finds every completion.
  bool Pass(Finished* finished, bool thorough) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    bool progress = ConsumeCompletions(finished, thorough);
    progress |= SubmitTasks(finished);
    if (ring_ != nullptr) {
      in_flight_.store(ring_->in_flight(), std::memory_order_relaxed);
      next_sequence_.store(ring_->next_sequence(), std::memory_order_relaxed);
      ring_slots_.store(ring_->slots(), std::memory_order_relaxed);
    } else {
      in_flight_.store(0, std::memory_order_relaxed);
    }
    if (!finished->batches.empty()) {
      absl::MutexLock lock(&mu_);
      NoteIdle();
    }
    return progress;
  }

  bool ConsumeCompletions(Finished* finished, bool thorough)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    if (ring_ == nullptr || ring_->in_flight() == 0) return false;
    const uint32_t mask = ring_->slots() - 1;
    uint64_t busy_ns = 0;
    const auto report = [&](uint64_t sequence,
                            const TaskCompletion& completion) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      Entry& entry = entries_[sequence & mask];
      const TaskDescriptor& task = entry.batch->tasks[entry.index];
      const bool wide = !(task.flags & kTaskCompact) && task.words[1] > 1;
      busy_ns += uint64_t{completion.duration_ns} * (wide ? ring_->worker_count() : 1);
      if (entry.batch->wants_results) {
        std::memcpy(entry.batch->results[entry.index].data(), completion.result, kResultBytes);
      }
      Finish(entry, ToTaskStatus(completion.status), completion.duration_ns, completion.detail,
             finished);
    };
    // Mostly tasks complete in order: look at the oldest. Past it only when few are in
    // flight, or now and then (HostRing::Consume says why).
    uint32_t consumed = 0;
    if (ring_->in_flight() > kFewInFlight) consumed = ring_->Consume(report, kConsumeMost, 1);
    if (consumed == 0) {
      const Clock::time_point now = Clock::now();
      if (thorough || ring_->in_flight() <= kFewInFlight ||
          now - looked_past_ > kLookPastInterval) {
        looked_past_ = now;
        consumed = ring_->Consume(report, kConsumeMost);
      }
    }
    if (consumed == 0) return false;
    AdaptInFlightLimit(consumed, busy_ns);
    return true;
  }

  // Holds the ring's backlog to about kTargetRingDelay of the workers' time, by what the
  // tasks that completed took of it.
  void AdaptInFlightLimit(uint32_t consumed, uint64_t busy_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    last_completion_ = Clock::now();
    const double mean_ns = static_cast<double>(busy_ns) / consumed;
    mean_task_ns_ += (mean_ns - mean_task_ns_) * std::min(1.0, consumed / kMeanTasks);
    const double workers = ring_->worker_count();
    const double fit = kTargetRingDelay.count() * workers / std::max(mean_task_ns_, 1.0);
    in_flight_limit_ = static_cast<uint32_t>(
        std::clamp<double>(fit, std::min<double>(2 * workers, ring_->slots()), ring_->slots()));
  }

  bool SubmitTasks(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    if (ring_ == nullptr) return false;
    bool progress = false;
    bool published = false;
    while (!park_published_ && !ordered_ready_.empty() && HasRoom()) {
      std::shared_ptr<Batch> batch = std::move(ordered_ready_.front());
      ordered_ready_.pop_front();
      progress = true;
      published |= SubmitOrdered(std::move(batch), finished);
    }
    if (work_arrived_.load(std::memory_order_acquire) || (backlog_ && HasRoom())) {
      absl::MutexLock lock(&mu_);
      work_arrived_.store(false, std::memory_order_relaxed);
      if (look_for_doomed_) {
        look_for_doomed_ = false;
        SkipDoomed(finished);
      }
      if (!parked_) {
        while (!turn_.empty() && HasRoom()) {
          progress = true;
          published |= ServeNextClient(finished);
        }
      } else if (!(turn_.empty() && ordered_ready_.empty()) && !called_for_resume_ &&
                 on_work_while_parked_) {
        called_for_resume_ = true;
        finished->call_for_resume = on_work_while_parked_;
      }
      backlog_ = !turn_.empty() && !parked_;
    }
    if (published) RingDoorbell();
    return progress;
  }

  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    return ring_->in_flight() < in_flight_limit_ && !ring_->full();
  }

  // Gives the client whose turn it is its quantum. Returns whether a task was published.
  bool ServeNextClient(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_, mu_) {
    std::shared_ptr<Client> client = std::move(turn_.front());
    turn_.pop_front();
    bool published = false;
    uint32_t quantum = options_.quantum_tasks;
    while (!client->queue.empty() && quantum > 0) {
      std::shared_ptr<Batch>& batch = client->queue.front();
      if (const auto reason = ReasonToSkip(*batch)) {
        SkipQueued(*client, 0, reason->first, reason->second, finished);
        continue;
      }
      if (batch->in_order) {
        std::shared_ptr<Batch> ordered = batch;
        Dequeued(*client, ordered->tasks.size());
        client->queue.pop_front();
        ObserveQueued(*ordered);
        published |= SubmitOrdered(std::move(ordered), finished);
        --quantum;
        continue;
      }
      if (batch->submitted == 0) ObserveQueued(*batch);
      uint32_t given = 0;
      const uint32_t count = static_cast<uint32_t>(batch->tasks.size());
      while (batch->submitted < count && quantum > 0 && HasRoom()) {
        if (!SubmitOne(batch, batch->submitted)) break;
        ++batch->submitted;
        ++given;
        --quantum;
      }
      published |= given > 0;
      Dequeued(*client, given);
      if (batch->submitted == count) {
        client->queue.pop_front();
      } else if (quantum > 0) {  // The ring is full: the turn ends with what it got.
        break;
      }
    }
    if (client->queue.empty()) {
      client->in_turn = false;
    } else {
      turn_.push_back(std::move(client));
    }
    return published;
  }

  // Submits the next task of an in-order batch, or skips what is left of it.
  bool SubmitOrdered(std::shared_ptr<Batch> batch, Finished* finished)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    if (const auto reason = ReasonToSkip(*batch)) {
      SkipRest(batch, reason->first, reason->second, finished);
      return false;
    }
    if (!SubmitOne(batch, batch->submitted)) {
      ordered_ready_.push_front(std::move(batch));
      return false;
    }
    ++batch->submitted;
    return true;
  }

  // Puts one task into the ring; false when it is full.
  bool SubmitOne(const std::shared_ptr<Batch>& batch, uint32_t index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    const std::optional<uint64_t> sequence = ring_->Reserve();
    if (!sequence) return false;
    if (ring_->in_flight() == 1) busy_since_ = Clock::now();
    if (batch->arguments_per_task != 0) {
      const uint32_t n = batch->arguments_per_task;
      std::memcpy(ring_->arguments(*sequence)->arguments,
                  batch->arguments.data() + size_t{index} * n, n * sizeof(Argument));
    }
    Entry& entry = entries_[*sequence & (ring_->slots() - 1)];
    entry.batch = batch;
    entry.index = index;
    ring_->Publish(*sequence, batch->tasks[index]);
    return true;
  }

  void RingDoorbell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    ControlBlock* const control = ring_->region().control();
    std::atomic_ref<uint32_t>(control->doorbell).fetch_add(1, std::memory_order_seq_cst);
    if (std::atomic_ref<uint32_t>(control->sleepers).load(std::memory_order_seq_cst) > 0) {
      FutexWake(&control->doorbell);
    }
  }

  // Why the tasks of a batch that are not in the ring will not get there.
  static std::optional<std::pair<TaskStatus, std::string>> ReasonToSkip(const Batch& batch) {
    if (batch.cancelled.load(std::memory_order_relaxed)) {
      return std::make_pair(TaskStatus::kCancelled, "cancelled before the task reached the device");
    }
    if (batch.deadline != Clock::time_point::max() && Clock::now() >= batch.deadline) {
      return std::make_pair(
          TaskStatus::kDeadlineExceeded,
          "the deadline passed before the task reached the device. Fix: allow more time, or send "
          "fewer tasks at once");
    }
    return std::nullopt;
  }

  // Ends what is left of the client's batch number `position`, which leaves its queue.
  void SkipQueued(Client& client, size_t position, TaskStatus status, const std::string& cause,
                  Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_, mu_) {
    std::shared_ptr<Batch> batch = std::move(client.queue[position]);
    client.queue.erase(client.queue.begin() + position);
    Dequeued(client, batch->tasks.size() - batch->submitted);
    SkipRest(batch, status, cause, finished);
  }

  // Ends queued batches that were cancelled or are past their deadline.
  void SkipDoomed(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_, mu_) {
    for (auto& client : turn_) {
      for (size_t i = 0; i < client->queue.size();) {
        if (const auto reason = ReasonToSkip(*client->queue[i])) {
          SkipQueued(*client, i, reason->first, reason->second, finished);
        } else {
          ++i;
        }
      }
    }
    for (size_t i = 0; i < ordered_ready_.size();) {
      if (const auto reason = ReasonToSkip(*ordered_ready_[i])) {
        SkipRest(ordered_ready_[i], reason->first, reason->second, finished);
        ordered_ready_.erase(ordered_ready_.begin() + i);
      } else {
        ++i;
      }
    }
  }

  void Dequeued(Client& client, uint64_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    client.queued_tasks -= count;
    queued_tasks_ -= count;
  }

  static void ObserveQueued(const Batch& batch) {
    if (batch.stats != nullptr) {
      batch.stats->queued.Observe((Clock::now() - batch.enqueued_at).count());
    }
  }

  // Gives every task that is not submitted its outcome.
  void SkipRest(const std::shared_ptr<Batch>& batch, TaskStatus status, const std::string& cause,
                Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    const uint32_t count = static_cast<uint32_t>(batch->tasks.size());
    if (batch->submitted == count) return;
    // A batch has one cause: what was said of tasks that may have run must stand.
    if (batch->cause.empty()) batch->cause = cause;
    const uint32_t skipped = count - batch->submitted;
    std::fill(batch->status.begin() + batch->submitted, batch->status.end(), status);
    batch->submitted = count;
    batch->failed += skipped;
    batch->finished += skipped;
    if (batch->finished == count) finished->batches.push_back(batch);
  }

  // Records the outcome of the task in a slot and empties the entry.
  void Finish(Entry& entry, TaskStatus status, uint32_t device_ns, uint16_t detail,
              Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    Batch& batch = *entry.batch;
    batch.status[entry.index] = status;
    batch.device_ns[entry.index] = device_ns;
    batch.detail[entry.index] = detail;
    if (status != TaskStatus::kOk) ++batch.failed;
    ++batch.finished;
    if (batch.finished == batch.tasks.size()) {
      finished->batches.push_back(std::move(entry.batch));
    } else if (batch.in_order && batch.submitted < batch.tasks.size() &&
               status != TaskStatus::kAborted && status != TaskStatus::kUnavailable) {
      ordered_ready_.push_back(std::move(entry.batch));
    } else if (batch.in_order && batch.submitted < batch.tasks.size()) {
      SkipRest(entry.batch, TaskStatus::kUnavailable, batch.cause, finished);
    }
    entry.batch.reset();
  }

  void NoteIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_, mu_) {
    const bool busy = queued_tasks_ > 0 || !ordered_ready_.empty() ||
                      (ring_ != nullptr && ring_->in_flight() > 0);
    if (!busy && idle_since_ == Clock::time_point::max()) idle_since_ = Clock::now();
  }

  // Counts the finished batches and calls their `done`. Called without locks.
  void Deliver(Finished* finished) ABSL_LOCKS_EXCLUDED(mu_, pump_mu_) {
    if (finished->call_for_resume) finished->call_for_resume();
    if (finished->batches.empty()) return;
    for (const auto& batch : finished->batches) Count(*batch);
    {
      absl::MutexLock lock(&mu_);
      for (const auto& batch : finished->batches) {
        completed_tasks_ += batch->tasks.size();
        const auto client = clients_.find(batch->client);
        if (client != clients_.end()) client->second->completed_tasks += batch->tasks.size();
      }
    }
    for (const auto& batch : finished->batches) {
      if (batch->done) batch->done(*batch);
    }
    finished->batches.clear();
  }

  // Adds a finished batch to its operator's counters: a few atomics for a batch.
  static void Count(const Batch& batch) {
    if (batch.stats == nullptr) return;
    std::array<uint64_t, OperatorStats::kStatuses> by_status{};
    if (batch.failed == 0) {
      by_status[0] = batch.tasks.size();
    } else {
      for (TaskStatus status : batch.status) ++by_status[static_cast<size_t>(status)];
    }
    for (int s = 0; s < OperatorStats::kStatuses; ++s) {
      if (by_status[s] != 0) batch.stats->CountTasks(s, by_status[s]);
    }
    DurationHistogram::Local device;
    for (uint32_t ns : batch.device_ns) {
      if (ns != 0) device.Observe(ns);
    }
    batch.stats->device.Add(device);
    batch.stats->whole.Observe((Clock::now() - batch.enqueued_at).count());
  }

  Breadcrumb ReadCrumb(uint32_t worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    Breadcrumb& crumb = ring_->region().breadcrumbs()[worker];
    Breadcrumb read{};
    read.stamp = std::atomic_ref<uint32_t>(crumb.stamp).load(std::memory_order_acquire);
    read.operator_slot =
        std::atomic_ref<uint32_t>(crumb.operator_slot).load(std::memory_order_relaxed);
    read.fault_signal =
        std::atomic_ref<uint32_t>(crumb.fault_signal).load(std::memory_order_relaxed);
    return read;
  }

  const Options options_;

  mutable absl::Mutex pump_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  std::shared_ptr<HostRing> ring_ ABSL_GUARDED_BY(pump_mu_);
  std::vector<Entry> entries_ ABSL_GUARDED_BY(pump_mu_);  // By ring slot.
  std::vector<Crumb> crumbs_ ABSL_GUARDED_BY(pump_mu_);   // By worker.
  // In-order batches whose last task has completed.
  std::deque<std::shared_ptr<Batch>> ordered_ready_ ABSL_GUARDED_BY(pump_mu_);
  uint32_t in_flight_limit_ ABSL_GUARDED_BY(pump_mu_) = 64;
  // Nothing is published behind a park marker until the kernel is back.
  bool park_published_ ABSL_GUARDED_BY(pump_mu_) = false;
  bool backlog_ ABSL_GUARDED_BY(pump_mu_) = false;  // Clients wait for room in the ring.
  // What a task takes of a worker's time, averaged over the last kMeanTasks or so.
  double mean_task_ns_ ABSL_GUARDED_BY(pump_mu_) = 0;
  Clock::time_point last_completion_ ABSL_GUARDED_BY(pump_mu_) = Clock::now();
  Clock::time_point busy_since_ ABSL_GUARDED_BY(pump_mu_) = Clock::now();
  Clock::time_point looked_past_ ABSL_GUARDED_BY(pump_mu_);

  mutable absl::Mutex mu_;
  absl::flat_hash_map<ClientId, std::shared_ptr<Client>> clients_ ABSL_GUARDED_BY(mu_);
  // Clients with something queued, in the order of their turns.
  std::deque<std::shared_ptr<Client>> turn_ ABSL_GUARDED_BY(mu_);
  bool has_ring_ ABSL_GUARDED_BY(mu_) = false;
  bool parked_ ABSL_GUARDED_BY(mu_) = false;
  bool called_for_resume_ ABSL_GUARDED_BY(mu_) = false;
  bool look_for_doomed_ ABSL_GUARDED_BY(mu_) = false;
  Clock::time_point looked_for_doomed_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool wake_pump_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t queued_tasks_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t completed_tasks_ ABSL_GUARDED_BY(mu_) = 0;
  std::string loss_ ABSL_GUARDED_BY(mu_);
  Clock::time_point idle_since_ ABSL_GUARDED_BY(mu_) = Clock::now();
  std::function<void()> on_work_while_parked_ ABSL_GUARDED_BY(mu_);
  // The ring's control block, for waking a nap; null without a ring.
  ControlBlock* nap_control_ ABSL_GUARDED_BY(mu_) = nullptr;

  // Whether there may be something to submit: spares the pump mu_ in most passes.
  std::atomic<bool> work_arrived_{false};
  std::atomic<bool> napping_{false};
  // Callers that do the pump's work at the moment.
  std::atomic<uint32_t> assistants_{0};
  // Copies for readers without pump_mu_.
  std::atomic<uint32_t> in_flight_{0};
  std::atomic<uint64_t> next_sequence_{0};
  std::atomic<uint32_t> ring_slots_{0};

  std::thread pump_;
};

DeviceQueue::DeviceQueue(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
DeviceQueue::~DeviceQueue() = default;
void DeviceQueue::AddClient(ClientId client) { impl_->AddClient(client); }
void DeviceQueue::RemoveClient(ClientId client) { impl_->RemoveClient(client); }
absl::Status DeviceQueue::Enqueue(ClientId client, std::shared_ptr<Batch> batch,
                                  nanoseconds assist) {
  return impl_->Enqueue(client, std::move(batch), assist);
}
void DeviceQueue::NoteCancelled() { impl_->NoteCancelled(); }
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
std::vector<OverdueTask> DeviceQueue::FindOverdue(nanoseconds limit) {
  return impl_->FindOverdue(limit);
}
std::vector<uint32_t> DeviceQueue::RunningSlots() { return impl_->RunningSlots(); }
DeviceQueue::Counters DeviceQueue::counters() const { return impl_->counters(); }
DeviceQueue::ClientCounters DeviceQueue::client_counters(ClientId client) const {
  return impl_->client_counters(client);
}

}  // namespace resident
