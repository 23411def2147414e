// Lane: a local lane, from its memory to the batches of a device's queue and back to the memory. A
// client process publishes submissions in memory that it shares with the daemon
// (runtime/lane/lane_layout.h); the dispatch loop takes them, checked, as batches, and the end of a
// batch writes their completions.
//
// Trust: the client may write any byte of the memory at any time. Take loads each word of a
// submission once, with an atomic load, into a copy, and checks and uses only this copy. Nothing
// that the daemon wrote to the memory is read again. A client can thereby spoil only its own lane.
//
//   open ──BeginDrain──▶ draining ──┐
//    └──────────────────────────────┴─ Close ──▶ closed ──(last batch ends)──▶ destroyed
//
// Invariants:
//   1. Submissions are taken in their order, each once: next_ is the next one.
//   2. completed_ <= next_ <= completed_ + slots: a slot is read only when the submission that was
//      in it before has ended.
//   3. Every submission that was taken gets one outcome. Those of a batch follow each other.
//   4. At most one batch has tasks that are not in the ring: pending_.
//   5. A batch keeps the lane, the bindings with its buffers, and its version.
//   6. Tasks that have not ended, except those of ranges with a ticket of their own, are at most as
//      many as the lane has slots: running_tasks_.
//
// At least kMinRangeTasks submissions of one call that wait are joined into one range. A submission
// of the kind kLaneRange is read at once if the lane's blocks (RangeBlocks) have space for it;
// otherwise a thread of Host::post acquires a ticket for it and reads it (Fill), and the lane
// waits.
//
// Thread safety: the members of LaneSource as stated there, the others from any thread. mu_ guards
// what Take uses; Take only tries to lock it, so that the dispatch loop never waits for a call of
// this lane. end_mu_ guards the ends of submissions. Order: mu_, end_mu_.
//
// Memory ordering: lane_layout.h. A call that changed the bindings (SetBindings) before a
// submission was published is seen by it, because Take holds mu_ while it reads slots.
#ifndef RESIDENT_SERVER_LANES_LANE_H_
#define RESIDENT_SERVER_LANES_LANE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/lane/lane_layout.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/queue/lane_source.h"
#include "server/admission/admission.h"
#include "server/admission/drain_gate.h"
#include "server/lanes/lane_range.h"
#include "server/lanes/prepared_call.h"

namespace resident {

// Loads a word of the memory that the client may change at any time.
template <typename T>
T LoadRelaxed(const T* from) {
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}

// Limits of lanes; --max_lanes limits their number (server/flags.h).
inline constexpr uint32_t kMaxSessionLanes = 16;
inline constexpr uint32_t kMaxLaneCalls = 1024;
inline constexpr uint32_t kMaxLaneBuffers = 4096;
// File descriptors of a lane: the memory's, until its client has fetched it, and the socket's.
inline constexpr uint32_t kDescriptorsOfLane = 2;
// How long a lane waits for its client.
inline constexpr uint32_t kLaneTokenMs = 30'000;
// A lane is closed if it gets more refused submissions, or causes more page faults, in a second.
inline constexpr uint32_t kMaxLaneRefusals = 1000;
inline constexpr uint32_t kMaxLaneFaults = 1000;
// Submissions that are joined into one range: more would make an iteration of the dispatch loop
// long. A lane with a data area takes ranges of up to kMaxLaneRange tasks at once.
inline constexpr uint32_t kMaxLaneJoined = 512;
inline constexpr uint32_t kMaxLaneRange = 4096;

class Lane;

// What the submissions of a lane may name. Immutable.
struct LaneBindings {
  // Of the engine that the addresses belong to; its facts.
  std::shared_ptr<EngineSession> session;
  std::vector<BoundBuffer> buffers;
  // Null: the number is free.
  std::vector<std::shared_ptr<const PreparedCall>> calls;
  // For ranges; null: nothing is joined, and each range has a ticket of its own.
  std::shared_ptr<RangeBlocks> blocks;
};

// Submissions of all lanes of a device, by result, since the daemon started.
struct LaneCounters {
  std::atomic<uint64_t> ok{0};
  std::atomic<uint64_t> failed{0};
  std::atomic<uint64_t> refused{0};
  std::atomic<uint64_t> cancelled{0};
  std::atomic<uint64_t> joined{0};  // Those of them that were joined into ranges.
};

struct LaneBatch : Batch, std::enable_shared_from_this<LaneBatch> {
  // While its tasks have not ended.
  std::shared_ptr<Lane> lane;
  std::shared_ptr<const LaneBindings> bindings;
  std::shared_ptr<const OperatorVersion> version;
  // A version that the lane used before: it is destroyed with no lock held.
  std::shared_ptr<const OperatorVersion> dropped;
  DrainGate::Entry entry;
  // Of a range: the lane's block, or a ticket.
  std::shared_ptr<const StagingMemory> memory;
  Ticket ticket;

  uint64_t first = 0;  // The submission of task 0.
  uint16_t call = 0;
  bool whole = false;          // All tasks are one submission.
  std::vector<uint8_t> quiet;  // By submission.

  uint32_t submissions() const { return whole ? 1 : count(); }
};

class Lane final : public LaneSource, public std::enable_shared_from_this<Lane> {
 public:
  struct Options {
    uint32_t device = 0;
    uint32_t slots = kLaneDefaultSlots;
    uint64_t data_bytes = 0;
    std::chrono::milliseconds task_time_limit{0};
    uint32_t max_batch_tasks = Limits{}.max_batch_tasks;
    uint64_t max_queued_tasks = Limits{}.max_queued_tasks;
    uint32_t max_refusals = kMaxLaneRefusals;
    uint32_t max_faults = kMaxLaneFaults;
  };
  // Outlives the lane.
  struct Host {
    const Registry& registry;
    DrainGate& gate;
    LaneCounters& counters;
    // For ranges that need a ticket: as for a batch of the lane's client.
    Admission& admission;
    std::shared_ptr<ClientAccounts> accounts;
    // Places in the client's queue that its lanes hold for as long as they are open.
    std::function<uint64_t()> standing_tasks;
    // Runs its argument on a thread that may copy a lot.
    std::function<void(std::function<void()>)> post;
    // There is something to take, and the lane is asleep. May be called from any thread.
    std::function<void(const Lane&)> note_work;
    // The lane must be closed, with this status. Called with locks held: it must not wait for any.
    std::function<void(const Lane&, const absl::Status&)> refuse;
    // The lane is asleep and waits for a word that a device may write: look at Ready() often.
    std::function<void(const Lane&)> note_await;
  };

  // Makes the memory. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::shared_ptr<Lane>> Create(const Options& options, const Host& host,
                                                      std::vector<Ticket> tickets);
  // Called only by Create.
  Lane(const Options& options, const Host& host, UniqueFd memory, uint8_t* base,
       std::vector<Ticket> tickets);
  ~Lane() override;

  const Options& options() const { return options_; }
  // The descriptor of the memory, once; afterwards -1.
  UniqueFd TakeMemory() ABSL_LOCKS_EXCLUDED(mu_);
  lane_welcome Welcome() const;

  std::shared_ptr<const LaneBindings> bindings() const ABSL_LOCKS_EXCLUDED(mu_);
  void SetBindings(std::shared_ptr<const LaneBindings> bindings) ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps a ticket until the lane is destroyed.
  void Keep(Ticket ticket) ABSL_LOCKS_EXCLUDED(mu_);
  // Marks the calls whose operator the client may not run any more.
  void SetAllowed(const std::function<bool(const std::string& operator_name)>& allowed)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets versions that the registry no longer serves, so that a removal need not wait for calls
  // that nobody uses.
  void DropStaleTargets() ABSL_LOCKS_EXCLUDED(mu_);

  // What has not been read ends as UNAVAILABLE from now on.
  void BeginDrain();
  // Reads nothing any more, and marks the pending batch as cancelled.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends what waits to be read as UNAVAILABLE: there is no engine that could run it.
  void RejectWaiting() ABSL_LOCKS_EXCLUDED(mu_);

  bool asleep() const { return asleep_.load(); }
  // It waits for the value of a stream word.
  bool awaits() const { return block_.load(std::memory_order_relaxed) == Block::kAwait; }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

  // LaneSource.
  bool Ready() const override;
  // A joined range may have more than `max_tasks` tasks: kMaxLaneJoined, which are read in a
  // bounded time.
  Visit Take(uint32_t max_tasks, uint64_t epoch) override ABSL_LOCKS_EXCLUDED(mu_);
  bool FallAsleep() override;
  void WakeUp() override;
  void Notify() override;

 private:
  // A submission, copied out of the memory.
  struct Copy {
    uint64_t sequence;
    uint64_t head;
    LaneWordCopy words;
  };
  enum class Step : uint8_t {
    kEnded,  // The submission has ended.
    kTaken,  // It is in the batch.
    kStop,   // It is not read yet.
  };
  // Why the last Take took nothing.
  enum class Block : uint8_t { kNone, kEarlier, kEpoch, kFill, kAwait };
  // A batch that is being taken.
  struct Taking {
    std::shared_ptr<LaneBatch> batch;
    // Not null: its tasks are joined.
    std::optional<LaneRange> joined;
    std::shared_ptr<const StagingMemory> memory;
    CallTarget target;  // Of the joined tasks.

    // Tasks so far.
    uint32_t count() const { return joined.has_value() ? joined->count() : batch->count(); }
  };
  // A range that another thread reads.
  struct Fill {
    explicit Fill(Admission& admission) : wait(admission) {}
    Admission::Wait wait;
    Copy copy{};
    std::shared_ptr<const LaneBindings> bindings;
    CallTarget target;
    uint64_t epoch = 0;
    // The result, guarded by mu_: a batch, or a refusal, or neither if the daemon drains.
    bool ready = false;
    std::shared_ptr<LaneBatch> batch;
    uint16_t reason = 0;
    std::string text;
  };
  // A signal that waits for earlier submissions.
  struct Signal {
    uint64_t sequence;
    uint32_t stream;
    uint32_t value;
  };

  bool ReadSlot(uint64_t sequence, Copy* copy) const;
  // Looks at the heads of the next slots, at most `max_slots`.
  void TouchSlots(uint32_t max_slots) const;
  Visit TakeLocked(uint32_t max_tasks, uint64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Handles the next submission; `taking` receives its task.
  Step Handle(const Copy& copy, Taking& taking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Step HandleTask(const Copy& copy, Taking& taking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Step HandleRange(const Copy& copy, Taking& taking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A range that another thread reads, or has read; nullopt: it has to be read again.
  std::optional<Step> HandleFill(const Copy& copy, Taking& taking)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads a range that fits into the lane's blocks.
  Step ReadRange(const Copy& copy, const PreparedCall& call, const CallTarget& target,
                 Taking& taking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Step HandleAwait(const Copy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Step HandleSignal(const Copy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The stream word of an await or a signal; nullopt: it is refused.
  std::optional<uint32_t> CheckStream(const Copy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether so many submissions wait that they are worth being joined.
  bool ManyWait(const Copy& copy) const;
  // Begins to join; false: all blocks are in use.
  bool BeginJoined(const PreparedCall& call, const CallTarget& target, Taking& taking)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndJoined(Taking& taking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void AppendTask(const PreparedCall& call, const CallTarget& target,
                         const CheckedTask& task, LaneBatch& batch);
  // Gives the batch to the queue, unless the daemon drains.
  void Deliver(const std::shared_ptr<LaneBatch>& batch, Visit* visit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  RangeSource DataArea(const Copy& copy) const;
  void StartFill(const Copy& copy, const CallTarget& target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The result of a fill is not wanted any more.
  void DropFill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AcquireForFill(const std::shared_ptr<Fill>& fill) ABSL_LOCKS_EXCLUDED(mu_);
  void RunFill(const std::shared_ptr<Fill>& fill, absl::StatusOr<Ticket> ticket)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Whether it has AFTER_ALL and earlier submissions have not ended. Also of what is then refused:
  // clients rely on it that what follows begins after all of them.
  bool MustWait(const Copy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The call of a submission. Null: it is refused.
  const PreparedCall* CheckHead(const Copy& copy, uint16_t* reason, std::string* text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The present target of a call; null: try again later.
  const CallTarget* FindTarget(uint16_t call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<LaneBatch> NewBatch(const Copy& copy, const CallTarget& target,
                                      Clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the next submission.
  void Refuse(const Copy& copy, uint16_t reason, const std::string& text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndUnread(uint64_t sequence, uint8_t status, uint16_t detail)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The daemon drains, or has no engine.
  void RejectUnread(const Copy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static uint64_t CountPageFaults();
  void CountFaults(uint64_t faults) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The tasks of a batch have ended.
  void Finish(LaneBatch& batch) ABSL_LOCKS_EXCLUDED(mu_, end_mu_);
  // Writes the completions of a batch; returns how many were cancelled.
  uint64_t WriteEnds(const LaneBatch& batch, uint32_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_mu_);
  // Writes the completion of a range that is one submission; returns its status.
  uint8_t WriteRangeEnd(const LaneBatch& batch, uint32_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_mu_);
  void WriteCompletion(uint64_t sequence, uint8_t status, uint8_t flags, uint16_t detail,
                       uint32_t device_ns, uint32_t version) const;
  // Submissions [first, first + count) have ended.
  void Advance(uint64_t first, uint32_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_mu_);
  // Moves completed_ from `completed` over what has ended, and fires the signals that it reaches.
  void Settle(uint64_t completed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_mu_);
  void Fire(const Signal& signal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_mu_);
  // `tasks` of the submission did not end OK. REQUIRES: tasks > 0, and it is not below completed_.
  void NoteFailed(uint64_t sequence, uint32_t tasks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_mu_);
  // Adds the failed tasks of submissions [first, end), which have ended, to failed_tasks_.
  void CountFailed(uint64_t first, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_mu_);
  // Whether what the lane waits for (Block::kAwait) has come, or does not matter any more.
  bool AwaitEnds(uint64_t next) const;

  lane_slot* slot(uint64_t sequence) const { return slots_ + (sequence & (options_.slots - 1)); }

  const Options options_;
  const Host host_;
  uint8_t* const base_;
  lane_client_page* const client_;
  lane_daemon_page* const daemon_;
  lane_slot* const slots_;
  lane_completion* const completions_;

  std::atomic<uint64_t> next_{0};  // Changed with mu_.
  // Every submission below it has ended. Changed with end_mu_.
  std::atomic<uint64_t> completed_{0};
  std::atomic<bool> closed_{false};
  std::atomic<bool> draining_{false};
  std::atomic<bool> asleep_{false};
  std::atomic<Block> block_{Block::kNone};
  std::atomic<uint64_t> epoch_{0};        // Of the last Take.
  std::atomic<uint64_t> bound_epoch_{0};  // Of bindings_.
  std::atomic<uint32_t> wakes_{0};        // The value of the daemon page's `wakes`.
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint32_t> running_tasks_{0};  // See invariant 6.
  // Of Block::kAwait.
  std::atomic<uint32_t> await_stream_{0};
  std::atomic<uint32_t> await_value_{0};
  std::atomic<bool> fill_ready_{false};

  mutable absl::Mutex mu_ ABSL_ACQUIRED_BEFORE(end_mu_);
  UniqueFd memory_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const LaneBindings> bindings_ ABSL_GUARDED_BY(mu_);
  std::vector<CallTarget> targets_ ABSL_GUARDED_BY(mu_);  // By call.
  // See LaneBatch::dropped, of the next batch.
  std::shared_ptr<const OperatorVersion> dropped_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> forbidden_ ABSL_GUARDED_BY(mu_);  // By call.
  std::vector<Ticket> tickets_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<LaneBatch> pending_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Fill> fill_ ABSL_GUARDED_BY(mu_);  // Of submission next_.
  std::atomic<uint64_t> cancel_below_{0};
  // For the limits of refusals and faults: the present second, and how many it has had.
  Clock::time_point second_ ABSL_GUARDED_BY(mu_);
  uint32_t refused_in_second_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t faults_in_second_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t measured_visits_ ABSL_GUARDED_BY(mu_) = 0;  // The next ones, whose faults are counted.
  uint32_t random_ ABSL_GUARDED_BY(mu_);

  absl::Mutex end_mu_;
  std::vector<bool> ended_ ABSL_GUARDED_BY(end_mu_);  // By slot: ended, and above completed_.
  std::deque<Signal> signals_ ABSL_GUARDED_BY(end_mu_);
  // Failed tasks of the submissions that Settle has passed, since the lane was opened.
  uint32_t failed_tasks_ ABSL_GUARDED_BY(end_mu_) = 0;
  // Those of each later submission, by slot, and how many slots are not 0. A list would be searched
  // for each end, and a client could make it as long as the lane has slots.
  std::vector<uint32_t> failed_by_slot_ ABSL_GUARDED_BY(end_mu_);
  uint32_t later_failed_ ABSL_GUARDED_BY(end_mu_) = 0;
  // Batches that have ended and can be used again.
  std::vector<std::shared_ptr<LaneBatch>> free_ ABSL_GUARDED_BY(end_mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_LANES_LANE_H_
