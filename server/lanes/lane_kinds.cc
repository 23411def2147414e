// Lane: joined submissions, and the kinds of submissions that are not one task: ranges, awaits and
// signals.
#include <sys/resource.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/queue/errors.h"
#include "server/lanes/lane.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

// Whether a stream word has reached a value: its low half, modulo 2^32.
bool Reached(uint64_t word, uint32_t value) {
  return static_cast<int32_t>(static_cast<uint32_t>(word) - value) >= 0;
}

}  // namespace

uint64_t Lane::CountPageFaults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<uint64_t>(usage.ru_minflt) + static_cast<uint64_t>(usage.ru_majflt);
}

// --- Joined submissions --------------------------------------------------------------------------

bool Lane::ManyWait(const Copy& copy) const {
  const uint64_t last = copy.sequence + kMinRangeTasks - 1;
  if (last - completed_.load(std::memory_order_relaxed) >= options_.slots) return false;
  // Only a hint: each submission is read and checked in its turn.
  const uint64_t head = LoadRelaxed(&slot(last)->head);
  return lane_head_stamp(head) == lane_stamp(last) && lane_head_kind(head) == kLaneTask &&
         lane_head_call(head) == lane_head_call(copy.head);
}

bool Lane::BeginJoined(const PreparedCall& call, const CallTarget& target, Taking& taking) {
  RangeBlocks* const blocks = bindings_->blocks.get();
  if (blocks == nullptr || blocks->words() < call.words() || blocks->tasks() < kMinRangeTasks ||
      call.task_times() || !target.ranges || target.on_trial) {
    return true;  // They are not joined.
  }
  taking.memory = blocks->Take();
  if (taking.memory == nullptr) return false;
  taking.joined.emplace(call, *taking.memory, std::min(blocks->tasks(), kMaxLaneJoined));
  taking.target = target;
  return true;
}

void Lane::EndJoined(Taking& taking) {
  LaneBatch& batch = *taking.batch;
  const LaneRange& joined = *taking.joined;
  if (joined.count() >= kMinRangeTasks) {
    batch.range = joined.Build(taking.target);
    batch.memory = std::move(taking.memory);
    host_.counters.joined.fetch_add(joined.count(), std::memory_order_relaxed);
    return;
  }
  // Others were among those that waited.
  const PreparedCall& call = *bindings_->calls[batch.call];
  for (uint32_t i = 0; i < joined.count(); ++i) {
    AppendTask(call, taking.target, joined.Task(i), batch);
  }
}

// --- Ranges --------------------------------------------------------------------------------------

RangeSource Lane::DataArea(const Copy& copy) const {
  return {.data = base_ + lane_data_offset(options_.slots),
          .data_bytes = options_.data_bytes,
          .records = copy.words[1]};
}

namespace {

std::string ExplainRange(const PreparedCall& call, const RangeRefusal& refused,
                         const std::vector<BoundBuffer>& buffers) {
  if (!refused.text.empty()) return refused.text;
  LaneWordCopy words = {};
  words[refused.refusal.word] = refused.word;
  return absl::StrCat("task ", refused.task,
                      " of the range: ", call.Explain(refused.refusal, words, buffers));
}

}  // namespace

std::optional<Lane::Step> Lane::HandleFill(const Copy& copy, Taking& taking) {
  if (!fill_->ready) {
    block_.store(Block::kFill);
    return Step::kStop;
  }
  const std::shared_ptr<Fill> fill = std::move(fill_);
  if (fill->reason != 0) {
    Refuse(copy, fill->reason, fill->text);
    return Step::kEnded;
  }
  if (fill->batch == nullptr) {
    EndUnread(copy.sequence, kLaneUnavailable, 0);
    return Step::kEnded;
  }
  // With another engine, it is read again.
  if (fill->epoch != epoch_.load(std::memory_order_relaxed)) return std::nullopt;
  taking.batch = std::move(fill->batch);
  next_.store(copy.sequence + 1, std::memory_order_relaxed);
  return Step::kTaken;
}

Lane::Step Lane::HandleRange(const Copy& copy, Taking& taking) {
  if (fill_ != nullptr) {
    if (const std::optional<Step> step = HandleFill(copy, taking)) return *step;
  }
  uint16_t reason = 0;
  std::string text;
  if (MustWait(copy)) return Step::kStop;
  const PreparedCall* const call = CheckHead(copy, &reason, &text);
  const uint64_t count = copy.words[0];
  if (call != nullptr && (count == 0 || count > options_.max_batch_tasks)) {
    reason = kLaneRefusedRange;
    text = absl::StrCat("a range of ", count, " tasks. Fix: submit 1 to ", options_.max_batch_tasks,
                        " (--max_batch_tasks)");
  }
  const CallTarget* target = nullptr;
  if (reason == 0) {
    target = FindTarget(lane_head_call(copy.head));
    if (target == nullptr) return Step::kStop;
    if (target->refused != 0) {
      reason = target->refused;
      text = target->reason;
    } else if (!target->ranges) {
      reason = kLaneRefusedRange;
      text = absl::StrCat("a task of ", call->operator_name(),
                          " is divided between workers, or has more than ",
                          uint32_t{kMaxRangeArguments},
                          " arguments, so that there are no ranges of it. Fix: submit tasks");
    }
  }
  if (reason != 0) {
    Refuse(copy, reason, text);
    return Step::kEnded;
  }
  RangeBlocks* const blocks = bindings_->blocks.get();
  if (blocks == nullptr || count > blocks->tasks() || call->words() > blocks->words()) {
    StartFill(copy, *target);
    block_.store(Block::kFill);
    return Step::kStop;
  }
  return ReadRange(copy, *call, *target, taking);
}

Lane::Step Lane::ReadRange(const Copy& copy, const PreparedCall& call, const CallTarget& target,
                           Taking& taking) {
  RangeBlocks& blocks = *bindings_->blocks;
  const uint64_t count = copy.words[0];
  std::shared_ptr<const StagingMemory> memory;
  if (running_tasks_.load(std::memory_order_acquire) + count <= options_.slots) {
    memory = blocks.Take();
  }
  if (memory == nullptr) {
    block_.store(Block::kEarlier);
    return Step::kStop;
  }
  LaneRange range(call, *memory, blocks.tasks());
  const uint64_t faults = CountPageFaults();
  const RangeRefusal refused =
      range.Read(DataArea(copy), static_cast<uint32_t>(count), bindings_->buffers);
  CountFaults(CountPageFaults() - faults);
  if (refused) {
    Refuse(copy, refused.refusal.reason, ExplainRange(call, refused, bindings_->buffers));
    return Step::kEnded;
  }
  taking.batch = NewBatch(copy, target, Clock::time_point::max());
  taking.batch->range = range.Build(target);
  taking.batch->memory = std::move(memory);
  taking.batch->whole = true;
  taking.batch->quiet.push_back((lane_head_flags(copy.head) & kLaneQuiet) != 0);
  next_.store(copy.sequence + 1, std::memory_order_relaxed);
  return Step::kTaken;
}

void Lane::StartFill(const Copy& copy, const CallTarget& target) {
  fill_ = std::make_shared<Fill>(host_.admission);
  fill_->copy = copy;
  fill_->bindings = bindings_;
  fill_->target = target;
  fill_->epoch = epoch_.load(std::memory_order_relaxed);
  fill_ready_.store(false);
  host_.post([self = shared_from_this(), fill = fill_] { self->AcquireForFill(fill); });
}

void Lane::DropFill() {
  if (fill_ == nullptr) return;
  // Not here, because it waits for the lock of admissions.
  host_.post([fill = std::move(fill_)] { (void)fill->wait.Cancel(); });
  fill_ = nullptr;
}

void Lane::AcquireForFill(const std::shared_ptr<Fill>& fill) {
  const uint64_t count = fill->copy.words[0];
  const PreparedCall& call = *fill->bindings->calls[lane_head_call(fill->copy.head)];
  uint64_t standing = 0;
  {
    absl::MutexLock lock(&mu_);
    if (closed_.load() || fill_ != fill) return;
    standing = host_.standing_tasks();
  }
  // Otherwise it would wait until lanes are closed, among them this one.
  if (standing + count > options_.max_queued_tasks) {
    return RunFill(fill, errors::TooManyQueuedTasks(standing, count, options_.max_queued_tasks));
  }
  Needs needs;
  needs.device = options_.device;
  needs.session = fill->bindings->session;
  needs.tasks = count;
  needs.staging_bytes = LaneRange::StagingBytes(count, call.words());
  needs.host_bytes = count * kTaskOutcomeBytes;
  host_.admission.Acquire(fill->wait, host_.accounts, std::move(needs), Clock::time_point::max(),
                          [self = shared_from_this(), fill](absl::StatusOr<Ticket> ticket) {
                            self->RunFill(fill, std::move(ticket));
                          });
}

void Lane::RunFill(const std::shared_ptr<Fill>& fill, absl::StatusOr<Ticket> ticket) {
  const PreparedCall& call = *fill->bindings->calls[lane_head_call(fill->copy.head)];
  const std::vector<BoundBuffer>& buffers = fill->bindings->buffers;
  std::unique_ptr<const TaskRange> tasks;
  uint16_t reason = 0;
  std::string text;
  if (ticket.ok()) {
    const auto count = static_cast<uint32_t>(fill->copy.words[0]);
    LaneRange range(call, *ticket->staging(), count);
    const RangeRefusal refused = range.Read(DataArea(fill->copy), count, buffers);
    if (refused) {
      reason = refused.refusal.reason;
      text = ExplainRange(call, refused, buffers);
    } else {
      tasks = range.Build(fill->target);
    }
  } else if (absl::IsResourceExhausted(ticket.status())) {
    reason = kLaneRefusedRange;
    text = std::string(ticket.status().message());
  }
  {
    absl::MutexLock lock(&mu_);
    if (closed_.load() || fill_ != fill) return;
    fill->reason = reason;
    fill->text = std::move(text);
    if (tasks != nullptr) {
      fill->batch = NewBatch(fill->copy, fill->target, Clock::time_point::max());
      fill->batch->bindings = fill->bindings;
      fill->batch->epoch = fill->epoch;
      fill->batch->range = std::move(tasks);
      fill->batch->ticket = *std::move(ticket);
      fill->batch->whole = true;
      fill->batch->quiet.push_back((lane_head_flags(fill->copy.head) & kLaneQuiet) != 0);
    }
    fill->ready = true;
    fill_ready_.store(true);
  }
  host_.note_work(*this);
}

uint8_t Lane::WriteRangeEnd(const LaneBatch& batch, uint32_t version) {
  const uint32_t count = batch.count();
  uint32_t first = 0;  // That did not end OK.
  bool unsure = false;
  if (batch.failed != 0) {
    while (first < count && batch.status[first] == TaskStatus::kOk) ++first;
    for (uint32_t i = first; i < count - batch.skipped; ++i) {
      unsure |= MayHaveRunInPart(batch.status[i]);
    }
    NoteFailed(batch.first, batch.failed);
  } else if (batch.quiet[0]) {
    return kLaneOk;
  }
  const auto status =
      static_cast<uint8_t>(batch.failed != 0 ? batch.status[first] : TaskStatus::kOk);
  WriteCompletion(batch.first, status, unsure ? kLaneMayHaveRun : 0,
                  static_cast<uint16_t>(std::min<uint32_t>(batch.failed, UINT16_MAX)),
                  static_cast<uint32_t>(std::min<uint64_t>(batch.range_ns, UINT32_MAX)), version);
  return status;
}

// --- Awaits and signals --------------------------------------------------------------------------

std::optional<uint32_t> Lane::CheckStream(const Copy& copy) {
  if (lane_head_flags(copy.head) != 0) {
    Refuse(copy, kLaneRefusedFlags, "an await or a signal has flags. Fix: leave them out");
  } else if (lane_head_call(copy.head) != 0) {
    Refuse(copy, kLaneRefusedCall, "an await or a signal names a call. Fix: set call to 0");
  } else if (copy.words[0] >= kLaneStreamWords) {
    Refuse(copy, kLaneRefusedStream,
           absl::StrCat("the lane has no stream word ", copy.words[0], ". Fix: use one below ",
                        int{kLaneStreamWords}));
  } else {
    return static_cast<uint32_t>(copy.words[0]);
  }
  return std::nullopt;
}

Lane::Step Lane::HandleAwait(const Copy& copy) {
  const std::optional<uint32_t> stream = CheckStream(copy);
  if (!stream.has_value()) return Step::kEnded;
  const auto value = static_cast<uint32_t>(copy.words[1]);
  // What was written before the word is visible to later tasks.
  if (Reached(__atomic_load_n(&client_->stream[*stream], __ATOMIC_ACQUIRE), value)) {
    EndUnread(copy.sequence, kLaneOk, 0);
    return Step::kEnded;
  }
  await_stream_.store(*stream, std::memory_order_relaxed);
  await_value_.store(value, std::memory_order_relaxed);
  block_.store(Block::kAwait);
  return Step::kStop;
}

bool Lane::AwaitEnds(uint64_t next) const {
  const uint32_t stream = await_stream_.load(std::memory_order_relaxed);
  return draining_.load(std::memory_order_relaxed) || LoadRelaxed(&client_->cancel_below) > next ||
         Reached(LoadRelaxed(&client_->stream[stream]),
                 await_value_.load(std::memory_order_relaxed));
}

Lane::Step Lane::HandleSignal(const Copy& copy) {
  const std::optional<uint32_t> stream = CheckStream(copy);
  if (!stream.has_value()) return Step::kEnded;
  next_.store(copy.sequence + 1, std::memory_order_relaxed);
  host_.counters.ok.fetch_add(1, std::memory_order_relaxed);
  absl::MutexLock lock(&end_mu_);
  signals_.push_back({copy.sequence, *stream, static_cast<uint32_t>(copy.words[1])});
  Settle(completed_.load(std::memory_order_relaxed));
  return Step::kEnded;
}

void Lane::Settle(uint64_t completed) {
  const uint64_t mask = options_.slots - 1;
  CountFailed(completed_.load(std::memory_order_relaxed), completed);
  while (true) {
    if (!signals_.empty() && signals_.front().sequence == completed) {
      Fire(signals_.front());
      signals_.pop_front();
    } else if (ended_[completed & mask]) {
      ended_[completed & mask] = false;
      CountFailed(completed, completed + 1);
    } else {
      break;
    }
    ++completed;
  }
  __atomic_store_n(&daemon_->completed, completed, __ATOMIC_RELEASE);
  // FallAsleep stores asleep_ before it reads this.
  completed_.store(completed);
}

void Lane::Fire(const Signal& signal) {
  if (closed_.load()) return;
  // Before the word: who has read it finds the number.
  __atomic_store_n(&daemon_->stream_failed[signal.stream], failed_tasks_, __ATOMIC_RELEASE);
  __atomic_store_n(&daemon_->stream[signal.stream], uint64_t{signal.value}, __ATOMIC_RELEASE);
  WriteCompletion(signal.sequence, kLaneOk, 0, 0, 0, 0);
}

void Lane::NoteFailed(uint64_t sequence, uint32_t tasks) {
  assert(tasks > 0 && sequence >= completed_.load());
  uint32_t& failed = failed_by_slot_[sequence & (options_.slots - 1)];
  later_failed_ += failed == 0;
  failed += tasks;
}

void Lane::CountFailed(uint64_t first, uint64_t end) {
  for (; later_failed_ != 0 && first != end; ++first) {
    const uint32_t failed = std::exchange(failed_by_slot_[first & (options_.slots - 1)], 0);
    failed_tasks_ += failed;
    later_failed_ -= failed != 0;
  }
}

}  // namespace resident
