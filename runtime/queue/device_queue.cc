#include "runtime/queue/device_queue.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/status_macros.h"
#include "runtime/queue/batch_outcome.h"
#include "runtime/queue/client_queues.h"
#include "runtime/queue/completion_alarm.h"
#include "runtime/queue/ring_tasks.h"
#include "runtime/ring/host_ring.h"

namespace resident {
namespace {

using std::chrono::nanoseconds;

// How long a nap lasts at most while tasks are in flight and none completes.
constexpr nanoseconds kShortestNap = std::chrono::microseconds(20);
constexpr nanoseconds kLongestNap = std::chrono::microseconds(500);
// How often work that is held back (parked) is looked through for deadlines.
constexpr absl::Duration kDoomedCheck = absl::Milliseconds(20);
// How long the pump leaves the work to callers that wait for their own batches.
constexpr absl::Duration kAssistantsTurn = absl::Microseconds(50);

}  // namespace

// Two locks, never taken in the other order:
//
//   pump_mu_  the ring and what is in flight; held for one pass of the pump at a time.
//   mu_       clients and their queues; held briefly.
//
// A batch moves from a client's queue (under mu_) to the ring (under pump_mu_) as its
// tasks are submitted, and is then owned by the slots of its tasks. It counts against its
// client's limits all the while (queue_use.h).
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
    queues_.Add(id);
  }

  void RemoveClient(ClientId id) {
    {
      SeldomLock pump_lock(this);
      absl::MutexLock lock(&mu_);
      if (!queues_.Remove(id)) return;
      tasks_.CancelOrdered(id);  // Under way, they have left the queue.
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
      if (!has_ring_ || batch->epoch != epoch_) {
        return absl::UnavailableError(absl::StrCat(
            has_ring_ ? "the device's engine was replaced while the batch was prepared"
                      : "the device has no engine at present",
            loss_.empty() ? "" : absl::StrCat(" (", loss_, ")"), ". Fix: send the batch again"));
      }
      RETURN_IF_ERROR(
          queues_.Push(id, std::move(batch), options_.max_queued_tasks, options_.max_queued_bytes));
      idle_since_ = Clock::time_point::max();
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
    SeldomLock pump_lock(this);
    absl::MutexLock lock(&mu_);
    nap_control_ = ring->region().control();
    tasks_.SetRing(std::move(ring));
    has_ring_ = true;
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
      SeldomLock pump_lock(this);
      {
        absl::MutexLock lock(&mu_);
        if (!has_ring_) return;
        has_ring_ = false;
        parked_ = false;
        loss_ = cause;
      }
      const std::string not_run = absl::StrCat(cause, "; the task did not run. Fix: send it again");
      tasks_.LoseRing(cause, not_run, suspects, &finished.batches);
      absl::MutexLock lock(&mu_);
      queues_.SkipAll(TaskStatus::kUnavailable, not_run, &finished.batches);
      nap_control_ = nullptr;
      clients_wait_ = false;
      in_flight_.store(0, std::memory_order_relaxed);
      NoteIdle();
    }
    Deliver(&finished);
  }

  absl::Status BeginPark() {
    SeldomLock pump_lock(this);
    absl::MutexLock lock(&mu_);
    if (!has_ring_) return absl::FailedPreconditionError("no engine to park");
    if (parked_) return absl::FailedPreconditionError("parked already");
    // With the ring full something is in flight, and the pump awake: its completion makes
    // room for the marker.
    tasks_.BeginPark();
    parked_ = true;
    called_for_resume_ = false;
    return absl::OkStatus();
  }

  void EndPark() {
    Finished finished;
    {
      SeldomLock pump_lock(this);
      tasks_.EndPark();
      {
        absl::MutexLock lock(&mu_);
        parked_ = false;
        work_arrived_.store(true, std::memory_order_seq_cst);
      }
      // Here and now: the pump takes tens of microseconds to wake.
      Pass(&finished, /*thorough=*/false);
      absl::MutexLock lock(&mu_);
      WakePump();
    }
    Deliver(&finished);
  }

  absl::Status Hold() {
    SeldomLock pump_lock(this);
    absl::MutexLock lock(&mu_);
    if (!has_ring_) return absl::FailedPreconditionError("no engine to hold tasks back from");
    if (parked_) return absl::FailedPreconditionError("parked already");
    tasks_.Hold();
    parked_ = true;
    called_for_resume_ = true;  // The hold ends by itself: nobody is to be called.
    return absl::OkStatus();
  }

  bool ParkIfDrained() {
    Finished finished;
    bool published = false;
    {
      SeldomLock pump_lock(this);
      if (tasks_.ring() == nullptr) return false;
      Pass(&finished, /*thorough=*/true);
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
    SeldomLock pump_lock(this);
    return tasks_.FindOverdue(limit);
  }

  std::vector<uint32_t> RunningSlots() {
    SeldomLock pump_lock(this);
    return tasks_.RunningSlots();
  }

  std::vector<RunningTask> RunningTasks() {
    SeldomLock pump_lock(this);
    return tasks_.RunningTasks();
  }

  void ForgetEstimate(uint32_t operator_slot) {
    SeldomLock pump_lock(this);
    tasks_.ForgetEstimate(operator_slot);
  }

  Counters counters() const {
    Counters counters;
    counters.in_flight = in_flight_.load(std::memory_order_relaxed);
    counters.next_sequence = next_sequence_.load(std::memory_order_relaxed);
    counters.ring_slots = ring_slots_.load(std::memory_order_relaxed);
    absl::MutexLock lock(&mu_);
    counters.queued_tasks = queues_.queued_tasks();
    counters.completed_tasks = completed_tasks_;
    return counters;
  }

  ClientCounters client_counters(ClientId id) const {
    absl::MutexLock lock(&mu_);
    return queues_.counters(id);
  }

 private:
  // What is to be called once no lock is held.
  struct Finished {
    FinishedBatches batches;
    std::function<void()> call_for_resume;
  };

  // pump_mu_ for those who come seldom. Pump and assistants take it again as soon as they
  // have let it go, and under load nobody else would come by it for milliseconds: they
  // stand back while somebody waits here.
  class ABSL_SCOPED_LOCKABLE SeldomLock {
   public:
    explicit SeldomLock(Impl* impl) ABSL_EXCLUSIVE_LOCK_FUNCTION(impl->pump_mu_) : impl_(*impl) {
      impl_.seldom_.fetch_add(1, std::memory_order_relaxed);
      // Woken from a sleep it would come tens of microseconds later.
      while (!impl_.pump_mu_.TryLock()) std::this_thread::yield();
      impl_.seldom_.fetch_sub(1, std::memory_order_relaxed);
    }
    ~SeldomLock() ABSL_UNLOCK_FUNCTION() { impl_.pump_mu_.Unlock(); }
    SeldomLock(const SeldomLock&) = delete;
    SeldomLock& operator=(const SeldomLock&) = delete;

   private:
    Impl& impl_;
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
      while (seldom_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
      {
        absl::MutexLock pump_lock(&pump_mu_);
        progress = Pass(&finished, /*thorough=*/quiet);
        ring = tasks_.ring();
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
    if (queues_.queued_tasks() == 0 ||
        now - looked_for_doomed_ < absl::ToChronoNanoseconds(kDoomedCheck)) {
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
      CompletionAlarm::Raise(nap_control_);
    }
  }

  void Assist(const std::shared_ptr<Batch>& batch, nanoseconds most) {
    const Clock::time_point until = Clock::now() + most;
    bool done = false;
    assistants_.fetch_add(1, std::memory_order_relaxed);
    while (!done) {
      if (seldom_.load(std::memory_order_relaxed) > 0 || !pump_mu_.TryLock()) {
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
        work_arrived_.load(std::memory_order_acquire) || queues_.queued_tasks() > 0) {
      WakePump();
    }
  }

  // One round: completions, then submissions. Returns whether anything moved.
  // `thorough`: finds every completion.
  bool Pass(Finished* finished, bool thorough) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    bool progress = tasks_.Consume(thorough, &finished->batches);
    progress |= SubmitTasks(finished);
    in_flight_.store(tasks_.in_flight(), std::memory_order_relaxed);
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

  // Returns whether anything moved.
  bool SubmitTasks(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_) {
    if (tasks_.ring() == nullptr) return false;
    tasks_.SubmitDuePark();
    bool progress = false;
    bool published = tasks_.SubmitReady(&finished->batches);
    if (work_arrived_.load(std::memory_order_acquire) || (clients_wait_ && tasks_.HasRoom())) {
      absl::MutexLock lock(&mu_);
      work_arrived_.store(false, std::memory_order_relaxed);
      if (look_for_doomed_) {
        look_for_doomed_ = false;
        queues_.SkipDoomed(&finished->batches);
        tasks_.SkipDoomed(&finished->batches);
      }
      if (!parked_) {
        while (!queues_.empty() && tasks_.HasRoom()) {
          progress = true;
          published |= queues_.ServeNext(options_.quantum_tasks, &tasks_, &finished->batches);
        }
      } else if ((!queues_.empty() || tasks_.ordered_waiting()) && !called_for_resume_ &&
                 on_work_while_parked_) {
        called_for_resume_ = true;
        finished->call_for_resume = on_work_while_parked_;
      }
      clients_wait_ = !queues_.empty() && !parked_;
    }
    if (published) tasks_.RingDoorbell();
    return progress || published;
  }

  void NoteIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(pump_mu_, mu_) {
    const bool busy = queues_.queued_tasks() > 0 || tasks_.in_flight() > 0;
    if (!busy && idle_since_ == Clock::time_point::max()) idle_since_ = Clock::now();
  }

  // Counts the finished batches and calls their `done`. Called without locks.
  void Deliver(Finished* finished) ABSL_LOCKS_EXCLUDED(mu_, pump_mu_) {
    if (finished->call_for_resume) finished->call_for_resume();
    if (finished->batches.empty()) return;
    for (const auto& batch : finished->batches) CountOutcomes(*batch);
    {
      absl::MutexLock lock(&mu_);
      for (const auto& batch : finished->batches) {
        completed_tasks_ += batch->tasks.size();
        queues_.Ended(*batch);
      }
    }
    for (const auto& batch : finished->batches) {
      if (batch->done) batch->done(*batch);
    }
    finished->batches.clear();
  }

  const Options options_;

  mutable absl::Mutex pump_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  RingTasks tasks_ ABSL_GUARDED_BY(pump_mu_);
  bool clients_wait_ ABSL_GUARDED_BY(pump_mu_) = false;  // Clients wait for room in the ring.

  mutable absl::Mutex mu_;
  ClientQueues queues_ ABSL_GUARDED_BY(mu_);
  bool has_ring_ ABSL_GUARDED_BY(mu_) = false;
  bool parked_ ABSL_GUARDED_BY(mu_) = false;
  bool called_for_resume_ ABSL_GUARDED_BY(mu_) = false;
  bool look_for_doomed_ ABSL_GUARDED_BY(mu_) = false;
  Clock::time_point looked_for_doomed_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool wake_pump_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t completed_tasks_ ABSL_GUARDED_BY(mu_) = 0;
  std::string loss_ ABSL_GUARDED_BY(mu_);
  Clock::time_point idle_since_ ABSL_GUARDED_BY(mu_) = Clock::now();
  std::function<void()> on_work_while_parked_ ABSL_GUARDED_BY(mu_);
  // The ring's control block, for waking a nap; null without a ring.
  ControlBlock* nap_control_ ABSL_GUARDED_BY(mu_) = nullptr;

  // Whether there may be something to submit: spares the pump mu_ in most passes.
  std::atomic<bool> work_arrived_{false};
  std::atomic<bool> napping_{false};
  // Callers that wait in a SeldomLock.
  std::atomic<uint32_t> seldom_{0};
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
DeviceQueue::ClientCounters DeviceQueue::client_counters(ClientId client) const {
  return impl_->client_counters(client);
}

}  // namespace resident
