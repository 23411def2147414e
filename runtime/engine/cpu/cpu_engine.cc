#include "runtime/engine/cpu/cpu_engine.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/futex.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/time_source.h"
#include "runtime/engine/cpu/cpu_registration.h"
#include "runtime/engine/cpu/fault_handler.h"
#include "runtime/ring/doorbell.h"
#include "runtime/ring/slot_codec.h"
#include "runtime/ring/switch_signals.h"

namespace resident {
namespace {

// Limit of the default; --cpu_workers may be higher.
constexpr uint32_t kMaxDefaultWorkers = 16;
constexpr uint64_t kDefaultMemoryBytes = uint64_t{1} << 30;
// How long a worker polls for work before it sleeps. A longer time wastes processor time; a shorter
// one causes wake-ups within a burst.
constexpr auto kSpin = std::chrono::microseconds(20);
constexpr int kLooksBetweenClockReads = 64;
// How often a waiting change of generation checks whether it was withdrawn.
constexpr auto kSwitchLook = std::chrono::milliseconds(2);

}  // namespace

CpuEngine::~CpuEngine() {
  leaving_ = true;
  if (region_ != nullptr) WakeSleepers();
  for (auto& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
  if (memory_ != nullptr) munmap(memory_, memory_bytes_ + workers_.size() * kScratchBytes);
  absl::MutexLock lock(&mapped_mu_);
  for (const auto& [address, bytes] : mapped_) munmap(reinterpret_cast<void*>(address), bytes);
}

absl::StatusOr<std::vector<EnginePhase>> CpuEngine::Prepare(const SharedRegion& region) {
  region_ = &region;
  mask_ = region.layout().slots - 1;
  return std::vector<EnginePhase>();
}

absl::StatusOr<EngineInfo> CpuEngine::Start(const EngineOptions& options) {
  options_ = options;
  const SharedRegion& region = *region_;
  PhaseTimer timer;
  uint32_t count = options_.cpu_workers;
  if (count == 0) count = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxDefaultWorkers);
  if (count > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--cpu_workers=", count, " is above the limit of ", kMaxWorkers, ". Fix: ask for fewer"));
  }
  if (options_.max_blocks != 0) count = std::min(count, options_.max_blocks);
  const Generation builtin;
  ASSIGN_OR_RETURN(
      auto generation,
      CpuGeneration::Load(options_.generation != nullptr ? *options_.generation : builtin,
                          options_.test_operators, options_.task_time_limit, nullptr));
  generation_ = std::move(generation);
  timer.Mark("load the generation");
  memory_bytes_ = options_.memory_bytes != 0 ? options_.memory_bytes : kDefaultMemoryBytes;
  // The system allocates pages when they are first accessed.
  void* memory = mmap(nullptr, memory_bytes_ + count * kScratchBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve ", memory_bytes_,
                                                     " bytes for buffers: ", std::strerror(errno),
                                                     ". Fix: lower --device_memory_mib"));
  }
  memory_ = static_cast<uint8_t*>(memory);
  for (uint32_t w = 0; w < count; ++w) wide_.push_back(std::make_unique<Wide>());
  graphs_.SetWorkers(count);
  workers_.resize(count);
  ControlBlock* const control = region.control();
  control->worker_count = count;
  next_ = control->resume_sequence;
  InstallFaultHandler(region);
  stopper_.Start(region, count);
  stopper_.SetMinTimeLimit(generation_->min_time_limit());
  if (!options_.start_parked) Launch();
  timer.Mark("start");

  EngineInfo info;
  info.phases = timer.phases();
  info.traits = CpuTraits();
  info.name = "cpu";
  info.detail = absl::StrCat(count, " worker threads");
  info.layout_hash = LayoutHash();
  info.generation = generation_->number();
  info.region_address = reinterpret_cast<uint64_t>(region.base());
  info.memory_address = reinterpret_cast<uint64_t>(memory_);
  info.memory_bytes = memory_bytes_;
  info.workers = count;
  info.threads_per_block = 1;
  return info;
}

void CpuEngine::Launch() {
  leaving_ = false;
  resident_ = true;
  running_ = static_cast<uint32_t>(workers_.size());
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    workers_[w] = std::thread([this, w] { Work(w); });
  }
}

bool CpuEngine::AwaitWorkers(std::chrono::nanoseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  // The workers exit when they reach the marker; the last one wakes this thread.
  for (uint32_t left = running_.load(); left != 0; left = running_.load()) {
    const auto rest = until - std::chrono::steady_clock::now();
    if (rest <= std::chrono::nanoseconds(0)) return false;
    FutexWait(reinterpret_cast<uint32_t*>(&running_), left, rest);
  }
  return true;
}

void CpuEngine::Join() {
  for (auto& worker : workers_) {
    if (worker.joinable()) worker.join();
    worker = std::thread();
  }
  resident_ = false;
  region_->control()->resume_sequence = next_.load();
}

absl::Status CpuEngine::AwaitPark(std::chrono::nanoseconds timeout) {
  if (!AwaitWorkers(timeout)) {
    return absl::DeadlineExceededError(absl::StrCat(running_.load(), " of ", workers_.size(),
                                                    " workers have not reached the park marker"));
  }
  Join();
  return absl::OkStatus();
}

absl::Status CpuEngine::Resume() {
  if (resident_) return absl::FailedPreconditionError("the engine is not parked");
  Launch();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<OperatorResources>> CpuEngine::Preload(
    std::shared_ptr<const Generation> generation) {
  std::shared_ptr<const CpuGeneration> replaced;  // Closed after the lock is released.
  ASSIGN_OR_RETURN(auto loaded, CpuGeneration::Load(*generation, options_.test_operators,
                                                    options_.task_time_limit, generation_.get()));
  absl::MutexLock lock(&preloaded_mu_);
  replaced = std::exchange(preloaded_, std::move(loaded));
  return std::vector<OperatorResources>();
}

absl::StatusOr<SwitchTimes> CpuEngine::Switch(uint64_t change, bool launch,
                                              std::chrono::nanoseconds timeout) {
  using Clock = std::chrono::steady_clock;
  std::shared_ptr<const CpuGeneration> next;
  {
    absl::MutexLock lock(&preloaded_mu_);
    next = preloaded_;
  }
  if (next == nullptr) return absl::FailedPreconditionError("no generation is preloaded");
  SwitchSignals signals(region_->control());
  const auto called = Clock::now();
  auto held = called;
  const bool resident = resident_;
  if (resident) {
    signals.Arm(change);
    while (!AwaitWorkers(kSwitchLook)) {
      if (!signals.held(change)) held = Clock::now();
      if (signals.withdrawn(change)) return absl::CancelledError("the change was withdrawn");
      if (Clock::now() - called >= timeout) {
        return absl::DeadlineExceededError(absl::StrCat(
            "generation ", next->number(), ": the workers were not parked within ",
            std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count(), " ms"));
      }
    }
    Join();
  }
  SwitchTimes times;
  const auto parked = Clock::now();
  times.park = parked - held;
  {
    absl::MutexLock lock(&preloaded_mu_);
    if (preloaded_ == next) preloaded_ = nullptr;
  }
  const std::shared_ptr<const CpuGeneration> former = std::exchange(generation_, next);
  stopper_.SetMinTimeLimit(generation_->min_time_limit());
  const auto loaded = Clock::now();
  times.load = loaded - parked;
  if (resident || launch) Launch();
  times.launch = Clock::now() - loaded;
  signals.End(change, next->number());
  return times;  // The previous generation's objects are closed here, after the pause.
}

absl::StatusOr<uint64_t> CpuEngine::MapShared(int fd, uint64_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot map ", bytes, " bytes of the shared object: ", std::strerror(errno)));
  }
  absl::MutexLock lock(&mapped_mu_);
  mapped_.emplace_back(reinterpret_cast<uint64_t>(address), bytes);
  mappings_.fetch_add(1, std::memory_order_release);
  return reinterpret_cast<uint64_t>(address);
}

absl::StatusOr<uint64_t> CpuEngine::MapSharedDevice(const std::string&, uint64_t) {
  return absl::UnimplementedError(
      "the CPU engine has no access to the memory of a GPU. Fix: share system memory");
}

absl::StatusOr<uint64_t> CpuEngine::MapDeviceDescriptor(int, uint64_t) {
  return MapSharedDevice("", 0);
}

absl::Status CpuEngine::UnmapShared(uint64_t address) {
  absl::MutexLock lock(&mapped_mu_);
  for (auto it = mapped_.begin(); it != mapped_.end(); ++it) {
    if (it->first != address) continue;
    munmap(reinterpret_cast<void*>(it->first), it->second);
    mapped_.erase(it);
    return absl::OkStatus();
  }
  return absl::NotFoundError("no shared object is mapped there");
}

void CpuEngine::Work(uint32_t worker) {
  pthread_setname_np(pthread_self(), absl::StrCat("worker-", worker).c_str());
  auto state = std::make_unique<BlockState>();
  auto looked_since = std::chrono::steady_clock::now();
  int looks = 0;
  uint64_t graph_turn_ns = 0;
  // Graphs that were opened before a park marker are finished.
  while (!leaving_.load(std::memory_order_acquire) || graphs_.any_open()) {
    if (RunSomething(worker, *state, graph_turn_ns)) {
      looks = 0;
      continue;
    }
    if (looks == 0) looked_since = std::chrono::steady_clock::now();
    if (++looks % kLooksBetweenClockReads != 0) {
      __builtin_ia32_pause();
    } else if (std::chrono::steady_clock::now() - looked_since < kSpin) {
      std::this_thread::yield();
    } else {
      SleepUntilDoorbell();
      looks = 0;
    }
  }
  if (running_.fetch_sub(1) == 1) FutexWake(reinterpret_cast<uint32_t*>(&running_));
}

bool CpuEngine::RunSomething(uint32_t worker, BlockState& state, uint64_t& graph_turn_ns) {
  // While there is work of both kinds, workers divide their time between the ring and graphs.
  constexpr uint64_t kTurnNs = GraphTable::kTurn.count();
  const auto work_on_graph = [&] {
    if (!graphs_.Work(worker, state)) return false;
    graph_turn_ns = SteadyNs();
    return true;
  };
  if (graphs_.any_open() && SteadyNs() - graph_turn_ns >= kTurnNs && work_on_graph()) return true;
  const bool leaving = leaving_.load(std::memory_order_acquire);
  if ((!leaving && RunNextTask(worker, state)) || HelpWithWideTask(worker, state)) {
    graphs_.NoteOtherWork(worker);
    return true;
  }
  return work_on_graph();
}

bool CpuEngine::RingHasTask() const {
  const uint64_t sequence = next_.load(std::memory_order_acquire);
  return IsReady(region_->submissions()[sequence & mask_], sequence);
}

bool CpuEngine::RunNextTask(uint32_t worker, BlockState& state) {
  uint64_t sequence = next_.load(std::memory_order_acquire);
  RingSlot& slot = region_->submissions()[sequence & mask_];
  if (!IsReady(slot, sequence)) return false;
  // Read the slot before taking the task: after it is taken, the completion of a later task tells
  // the host that this slot was read, and the host may overwrite it even if this worker is delayed.
  // If another worker took the task, the data may be inconsistent and is not used.
  ReadSlotShared(slot, &state.descriptor);
  if (!next_.compare_exchange_strong(sequence, sequence + 1, std::memory_order_acq_rel))
    return true;
  // A stop has its word in memory, too, which is looked at.
  if (state.descriptor.flags & (kTaskSkip | kTaskStop)) return true;
  if (state.descriptor.flags & kTaskPark) {
    leaving_.store(true, std::memory_order_release);
    WakeSleepers();
    return true;
  }
  if (state.descriptor.flags & kTaskGraph) {
    graphs_.Open(sequence, std::bit_cast<GraphDescriptor>(state.descriptor));
    return true;
  }
  LoadArguments(sequence, state.descriptor, state);
  if (state.descriptor.flags & kTaskRange) {
    const auto range = std::bit_cast<RangeDescriptor>(state.descriptor);
    RunWide(worker, sequence, (range.count + range.claim - 1) / range.claim, state);
    return true;
  }
  WriteBreadcrumb(worker, state.descriptor.token, state.descriptor.operator_slot);
  const bool compact = state.descriptor.flags & kTaskCompact;
  const uint64_t chunks = compact ? 1 : state.descriptor.chunks();
  if (chunks > 1 && chunks <= kMaxTaskChunks) {
    RunWide(worker, sequence, chunks, state);
    return true;
  }
  const uint64_t start_ns = SteadyNs();
  state.chunk = 0;
  state.chunk_count = 1;
  std::memset(state.result, 0, kResultBytes);
  auto outcome = static_cast<uint32_t>(CompletionStatus::kInvalidArgument);
  if (chunks <= kMaxTaskChunks) {
    outcome = Call(worker, static_cast<uint32_t>(sequence), state);
  }
  WriteCompletion(sequence, start_ns, outcome, state.result);
  return true;
}

void CpuEngine::LoadArguments(uint64_t sequence, const TaskDescriptor& task,
                              BlockState& state) const {
  uint64_t bytes = 0;
  if (task.flags & kTaskRange) {
    bytes = std::min<uint64_t>(std::bit_cast<RangeDescriptor>(task).arguments, kMaxRangeArguments) *
            (sizeof(Argument) + sizeof(RangeColumn));
  } else if (!(task.flags & kTaskCompact)) {
    bytes = std::min<uint64_t>(task.argument_count(), kMaxArguments) * sizeof(Argument);
  }
  std::memcpy(&state.arguments, region_->argument_blocks() + (sequence & mask_), bytes);
}

void CpuEngine::RunWide(uint32_t worker, uint64_t sequence, uint64_t chunks, BlockState& state) {
  const uint64_t start_ns = SteadyNs();
  std::memset(state.result, 0, kResultBytes);
  Wide& wide = *wide_[worker];
  wide.task = state.descriptor;
  wide.sequence = sequence;
  wide.start_ns = start_ns;
  wide.chunks = chunks;
  wide.next_chunk = 0;
  wide.status_and_detail = 0;
  wide.failed = 0;
  wide.memory.arrived = 0;
  wide.open.store(true, std::memory_order_seq_cst);
  WakeSleepers();
  RunChunks(wide, worker, state);
  wide.open.store(false, std::memory_order_seq_cst);
  while (wide.helpers.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  if (wide.task.flags & kTaskRange) {
    const uint32_t failed = wide.failed.load();
    std::memset(state.result, 0, kResultBytes);
    std::memcpy(state.result, &failed, sizeof(failed));
  }
  WriteCompletion(sequence, start_ns, wide.status_and_detail.load(), state.result);
}

bool CpuEngine::HelpWithWideTask(uint32_t worker, BlockState& state) {
  for (uint32_t owner = 0; owner < wide_.size(); ++owner) {
    Wide& wide = *wide_[owner];
    if (owner == worker || !wide.open.load(std::memory_order_relaxed)) continue;
    wide.helpers.fetch_add(1, std::memory_order_seq_cst);
    // The owner clears `open` before it reads `helpers`: if it is set here, the owner will wait.
    const bool open = wide.open.load(std::memory_order_seq_cst);
    const bool any = open && wide.next_chunk.load(std::memory_order_relaxed) < wide.chunks;
    if (any) {
      if (!(wide.task.flags & kTaskRange)) {
        WriteBreadcrumb(worker, wide.task.token, wide.task.operator_slot);
      }
      state.descriptor = wide.task;
      LoadArguments(wide.sequence, wide.task, state);
      RunChunks(wide, worker, state);
    }
    wide.helpers.fetch_sub(1, std::memory_order_seq_cst);
    if (any) return true;
  }
  return false;
}

void CpuEngine::RunChunks(Wide& wide, uint32_t worker, BlockState& state) {
  const bool range = wide.task.flags & kTaskRange;
  // The chunks start in the order of their numbers.
  while (true) {
    const uint64_t chunk = wide.next_chunk.fetch_add(1, std::memory_order_acq_rel);
    if (chunk >= wide.chunks) break;
    if (range) {
      wide.failed += RunClaim(std::bit_cast<RangeDescriptor>(wide.task), chunk, worker, state);
      continue;
    }
    state.chunk = chunk;
    state.chunk_count = wide.chunks;
    uint32_t outcome = Call(worker, wide.task.token, state, &wide.memory);
    if (const StopReason stop = ReasonToStop(wide.task, wide.start_ns); stop != StopReason::kNone) {
      // What other workers have taken is executed, because chunks with higher numbers may wait for
      // it.
      wide.next_chunk.store(wide.chunks, std::memory_order_release);
      outcome = PackStopped(stop);
    }
    uint32_t none = 0;
    if (outcome != 0) wide.status_and_detail.compare_exchange_strong(none, outcome);
  }
  // Other workers may need longer for their tasks of the range.
  if (range) WriteBreadcrumb(worker, GraphTable::kNoToken, 0);
}

uint32_t CpuEngine::RunClaim(const RangeDescriptor& range, uint64_t claim, uint32_t worker,
                             BlockState& state) {
  const bool compact = range.flags & kTaskCompact;
  const bool times = range.options & kRangeTimes;
  TaskDescriptor& task = state.descriptor;
  task = TaskDescriptor{.token = range.token,
                        .operator_slot = range.operator_slot,
                        .flags = static_cast<u8>(compact ? kTaskCompact : 0),
                        .reserved = 0,
                        .words = {}};
  if (compact) {
    task.set_elements(range.elements);
  } else {
    task.set_argument_count(range.arguments);
  }
  state.chunk = 0;
  state.chunk_count = 1;
  const RangeColumn* const columns = ColumnsOf(&state.arguments, range.arguments);
  auto* const outcomes = reinterpret_cast<RangeOutcome*>(range.outcomes);
  const uint64_t begin = range.first + claim * range.claim;
  const uint64_t end = std::min<uint64_t>(begin + range.claim, uint64_t{range.first} + range.count);
  uint32_t failed = 0;
  for (uint64_t i = begin; i < end; ++i) {
    WriteBreadcrumb(worker, range.token, range.operator_slot, static_cast<uint32_t>(i));
    for (uint32_t a = 0; a < range.arguments; ++a) {
      const RangeColumn& column = columns[a];
      const u64 value = column.values != 0 ? reinterpret_cast<const u64*>(column.values)[i]
                                           : column.base + i * column.stride;
      if (compact) {
        task.set_compact_argument(a, value);
      } else {
        state.arguments.arguments[a].scalar_bits = value;
      }
    }
    const uint64_t start_ns = times ? SteadyNs() : 0;
    // Tasks behind one that exceeds its limit run.
    const StopReason stop = stopper_.Asked(range.token);
    const uint32_t outcome =
        stop == StopReason::kNone ? Call(worker, range.token, state) : PackStopped(stop);
    if (outcome != 0) ++failed;
    if (times || outcome != 0) {
      const uint64_t elapsed = times ? SteadyNs() - start_ns : 0;
      outcomes[i] = {outcome, static_cast<u32>(std::min<uint64_t>(elapsed, UINT32_MAX))};
    }
  }
  return failed;
}

uint32_t CpuEngine::Call(uint32_t worker, uint32_t token, BlockState& state, TaskMemory* memory) {
  const CpuGeneration::Slot& slot = generation_->slot(state.descriptor.operator_slot);
  if (slot.function == nullptr) return static_cast<uint32_t>(CompletionStatus::kNoOperator);
  state.scratch = memory_ + memory_bytes_ + uint64_t{worker} * kScratchBytes;
  state.task_memory = memory;
  state.status_and_detail = 0;
  (void)mappings_.load(std::memory_order_acquire);
  if (!slot.stoppable) {
    slot.function(&state);
    return state.status_and_detail;
  }
  const StopReason stop = stopper_.Call(worker, token, slot, &state);
  return stop == StopReason::kNone ? state.status_and_detail : PackStopped(stop);
}

StopReason CpuEngine::ReasonToStop(const TaskDescriptor& task, uint64_t start_ns) const {
  const StopReason asked = stopper_.Asked(task.token);
  if (asked != StopReason::kNone) return asked;
  const auto limit =
      static_cast<uint64_t>(generation_->slot(task.operator_slot).time_limit.count());
  return limit != 0 && SteadyNs() - start_ns > limit ? StopReason::kTimeLimit : StopReason::kNone;
}

void CpuEngine::WriteBreadcrumb(uint32_t worker, uint32_t token, uint32_t operator_slot,
                                uint32_t task) {
  Breadcrumb& breadcrumb = region_->breadcrumbs()[worker];
  std::atomic_ref<uint32_t>(breadcrumb.task).store(task, std::memory_order_relaxed);
  std::atomic_ref<uint32_t>(breadcrumb.operator_slot)
      .store(operator_slot, std::memory_order_relaxed);
  std::atomic_ref<uint32_t>(breadcrumb.stamp).store(Stamp(token), std::memory_order_release);
  NoteFaultContext(&breadcrumb);
}

void CpuEngine::CompleteGraph(uint64_t sequence, uint64_t start_ns, uint32_t status_and_detail) {
  constexpr u8 kNoResult[kResultBytes] = {};
  WriteCompletion(sequence, start_ns, status_and_detail, kNoResult);
}

void CpuEngine::WriteCompletion(uint64_t sequence, uint64_t start_ns, uint32_t status_and_detail,
                                const u8* result) {
  TaskCompletion completion{};
  completion.start_ns = start_ns;
  completion.duration_ns =
      static_cast<uint32_t>(std::min<uint64_t>(SteadyNs() - start_ns, UINT32_MAX));
  completion.status = static_cast<CompletionStatus>(status_and_detail & 0xffff);
  completion.detail = static_cast<uint16_t>(status_and_detail >> 16);
  std::memcpy(completion.result, result, kResultBytes);
  WriteSlot(region_->completions()[sequence & mask_], completion, sequence);
  Doorbell::ForCompletions(region_->control()).Ring();
}

void CpuEngine::SleepUntilDoorbell() {
  Doorbell bell = Doorbell::ForWorkers(region_->control());
  const uint32_t seen = bell.BeginWait();
  const uint64_t sequence = next_.load(std::memory_order_acquire);
  bool work = leaving_.load() || IsReady(region_->submissions()[sequence & mask_], sequence);
  for (const auto& wide : wide_) work |= wide->open.load(std::memory_order_seq_cst);
  work |= graphs_.HasReady();
  if (!work) bell.Wait(seen);
  bell.EndWait();
}

void CpuEngine::WakeSleepers() { Doorbell::ForWorkers(region_->control()).Ring(); }

absl::StatusOr<std::unique_ptr<Engine>> CreateCpuEngine(int) {
  return std::make_unique<CpuEngine>();
}

}  // namespace resident
