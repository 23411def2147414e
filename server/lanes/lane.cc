#include "server/lanes/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/lanes/errors.h"

namespace resident {
namespace {

// Batches that are kept for reuse.
constexpr size_t kMaxFree = 16;
// Threads of the client that are woken at a time: more would delay the thread that wakes them.
constexpr int kWokenThreads = 4;
// One visit in so many is measured for page faults, and after one that had some, so many visits.
constexpr uint32_t kMeasuredShare = 16;
constexpr uint32_t kMeasuredAfterFault = 256;

// The word with the deadline, with kLaneDeadline.
constexpr size_t kDeadlineWord = kLaneWords - 1;

template <typename T>
void StoreRelaxed(T* to, T value) {
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
}
template <typename T>
void StoreRelease(T* to, T value) {
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

Clock::time_point ReadDeadline(uint64_t ns) {
  if (ns > static_cast<uint64_t>(INT64_MAX)) return Clock::time_point::max();
  return Clock::time_point(std::chrono::nanoseconds(static_cast<int64_t>(ns)));
}

// A batch may keep at most about twice the memory that its tasks need.
template <typename T>
void Shrink(std::vector<T>& vector) {
  if (vector.capacity() > 2 * vector.size() + 8) vector.shrink_to_fit();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Lane>> Lane::Create(const Options& options, const Host& host,
                                                   std::vector<Ticket> tickets) {
  const uint64_t bytes = lane_bytes(options.slots, options.data_bytes);
  UniqueFd memory(memfd_create("residentd-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    return errors::LaneMemory(strerror(errno));
  }
  // The size cannot change, so that no access of the daemon can raise SIGBUS.
  if (fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errors::LaneMemory(strerror(errno));
  }
  void* const base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory.get(), 0);
  if (base == MAP_FAILED) return errors::LaneMemory(strerror(errno));
  // Where the limit allows it, the memory is not swapped out.
  (void)mlock(base, bytes);
  return std::make_shared<Lane>(options, host, std::move(memory), static_cast<uint8_t*>(base),
                                std::move(tickets));
}

Lane::Lane(const Options& options, const Host& host, UniqueFd memory, uint8_t* base,
           std::vector<Ticket> tickets)
    : options_(options),
      host_(host),
      base_(base),
      client_(reinterpret_cast<lane_client_page*>(base)),
      daemon_(reinterpret_cast<lane_daemon_page*>(base + kLanePageBytes)),
      slots_(reinterpret_cast<lane_slot*>(base + lane_slots_offset())),
      completions_(
          reinterpret_cast<lane_completion*>(base + lane_completions_offset(options.slots))),
      memory_(std::move(memory)),
      bindings_(std::make_shared<LaneBindings>()),
      tickets_(std::move(tickets)),
      random_(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(base) >> 12) | 1),
      ended_(options.slots, false),
      failed_by_slot_(options.slots, 0) {
  StoreRelaxed(&daemon_->refused, uint64_t{UINT64_MAX});
  StoreRelease(&daemon_->state, uint32_t{kLaneOpen});
}

Lane::~Lane() { munmap(base_, lane_bytes(options_.slots, options_.data_bytes)); }

UniqueFd Lane::TakeMemory() {
  absl::MutexLock lock(&mu_);
  return std::move(memory_);
}

lane_welcome Lane::Welcome() const {
  return {.code = 0,
          .layout_hash = lane_layout_hash(),
          .slots = options_.slots,
          .reserved = 0,
          .data_bytes = options_.data_bytes};
}

std::shared_ptr<const LaneBindings> Lane::bindings() const {
  absl::MutexLock lock(&mu_);
  return bindings_;
}

void Lane::SetBindings(std::shared_ptr<const LaneBindings> bindings) {
  std::vector<CallTarget> dropped;  // Destroyed without the lock.
  std::shared_ptr<const LaneBindings> before;
  absl::MutexLock lock(&mu_);
  if (closed_.load(std::memory_order_relaxed)) return;
  const size_t calls = bindings->calls.size();
  targets_.resize(std::max(targets_.size(), calls));
  forbidden_.resize(targets_.size(), false);
  for (size_t c = 0; c < calls; ++c) {
    const bool same = c < bindings_->calls.size() && bindings_->calls[c] == bindings->calls[c];
    if (same) continue;
    dropped.push_back(std::exchange(targets_[c], CallTarget{}));
    forbidden_[c] = false;
  }
  bound_epoch_.store(bindings->session->epoch());
  before = std::exchange(bindings_, std::move(bindings));
}

void Lane::Keep(Ticket ticket) {
  absl::MutexLock lock(&mu_);
  tickets_.push_back(std::move(ticket));
}

void Lane::SetAllowed(const std::function<bool(const std::string& operator_name)>& allowed) {
  absl::MutexLock lock(&mu_);
  for (size_t c = 0; c < bindings_->calls.size(); ++c) {
    const auto& call = bindings_->calls[c];
    if (call != nullptr) forbidden_[c] = !allowed(call->operator_name());
  }
}

void Lane::DropStaleTargets() {
  std::vector<CallTarget> dropped;
  absl::MutexLock lock(&mu_);
  const uint64_t changes = host_.registry.changes();
  for (CallTarget& target : targets_) {
    if (target.version == nullptr || target.changes == changes) continue;
    dropped.push_back(std::exchange(target, CallTarget{}));
  }
  if (dropped_ != nullptr) dropped.emplace_back().version = std::move(dropped_);
}

void Lane::BeginDrain() {
  draining_.store(true);
  if (!closed_.load()) StoreRelease(&daemon_->state, uint32_t{kLaneDraining});
}

void Lane::Close() {
  closed_.store(true);
  std::vector<CallTarget> targets;
  std::shared_ptr<const LaneBindings> bindings;
  std::shared_ptr<Fill> fill;
  {
    absl::MutexLock lock(&mu_);
    if (pending_ != nullptr) pending_->cancelled = true;
    pending_.reset();
    cancel_below_ = UINT64_MAX;
    fill = std::move(fill_);
    targets.swap(targets_);
    forbidden_.clear();
    bindings = std::exchange(bindings_, std::make_shared<LaneBindings>());
    memory_.Reset();
  }
  if (fill != nullptr) (void)fill->wait.Cancel();
  {
    // No signal fires afterwards: the client's library then stores what was promised.
    absl::MutexLock lock(&end_mu_);
    signals_.clear();
  }
  StoreRelease(&daemon_->state, uint32_t{kLaneClosed});
  Notify();
}

void Lane::RejectWaiting() {
  {
    absl::MutexLock lock(&mu_);
    Copy copy;
    DropFill();
    while (Ready() && ReadSlot(next_.load(std::memory_order_relaxed), &copy)) RejectUnread(copy);
  }
  Notify();
}

void Lane::RejectUnread(const Copy& copy) {
  // A stream that waits for a signal goes on.
  if (lane_head_kind(copy.head) == kLaneSignal) {
    (void)HandleSignal(copy);
  } else {
    EndUnread(copy.sequence, kLaneUnavailable, 0);
  }
}

bool Lane::Ready() const {
  // A cancellation may be of tasks that are in the ring.
  if (LoadRelaxed(&client_->cancel_below) != cancel_below_.load(std::memory_order_relaxed)) {
    return !closed_.load(std::memory_order_relaxed);
  }
  const uint64_t next = next_.load(std::memory_order_relaxed);
  const uint64_t head = __atomic_load_n(&slot(next)->head, __ATOMIC_ACQUIRE);
  return lane_head_stamp(head) == lane_stamp(next) && !closed_.load(std::memory_order_relaxed) &&
         next - completed_.load(std::memory_order_relaxed) < options_.slots &&
         (block_.load(std::memory_order_relaxed) != Block::kAwait || AwaitEnds(next));
}

bool Lane::ReadSlot(uint64_t sequence, Copy* copy) const {
  const lane_slot* const from = slot(sequence);
  copy->sequence = sequence;
  copy->head = __atomic_load_n(&from->head, __ATOMIC_ACQUIRE);
  if (lane_head_stamp(copy->head) != lane_stamp(sequence)) return false;
  for (size_t w = 0; w < kLaneWords; ++w) copy->words[w] = LoadRelaxed(&from->words[w]);
  return true;
}

void Lane::TouchSlots(uint32_t max_slots) const {
  uint64_t sequence = next_.load(std::memory_order_relaxed);
  (void)LoadRelaxed(&client_->cancel_below);
  for (uint32_t i = 0; i < max_slots; ++i, ++sequence) {
    if (lane_head_stamp(LoadRelaxed(&slot(sequence)->head)) != lane_stamp(sequence)) break;
  }
}

bool Lane::FallAsleep() {
  asleep_.store(true);
  __atomic_store_n(&daemon_->asleep, 1u, __ATOMIC_SEQ_CST);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!Ready()) {
    if (awaits()) host_.note_await(*this);
    return true;
  }
  switch (block_.load()) {
    case Block::kNone:
      return false;
    case Block::kEarlier:  // Its end calls note_work.
      return next_.load() != completed_.load();
    case Block::kEpoch:  // The end of the move to the new engine calls it.
      return bound_epoch_.load() != epoch_.load();
    case Block::kFill:  // Its end calls note_work.
      return !fill_ready_.load();
    case Block::kAwait:  // Ready has found that it ends.
      return false;
  }
  return false;
}

void Lane::WakeUp() {
  asleep_.store(false);
  __atomic_store_n(&daemon_->asleep, 0u, __ATOMIC_SEQ_CST);
}

void Lane::Notify() {
  // See "Sleep" in lane_layout.h.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (LoadRelaxed(&client_->sleeping) == 0) return;
  StoreRelease(&daemon_->wakes, wakes_.fetch_add(1) + 1);
  syscall(SYS_futex, &daemon_->wakes, FUTEX_WAKE, kWokenThreads, nullptr, nullptr, 0);
}

LaneSource::Visit Lane::Take(uint32_t max_tasks, uint64_t epoch) {
  Visit visit;
  if (!mu_.TryLock()) return visit;
  random_ ^= random_ << 13, random_ ^= random_ >> 17, random_ ^= random_ << 5;
  if (measured_visits_ > 0 || random_ % kMeasuredShare == 0) {
    if (measured_visits_ > 0) --measured_visits_;
    // Apart from the visit, whose own memory may cause some.
    const uint64_t before = CountPageFaults();
    TouchSlots(max_tasks);
    CountFaults(CountPageFaults() - before);
  }
  visit = TakeLocked(max_tasks, epoch);
  mu_.Unlock();
  return visit;
}

void Lane::CountFaults(uint64_t faults) {
  if (faults == 0) return;
  measured_visits_ = kMeasuredAfterFault;
  const Clock::time_point now = Clock::now();
  if (now - second_ > std::chrono::seconds(1)) {
    second_ = now;
    refused_in_second_ = 0;
    faults_in_second_ = 0;
  }
  faults_in_second_ += faults;
  if (faults_in_second_ > options_.max_faults && !closed_.exchange(true)) {
    host_.refuse(*this, errors::TooManyLaneFaults(options_.max_faults));
  }
}

LaneSource::Visit Lane::TakeLocked(uint32_t max_tasks, uint64_t epoch) {
  Visit visit;
  block_.store(Block::kNone, std::memory_order_relaxed);
  epoch_.store(epoch, std::memory_order_relaxed);
  if (closed_.load()) return visit;
  const uint64_t cancel_below = LoadRelaxed(&client_->cancel_below);
  // Tasks in the ring are stopped.
  visit.cancelled = cancel_below_.exchange(cancel_below, std::memory_order_relaxed) != cancel_below;
  if (pending_ != nullptr) {
    if (pending_->submitted < pending_->count()) {
      if (pending_->first + pending_->submissions() <= cancel_below && !pending_->cancelled) {
        pending_->cancelled = true;
        visit.cancelled = true;
      }
      block_.store(Block::kEarlier);
      return visit;
    }
    pending_.reset();
  }
  const bool draining = draining_.load();
  if (!draining && bound_epoch_.load(std::memory_order_relaxed) != epoch) {
    block_.store(Block::kEpoch);
    return visit;
  }
  const uint32_t running = running_tasks_.load(std::memory_order_acquire);
  uint32_t limit = std::min(max_tasks, options_.slots - std::min(options_.slots, running));
  if (limit == 0) block_.store(Block::kEarlier);
  Taking taking;
  Copy copy;
  while (visit.consumed < limit) {
    const uint64_t next = next_.load(std::memory_order_relaxed);
    if (next - completed_.load(std::memory_order_acquire) >= options_.slots) break;
    if (fill_ != nullptr) {
      copy = fill_->copy;
    } else if (!ReadSlot(next, &copy)) {
      break;
    }
    if (draining) {
      DropFill();
      RejectUnread(copy);
    } else if (Handle(copy, taking) == Step::kStop) {
      break;
    }
    if (taking.joined.has_value() && taking.count() == 1) {
      limit = visit.consumed + std::min(taking.joined->max_tasks(), options_.slots - running);
    }
    ++visit.consumed;
  }
  if (taking.batch == nullptr) return visit;
  if (taking.joined.has_value()) EndJoined(taking);
  Deliver(taking.batch, &visit);
  return visit;
}

void Lane::Deliver(const std::shared_ptr<LaneBatch>& batch, Visit* visit) {
  Shrink(batch->tasks);
  Shrink(batch->arguments);
  Shrink(batch->quiet);
  pending_ = batch;
  visit->batch = batch;
  if (batch->whole && batch->ticket.staging() != nullptr) return;  // The ticket has an entry.
  auto entry = host_.gate.Enter(batch->count());
  if (entry.ok()) {
    running_tasks_.fetch_add(batch->count(), std::memory_order_relaxed);
    batch->entry = *std::move(entry);
    return;
  }
  // The drain has just begun.
  const uint32_t submissions = batch->submissions();
  {
    absl::MutexLock lock(&end_mu_);
    for (uint32_t i = 0; i < submissions; ++i) {
      WriteCompletion(batch->first + i, kLaneUnavailable, 0, 0, 0, 0);
      NoteFailed(batch->first + i, 1);
    }
    Advance(batch->first, submissions);
  }
  host_.counters.failed.fetch_add(submissions, std::memory_order_relaxed);
  pending_.reset();
  visit->batch.reset();
}

bool Lane::MustWait(const Copy& copy) {
  if ((lane_head_flags(copy.head) & kLaneAfterAll) == 0 ||
      completed_.load(std::memory_order_acquire) == copy.sequence) {
    return false;
  }
  block_.store(Block::kEarlier);
  return true;
}

const PreparedCall* Lane::CheckHead(const Copy& copy, uint16_t* reason, std::string* text) {
  const uint8_t kind = lane_head_kind(copy.head);
  const uint8_t flags = lane_head_flags(copy.head);
  const uint16_t call = lane_head_call(copy.head);
  if (call >= bindings_->calls.size() || bindings_->calls[call] == nullptr) {
    *reason = kLaneRefusedCall;
    *text = absl::StrCat("the lane has no prepared call ", call, ". Fix: use a number of Prepare");
    return nullptr;
  }
  const PreparedCall& found = *bindings_->calls[call];
  const uint8_t known = kLaneAfterAll | kLaneQuiet | (kind == kLaneTask ? kLaneDeadline : 0);
  if ((flags & ~known) != 0) {
    *reason = kLaneRefusedFlags;
    *text = absl::StrCat("the flags ", int{flags}, " of a ", kind == kLaneTask ? "task" : "range",
                         " have unknown bits. Fix: use those of the format");
    return nullptr;
  }
  if ((flags & kLaneDeadline) != 0 && found.words() > kDeadlineWord) {
    *reason = kLaneRefusedFlags;
    *text = "a call with 7 words has no room for a deadline. Fix: use at most 6 words";
    return nullptr;
  }
  if (forbidden_[call]) {
    *reason = kLaneRefusedPermission;
    *text = absl::StrCat("the policy does not allow ", found.operator_name(),
                         " any more. Fix: ask the daemon's administrator");
    return nullptr;
  }
  return &found;
}

Lane::Step Lane::Handle(const Copy& copy, Taking& taking) {
  const uint8_t kind = lane_head_kind(copy.head);
  // The submissions of a batch follow each other: what ends at once, or is a batch of its own,
  // waits for the next one.
  const bool cancelled =
      copy.sequence < cancel_below_.load(std::memory_order_relaxed) && kind != kLaneSignal;
  if (taking.batch != nullptr && (cancelled || kind != kLaneTask || taking.batch->whole)) {
    return Step::kStop;
  }
  if (cancelled) {
    DropFill();
    EndUnread(copy.sequence, kLaneCancelled, 0);
    host_.counters.cancelled.fetch_add(1, std::memory_order_relaxed);
    return Step::kEnded;
  }
  switch (kind) {
    case kLaneTask:
      return HandleTask(copy, taking);
    case kLaneRange:
      return HandleRange(copy, taking);
    case kLaneAwait:
      return HandleAwait(copy);
    case kLaneSignal:
      return HandleSignal(copy);
    default:
      Refuse(copy, kLaneRefusedKind,
             absl::StrCat("the kind ", int{kind},
                          " of a submission is not served. Fix: use the kinds of the format, or a "
                          "newer daemon"));
      return Step::kEnded;
  }
}

Lane::Step Lane::HandleTask(const Copy& copy, Taking& taking) {
  std::shared_ptr<LaneBatch>& batch = taking.batch;
  const uint8_t flags = lane_head_flags(copy.head);
  const uint16_t number = lane_head_call(copy.head);
  uint16_t reason = 0;
  std::string text;
  CheckedTask task;
  if (MustWait(copy)) return Step::kStop;
  const PreparedCall* const call = CheckHead(copy, &reason, &text);
  if (call != nullptr) {
    // Each submission counts for the shares of a trial.
    if (batch != nullptr && (batch->call != number || targets_[number].on_trial))
      return Step::kStop;
    if (const Refusal refusal = call->Check(copy.words, bindings_->buffers, &task)) {
      reason = refusal.reason;
      if (batch == nullptr) text = call->Explain(refusal, copy.words, bindings_->buffers);
    }
  }
  const CallTarget* target = nullptr;
  if (reason == 0) {
    target = FindTarget(number);
    if (target == nullptr) return Step::kStop;
    if (target->refused != 0) {
      reason = target->refused;
      text = target->reason;
    }
  }
  if (reason != 0) {
    if (batch != nullptr) return Step::kStop;
    Refuse(copy, reason, text);
    return Step::kEnded;
  }
  const Clock::time_point deadline = (flags & kLaneDeadline) != 0
                                         ? ReadDeadline(copy.words[kDeadlineWord])
                                         : Clock::time_point::max();
  if (batch != nullptr && (batch->version != target->version || batch->deadline != deadline)) {
    return Step::kStop;
  }
  if (batch == nullptr) {
    if (ManyWait(copy) && !BeginJoined(*call, *target, taking)) {
      block_.store(Block::kEarlier);
      return Step::kStop;
    }
    batch = NewBatch(copy, *target, deadline);
  }
  if (!taking.joined.has_value()) {
    AppendTask(*call, *target, task, *batch);
  } else if (!taking.joined->Add(task)) {
    return Step::kStop;
  }
  batch->quiet.push_back((flags & kLaneQuiet) != 0);
  next_.store(copy.sequence + 1, std::memory_order_relaxed);
  return Step::kTaken;
}

void Lane::AppendTask(const PreparedCall& call, const CallTarget& target, const CheckedTask& task,
                      LaneBatch& batch) {
  TaskDescriptor& descriptor = batch.tasks.emplace_back(target.task);
  if (call.DeviceOutputs(task) && target.version->trusted) descriptor.flags |= kTaskDeviceOutputs;
  if (!target.compact) return call.AppendArguments(task, &batch.arguments);
  descriptor.set_elements(task.elements);
  for (uint32_t a = 0; a < call.arguments(); ++a) {
    descriptor.set_compact_argument(a, task.values[a]);
  }
}

const CallTarget* Lane::FindTarget(uint16_t call) {
  CallTarget& target = targets_[call];
  if (target.changes == host_.registry.changes() && !target.on_trial) return &target;
  const EngineSession& session = *bindings_->session;
  std::optional<CallTarget> found = bindings_->calls[call]->Resolve(
      host_.registry, {options_.device, session.info(), options_.task_time_limit});
  if (!found.has_value()) return nullptr;
  if (target.version != found->version) dropped_ = std::move(target.version);
  target = *std::move(found);
  return &target;
}

std::shared_ptr<LaneBatch> Lane::NewBatch(const Copy& copy, const CallTarget& target,
                                          Clock::time_point deadline) {
  std::shared_ptr<LaneBatch> batch;
  {
    absl::MutexLock lock(&end_mu_);
    // The queue, or pending_, may still refer to one that has just ended.
    if (!free_.empty() && free_.back().use_count() == 1) {
      batch = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (batch == nullptr) {
    batch = std::make_shared<LaneBatch>();
    batch->done = [](Batch& ended) {
      auto& own = static_cast<LaneBatch&>(ended);
      const std::shared_ptr<Lane> lane = std::move(own.lane);
      lane->Finish(own);
    };
  }
  // Not in Finish, because pending_ may still refer to it then.
  batch->tasks.clear();
  batch->arguments.clear();
  batch->quiet.clear();
  batch->status.clear();
  batch->detail.clear();
  batch->device_ns.clear();
  batch->cause.clear();
  batch->range.reset();
  batch->whole = false;
  batch->cancelled = false;
  batch->submitted = batch->finished = batch->failed = batch->skipped = batch->range_ran = 0;
  batch->range_ns = 0;
  batch->task_cancelled = [](const Batch& queued, uint32_t index) {
    const auto& of_lane = static_cast<const LaneBatch&>(queued);
    const uint64_t submission = of_lane.first + (of_lane.whole ? 0 : index);
    return submission < of_lane.lane->cancel_below_.load(std::memory_order_relaxed);
  };
  batch->lane = shared_from_this();
  batch->bindings = bindings_;
  batch->version = target.version;
  batch->dropped = std::move(dropped_);
  batch->first = copy.sequence;
  batch->call = lane_head_call(copy.head);
  batch->deadline = deadline;
  batch->epoch = epoch_.load(std::memory_order_relaxed);
  batch->stats = target.stats;
  batch->arguments_per_task =
      target.compact ? 0 : static_cast<uint32_t>(bindings_->calls[batch->call]->arguments());
  return batch;
}

void Lane::Refuse(const Copy& copy, uint16_t reason, const std::string& text) {
  // Before the completion: a client that has read it finds the text.
  StoreRelaxed(&daemon_->refused, uint64_t{UINT64_MAX});
  std::atomic_thread_fence(std::memory_order_release);
  const size_t bytes = std::min<size_t>(text.size(), kLaneRefusalBytes - 1);
  for (size_t i = 0; i < bytes; ++i) StoreRelaxed(&daemon_->refusal[i], text[i]);
  StoreRelaxed(&daemon_->refusal[bytes], '\0');
  StoreRelease(&daemon_->refused, copy.sequence);
  EndUnread(copy.sequence, kLaneRefused, reason);
  refused_.fetch_add(1, std::memory_order_relaxed);
  host_.counters.refused.fetch_add(1, std::memory_order_relaxed);
  const Clock::time_point now = Clock::now();
  if (now - second_ > std::chrono::seconds(1)) {
    second_ = now;
    refused_in_second_ = 0;
    faults_in_second_ = 0;
  }
  if (++refused_in_second_ > options_.max_refusals && !closed_.exchange(true)) {
    host_.refuse(*this, errors::TooManyLaneRefusals(options_.max_refusals, text));
  }
}

void Lane::EndUnread(uint64_t sequence, uint8_t status, uint16_t detail) {
  next_.store(sequence + 1, std::memory_order_relaxed);
  if (status == kLaneUnavailable) {
    host_.counters.failed.fetch_add(1, std::memory_order_relaxed);
  }
  if (status == kLaneOk) host_.counters.ok.fetch_add(1, std::memory_order_relaxed);
  absl::MutexLock lock(&end_mu_);
  if (status != kLaneOk) NoteFailed(sequence, 1);
  WriteCompletion(sequence, status, 0, detail, 0, 0);
  Advance(sequence, 1);
}

void Lane::WriteCompletion(uint64_t sequence, uint8_t status, uint8_t flags, uint16_t detail,
                           uint32_t device_ns, uint32_t version) const {
  lane_completion* const to = completions_ + (sequence & (options_.slots - 1));
  StoreRelaxed(&to->tail, lane_completion_tail(device_ns, version));
  StoreRelease(&to->head, lane_completion_head(sequence, status, flags, detail));
}

void Lane::Advance(uint64_t first, uint32_t count) {
  const uint64_t mask = options_.slots - 1;
  uint64_t completed = completed_.load(std::memory_order_relaxed);
  if (first != completed) {
    for (uint64_t s = first; s != first + count; ++s) ended_[s & mask] = true;
    return;
  }
  Settle(completed + count);
}

uint64_t Lane::WriteEnds(const LaneBatch& batch, uint32_t version) {
  const uint32_t count = batch.count();
  // Of a range only the sum of the times is known, and the failures if there are any.
  const bool joined = batch.range != nullptr;
  const uint64_t average = joined && batch.range_ran > 0 ? batch.range_ns / batch.range_ran : 0;
  const uint8_t joined_flag = joined ? kLaneJoined : 0;
  uint64_t cancelled = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const TaskStatus status = batch.status.empty() ? TaskStatus::kOk : batch.status[i];
    if (status != TaskStatus::kOk) {
      NoteFailed(batch.first + i, 1);
    } else if (batch.quiet[i]) {
      continue;
    }
    cancelled += status == TaskStatus::kCancelled;
    const bool ran = i < count - batch.skipped;
    const bool unsure = ran && MayHaveRunInPart(status);
    const uint64_t ns = joined ? (ran ? average : 0) : batch.device_ns[i];
    WriteCompletion(batch.first + i, static_cast<uint8_t>(status),
                    static_cast<uint8_t>(joined_flag | (unsure ? kLaneMayHaveRun : 0)),
                    batch.detail.empty() ? uint16_t{0} : batch.detail[i],
                    static_cast<uint32_t>(std::min<uint64_t>(ns, UINT32_MAX)), version);
  }
  return cancelled;
}

void Lane::Finish(LaneBatch& batch) {
  const uint32_t count = batch.count();
  const uint32_t version = batch.version == nullptr ? 0 : batch.version->version;
  const bool own_ticket = batch.whole && batch.ticket.staging() != nullptr;
  if (!own_ticket) running_tasks_.fetch_sub(count, std::memory_order_release);
  uint64_t cancelled = 0;
  uint64_t failed = batch.failed;
  {
    absl::MutexLock lock(&end_mu_);
    if (batch.whole) {
      const uint8_t status = WriteRangeEnd(batch, version);
      failed = status != kLaneOk;
      cancelled = status == kLaneCancelled;
    } else {
      cancelled = WriteEnds(batch, version);
    }
    Advance(batch.first, batch.submissions());
  }
  host_.counters.ok.fetch_add(batch.submissions() - failed, std::memory_order_relaxed);
  if (failed != 0) {
    host_.counters.failed.fetch_add(failed - cancelled, std::memory_order_relaxed);
    host_.counters.cancelled.fetch_add(cancelled, std::memory_order_relaxed);
  }
  batch.memory.reset();
  batch.ticket.Release();
  batch.bindings.reset();
  batch.version.reset();
  batch.dropped.reset();
  batch.use.reset();
  batch.entry.Clear();  // Last, because a drain waits for it.
  {
    absl::MutexLock lock(&end_mu_);
    if (free_.size() < kMaxFree) free_.push_back(batch.shared_from_this());
  }
  Notify();
  if (asleep_.load() && Ready()) host_.note_work(*this);
}

}  // namespace resident
