// The resident kernel: it is launched once and runs tasks from the ring until it is parked.
//
//              host memory                        device memory
//   front end ───────────▶ block 0's control warp ──────────────▶ the other blocks'
//              submission  (the poller)            device ring    control warps
//              ring           │ a lone task
//                             ▼
//                          block 0's own compute warps
//
// Every block has compute warps (eight, unless set otherwise), which run operators, and a
// control warp, which finds the next task. Only one warp reads tasks from host memory, because
// idle readers delay each other there (docs/gpu_facts.md). The poller passes a lone task to its own
// block, through shared memory; if a second task is ready behind it, tasks go through the device
// ring.
//
// The device ring: a worker takes a ticket, then waits for the slot with this number, so
// that claiming a task costs no time when the task arrives. Slots have stamps like those
// of the host's ring. A worker takes its next ticket only when it is free, because the
// owner of a ticket must start the task.
//
// A wide task uses a device-ring slot for each block that works on it. If there are as many chunks,
// each slot has the number of one; otherwise these blocks claim chunks from a counter. Either way
// chunks start in the order of their numbers; the last block to finish completes the task. The
// chunks share a TaskMemory. A range does the same, without one: its blocks claim several tasks at
// a time, and the control warp fills in the arguments of one after the other.
//
// Memory ordering. A task's inputs, written before its submission, are visible to its
// operator: the poller reads the stamps with acquiring loads, or executes a fence after
// it has read them, before it passes the task on; a worker executes a fence after it has
// read its slot; barriers extend this order to the compute warps. A task's outputs are visible to
// every thread that has read its completion: the compute warps wait at a barrier, then one thread
// executes a fence and stores the completion.
//
// A lone task whose outputs are all in device memory (kTaskDeviceOutputs) is completed
// before that fence: only later tasks can read its outputs, and the poller, which is in
// the same block, passes no task on until the fence is complete. This reduces the round
// trip by 1.1 us (docs/benchmarks). A worker's fence for such a task has the scope of the device.
//
// Graphs are executed by another kernel beside this one, which is there while they are in use:
// graph_kernel.cu. The poller mails it their quanta. If it is not there, or only the form of it
// that is for other graphs, the poller leaves in front of a quantum, as for a park, and reports to
// the engine which kernels it must launch.
//
// Park: after all tasks, the poller sends every worker a slot with a flag to leave. Each
// block finishes its current task. `filled` and `next_ticket` are then equal, and the
// next launch continues from there.
#include "kernels/resident/block_shared.cuh"
#include "kernels/resident/device_ring.cuh"
#include "kernels/resident/launch_parameters.h"
#include "kernels/resident/mailboxes.cuh"
#include "kernels/resident/memory_access.cuh"
#include "kernels/resident/task_stop.cuh"
#include "kernels/sdk/operator.h"

namespace resident {
namespace {

// The addresses and scalars of a range's claim: for each argument one for each task.
__shared__ u64 claim_values[kMaxRangeArguments][kMaxRangeClaim];
static_assert(kMaxRangeClaim <= kWarp, "each lane has a task of the claim");

// Submission slots that the poller reads while it waits for a lone task. With 1 a lone
// task takes 7.6 us, with 2 4.1, with 4 3.3, with 8 3.4 (docs/benchmarks).
constexpr u32 kLookSlots = 4;
// How long the poller waits for a lone task before it polls for the next one, at most, and how
// long the host needs to respond to a completion (2.0 and 0.4 us at 1.98 GHz). A lone task takes
// 2.9 to 3.4 us with 600 to 1,300 cycles for the latter; with fewer, or without waiting, 4.2 us or
// 3.1, depending on when the polls happen, and on some hosts 4.0 us with 600, too
// (docs/benchmarks).
constexpr long long kLoneTaskCycles = 4000;
constexpr long long kAnswerCycles = 750;
// The same for a host that answers through a lane (kTaskSlowAnswer): 1.0 us. With 1,900 cycles for
// all lone tasks, one through a lane took 3.53 us in place of 4.25, and one of the host's own
// thread 3.53 in place of 2.95.
constexpr long long kSlowAnswerCycles = 1900;
// While the graph kernel is there, the poller looks after so many polls, or lone tasks, whether
// there has been no quantum for kGraphsIdleNs.
constexpr u32 kPollsToLook = 1u << 16;
// While a lone task runs, it looks after so many polls, about 50 us, whether the task has to stop.
constexpr u32 kPollsToWatch = 64;
constexpr long long kWatchCycles = 100'000;
// Chunks of a wide task that a block runs before it looks whether the task has run too long.
constexpr u32 kChunksToLook = 32;
// A worker that runs a range notes its current task for the host at least this often (1 ms), but
// not within a task.
constexpr long long kNoteCycles = 2'000'000;
// The part of each input that a range's tasks find in the L2 cache.
constexpr u64 kLineBytes = 128;
constexpr u64 kPrefetchedBytes = 4 * kLineBytes;
// Submission slots that it reads at once if there are several tasks: a read takes the latency of
// PCIe, whatever its size.
constexpr u32 kBulkSlots = 64;
constexpr u32 kChunksPerLane = kBulkSlots * kChunksPerSlot / kWarp;

static_assert(Block::kMaxThreads == kMaxComputeThreads, "");

// Whether a slot is a task in compact form, and not a marker, a range or a graph. The other two
// flags do not change which block runs the task.
__device__ __forceinline__ bool IsCompactTask(u32 flags) {
  return (flags & ~(kTaskDeviceOutputs | kTaskSlowAnswer)) == kTaskCompact;
}

// Number of chunks of the arguments of the block's task. REQUIRES: no operator was called since it
// was taken.
__device__ __forceinline__ u32 ArgumentChunks() {
  const u64 count = own.state.descriptor.argument_count();
  return static_cast<u32>(min(count, u64{kMaxArguments}) * sizeof(Argument) / sizeof(StampedChunk));
}

// The same for a range: each argument has a column in addition.
__device__ __forceinline__ u32 RangeArgumentChunks(u32 arguments) {
  return arguments * ((sizeof(Argument) + sizeof(RangeColumn)) / sizeof(StampedChunk));
}

// (warp) Copies the first `chunks` chunks of an argument block. All loads are issued before
// the first store.
template <typename Load, typename Store>
__device__ __forceinline__ void CopyArguments(u32 chunks, Load load, Store store) {
  StampedChunk loaded[kArgumentBlockBytes / sizeof(StampedChunk) / kWarp];
#pragma unroll
  for (u32 k = 0; k < sizeof(loaded) / sizeof(loaded[0]); ++k) {
    if (k * kWarp + LaneId() < chunks) loaded[k] = load(k * kWarp + LaneId());
  }
#pragma unroll
  for (u32 k = 0; k < sizeof(loaded) / sizeof(loaded[0]); ++k) {
    if (k * kWarp + LaneId() < chunks) store(k * kWarp + LaneId(), loaded[k]);
  }
  __syncwarp();
}

// (warp) Fetches `chunks` chunks of the arguments of the block's task from host memory.
__device__ __forceinline__ void FetchArguments(const LaunchParameters& p, u32 chunks) {
  const auto* from =
      reinterpret_cast<const StampedChunk*>(p.argument_blocks + (own.handover.token & p.slot_mask));
  auto* to = reinterpret_cast<StampedChunk*>(&own.state.arguments);
  CopyArguments(
      chunks, [&](u32 i) { return LoadChunkSystem(from + i); },
      [&](u32 i, const StampedChunk& chunk) { to[i] = chunk; });
}

// ---------------------------------------------------------------- compute warps ----

// (warp 0 of block 0) Completes the block's task; see "Memory ordering" above.
__device__ __forceinline__ void FinishLoneTask(const LaunchParameters& p, bool watched) {
  const bool device_outputs = own.handover.flags & kTaskDeviceOutputs;
  if (!device_outputs) FenceSystem();
  if (threadIdx.x == 0) own.handover.state = kFencing;
  FenceBlock();  // The poller sees kFencing before the host can see the completion.
  StoreCompletion(p, own.handover.token, ReadOutcome(watched), own.handover.start_ns);
  if (device_outputs) FenceDevice();
  __syncwarp();
  if (threadIdx.x == 0) own.handover.state = kIdle;
}

__device__ void RunOperators(const LaunchParameters& p, bool is_poller) {
  while (true) {
    BarrierSync<kHandOverBarrier>(own.handover.block_threads);
    if (own.handover.leave) return;
    const bool watched = RunBlockOperator();
    if (threadIdx.x < kWarp) {
      if (is_poller) {
        FinishLoneTask(p, watched);
      } else if (!own.handover.wide) {
        FenceOutputs(own.handover.flags & kTaskDeviceOutputs);
        StoreCompletion(p, own.handover.token, ReadOutcome(watched), own.handover.start_ns);
        __syncwarp();  // All lanes have read the state, so it may be overwritten.
      }
    }
    if (is_poller) continue;
    if (!watched) {
      BarrierArrive<kFinishedBarrier>(own.handover.block_threads);
    } else if (threadIdx.x == 0) {
      // The barrier behind the operator ordered what all threads wrote before this.
      ArriveAtPhase(SharedAddress(&own.handover.finished));
    }
  }
}

// ------------------------------------------------------- control warp of a worker ----

// (warp) Waits until the compute warps have executed what was handed over to them; if the task is
// watched, stops it if it has to. `since_ns`: see AwaitWatched.
template <bool kWatched>
__device__ __forceinline__ void AwaitFinished(const LaunchParameters& p, u64 since_ns = 0) {
  if (!kWatched) return BarrierSync<kFinishedBarrier>();
  const u32 executed = own.handover.executed;
  AwaitWatched(p, SharedAddress(&own.handover.finished), executed & 1, since_ns);
  if (LaneId() == 0) own.handover.executed = executed + 1;
  __syncwarp();
}

// (warp) Fetches the arguments of a wide task: one block, the leader, reads them from host
// memory and stores a copy in device memory for the others. If each block read them from host
// memory, the reads would delay each other: 260 blocks took 200 us (docs/benchmarks, "wide add").
__device__ __forceinline__ void ShareArguments(const LaunchParameters& p, WideProgress* wide,
                                               bool leader, u32 chunks) {
  const u32 token = own.handover.token;
  auto* shared = reinterpret_cast<StampedChunk*>(&own.state.arguments);
  auto* device = reinterpret_cast<StampedChunk*>(p.wide_arguments + (token & p.slot_mask));
  if (leader) {
    FetchArguments(p, chunks);
    for (u32 i = LaneId(); i < chunks; i += kWarp) StoreChunkDevice(device + i, shared[i]);
    __syncwarp();
    FenceDevice();
    if (LaneId() == 0) StoreDevice(&wide->arguments_ready, 1);
    return;
  }
  while (LoadDevice(&wide->arguments_ready) == 0) {
  }
  (void)AcquireDevice(&wide->arguments_ready);
  CopyArguments(
      chunks, [&](u32 i) { return LoadChunkDevice(device + i); },
      [&](u32 i, const StampedChunk& chunk) { shared[i] = chunk; });
}

// (warp) Runs chunks of the block's wide task until none is left; completes it if this
// block is the last to finish.
template <bool kWatched>
__device__ __noinline__ void RunWideTask(const LaunchParameters& p) {
  const TaskDescriptor& task = own.state.descriptor;
  const u32 token = task.token;
  const u32 chunks = static_cast<u32>(task.chunks());
  const u32 max_blocks = static_cast<u32>(task.max_blocks());
  const u32 blocks = min(min(chunks, max_blocks), gridDim.x - 1);
  const bool device_outputs = task.flags & kTaskDeviceOutputs;
  WideProgress* wide = p.wide + (token & p.slot_mask);
  TaskMemory* const task_memory = p.task_memories + (token & p.slot_mask);
  // With a block for each chunk, it is the number of the block's copy of the slot.
  const bool numbered = blocks == chunks;
  u32 chunk = NumberOfCopy(task);
  const auto claim = [&] {
    if (LaneId() == 0) chunk = atomicAdd(&wide->next_chunk, 1);
    chunk = __shfl_sync(kAllLanes, chunk, 0);
  };
  if (!numbered) claim();
  if (chunk == 0 && LaneId() == 0) wide->start_ns = NanosecondClock();
  if (chunk < chunks) ShareArguments(p, wide, /*leader=*/chunk == 0, ArgumentChunks());
  u32 outcome = 0;
  const u64 since_ns = NanosecondClock();
  u32 ran = 0;
  while (chunk < chunks) {
    if (LaneId() == 0) {
      own.state.chunk = chunk;
      own.state.chunk_count = chunks;
      own.state.scratch = own.handover.scratch;
      own.state.task_memory = task_memory;
      own.handover.wide = 1;
    }
    __syncwarp();
    BarrierSync<kHandOverBarrier>();
    const u64 word = LoadStopWord(p, token);
    // The next chunk is claimed while this one runs. One of the last is not, because a block that
    // has not begun yet may start it earlier. If this one waits for chunks with lower numbers,
    // these do not wait behind it: what is claimed behind a chunk has a higher number.
    const bool ahead = chunk + 2 * blocks < chunks;
    if (ahead) claim();
    AwaitFinished<kWatched>(p, since_ns);
    if (outcome == 0) outcome = ReadOutcome(kWatched);
    if (numbered) break;
    StopReason stop = kWatched ? ReadStop() : StopReason::kNone;
    if (stop == StopReason::kNone) stop = StopOf(word, token);
    if (stop == StopReason::kNone && ++ran % kChunksToLook == 0) stop = LookForStop(p, since_ns);
    if (stop != StopReason::kNone) {
      // What was claimed before is executed, because chunks with higher numbers may wait for it.
      if (LaneId() == 0) atomicMax(&wide->next_chunk, chunks);
      if (kWatched) StopOperator(stop);
      outcome = PackStopped(stop);
    }
    if (!ahead) claim();
  }
  if (kWatched) ClearStop();
  if (LaneId() == 0 && outcome != 0) atomicCAS(&wide->status_and_detail, 0, outcome);
  if (!IsLastToFinish(wide, blocks)) return;
  const u32 status_and_detail = *reinterpret_cast<volatile u32*>(&wide->status_and_detail);
  const u64 start_ns = *reinterpret_cast<volatile u64*>(&wide->start_ns);
  __syncwarp();
  if (LaneId() == 0) {
    *wide = WideProgress{};
    // The last chunk to arrive has set it to 0, unless one failed before it arrived.
    task_memory->arrived = 0;
  }
  FenceOutputs(device_outputs);
  StoreCompletion(p, token, status_and_detail, start_ns);
}

// Blocks that work on a range.
__device__ __forceinline__ u32 BlocksOfRange(u32 count, u32 claim, u32 max_blocks) {
  return min(min((count + claim - 1) / claim, max_blocks), gridDim.x - 1);
}

// (warp) The addresses and scalars of tasks [first, first + count) of a range go to
// claim_values.
__device__ __forceinline__ void ComputeClaimValues(const RangeDescriptor& range, u32 first,
                                                   u32 count) {
  const RangeColumn* const columns = ColumnsOf(&own.state.arguments, range.arguments);
  const u64 task = u64{first} + LaneId();
  if (LaneId() < count) {
#pragma unroll 1
    for (u32 a = 0; a < range.arguments; ++a) {
      const u64 values = columns[a].values;
      const u64 value = values != 0 ? LoadSystem(reinterpret_cast<const u64*>(values) + task)
                                    : columns[a].base + task * columns[a].stride;
      claim_values[a][LaneId()] = value;
      if (range.inputs >> a & 1) {
        const u64 bytes = min(range.elements * sizeof(float), u64{kPrefetchedBytes});
#pragma unroll 1
        for (u64 at = 0; at < bytes; at += kLineBytes) PrefetchLine(value + at);
      }
    }
  }
  __syncwarp();
}

// (one lane) The outcome of a task of a range that is not run.
__device__ __forceinline__ void WriteStopped(const RangeDescriptor& range, u32 task,
                                             StopReason reason) {
  StoreSystem(reinterpret_cast<RangeOutcome*>(range.outcomes) + task, {PackStopped(reason), 0});
}

// (warp) Runs tasks of the block's range until none is left; completes the range if this block is
// the last to finish. It is a function of its own because the compiler otherwise stores values that
// the loop needs to memory: ranges are then 4 % slower.
template <bool kWatched>
__device__ __noinline__ void RunRange(const LaunchParameters& p) {
  const StateReset reset;
  const RangeDescriptor range = reinterpret_cast<const RangeDescriptor&>(own.state.descriptor);
  __syncwarp();  // All lanes have read it.
  const u32 lane = LaneId();
  const bool compact = range.flags & kTaskCompact;
  const bool times = range.options & kRangeTimes;
  const u32 claims = (range.count + range.claim - 1) / range.claim;
  const u32 blocks = BlocksOfRange(range.count, range.claim, range.max_blocks);
  WideProgress* const wide = p.wide + (range.token & p.slot_mask);
  // What all tasks have in common.
  TaskDescriptor& task = own.state.descriptor;
  if (lane == 0) {
    task.flags = compact ? kTaskCompact : 0;
    task.words[0] = compact ? range.elements : range.arguments;
    for (u32 w = 1; w < kTaskWords; ++w) task.words[w] = 0;
    own.handover.wide = 1;
  }
  u32 claim = 0;
  const auto take = [&] {
    if (lane == 0) claim = atomicAdd(&wide->next_chunk, 1);
    claim = __shfl_sync(kAllLanes, claim, 0);
  };
  take();
  if (claim == 0 && lane == 0) wide->start_ns = NanosecondClock();
  if (claim < claims) {
    ShareArguments(p, wide, /*leader=*/claim == 0, RangeArgumentChunks(range.arguments));
  }
  u32 failed = 0;
  // Why the tasks that have not begun do not run.
  StopReason stop = StopReason::kNone;
  while (claim < claims) {
    const u32 begin = claim * range.claim;
    const u32 count = min(range.claim, range.count - begin);
    const u32 first = range.first + begin;
    const u64 word = LoadStopWord(p, range.token);
    if (stop == StopReason::kNone) {
      ComputeClaimValues(range, first, count);
      stop = StopOf(word, range.token);
    }
    if (stop != StopReason::kNone) {
      if (lane < count) WriteStopped(range, first + lane, stop);
      failed += count;
      take();
      continue;
    }
    long long noted = 0;
    for (u32 t = 0; t < count; ++t) {
      // The host must see how long a task runs, and not how long the claim does.
      if (t == 0 || clock64() - noted > kNoteCycles) {
        if (lane == 0) WriteBreadcrumb(range.token, range.operator_slot, first + t);
        noted = clock64();
      }
      if (lane < range.arguments) {
        u64& to = compact ? task.words[1 + lane] : own.state.arguments.arguments[lane].scalar_bits;
        to = claim_values[lane][t];
      }
      reset();
      const u64 start_ns = times ? NanosecondClock() : 0;
      __syncwarp();
      BarrierSync<kHandOverBarrier>();
      // The next claim is taken while the last task of this one runs.
      if (t + 1 == count) take();
      AwaitFinished<kWatched>(p);
      const u32 status_and_detail = ReadOutcome(kWatched);
      failed += status_and_detail != 0;
      if (lane == 0 && (times || status_and_detail != 0)) {
        const u64 elapsed = times ? NanosecondClock() - start_ns : 0;
        StoreSystem(
            reinterpret_cast<RangeOutcome*>(range.outcomes) + first + t,
            {status_and_detail, static_cast<u32>(elapsed < 0xffffffffu ? elapsed : 0xffffffffu)});
      }
      __syncwarp();  // All lanes have read the status.
      if (!kWatched) continue;
      const StopReason own_stop = ReadStop();
      __syncwarp();  // All lanes have read it.
      ClearStop();
      // The time limit is that of a task, so that the tasks behind it run.
      if (own_stop != StopReason::kDeadline && own_stop != StopReason::kCancelled) continue;
      stop = own_stop;
      if (t + 1 + lane < count) WriteStopped(range, first + t + 1 + lane, stop);
      failed += count - t - 1;
      if (t + 1 != count) take();
      break;
    }
  }
  if (lane == 0 && failed != 0) atomicAdd(&wide->failed, failed);
  const bool last = IsLastToFinish(wide, blocks);
  // After the fence, so that a store that faults is still that of a task. Other blocks may need
  // longer for their tasks of the range.
  if (lane == 0) WriteBreadcrumb(kNoToken, 0);
  if (!last) return;
  failed = *reinterpret_cast<volatile u32*>(&wide->failed);
  const u64 start_ns = *reinterpret_cast<volatile u64*>(&wide->start_ns);
  reset();
  __syncwarp();
  if (lane == 0) {
    *reinterpret_cast<u32*>(own.state.result) = failed;
    *wide = WideProgress{};
  }
  FenceSystem();
  __syncwarp();
  StoreCompletion(p, range.token, 0, start_ns);
  __syncwarp();  // All lanes have read the result.
}

// (warp) Waits for a block task that is watched.
__device__ __noinline__ void EndWatched(const LaunchParameters& p) {
  AwaitFinished</*kWatched=*/true>(p);
  ClearStop();
}

__device__ void ServeDeviceRing(const LaunchParameters& p) {
  const u32 lane = LaneId();
  const StateReset reset;
  while (true) {
    u64 ticket = 0;
    if (lane == 0) ticket = atomicAdd(&p.state->next_ticket, 1ULL);
    ticket = __shfl_sync(kAllLanes, ticket, 0);
    const StampedChunk* slot = p.device_ring[ticket & (kDeviceRingSlots - 1)].chunks;
    StampedChunk chunk;
    do {
      chunk = LoadChunkDevice(slot + lane % kChunksPerSlot);
    } while (!__all_sync(kAllLanes, chunk.stamp == Stamp(ticket)));
    if (lane == 0) AddDevice(&p.state->taken[ticket / kQuarterSlots % kDeviceRingQuarters], 1);
    FenceDevice();
    reset();
    TakeDescriptor(chunk);
    const TaskDescriptor& task = own.state.descriptor;
    if (task.flags & kLeave) break;
    const bool watched = IsWatched(task.operator_slot);
    if (task.flags & kTaskRange) {
      if (watched) {
        RunRange</*kWatched=*/true>(p);
      } else {
        RunRange</*kWatched=*/false>(p);
      }
      continue;
    }
    if (lane == 0) WriteBreadcrumb(task.token, task.operator_slot);
    if (!(task.flags & kTaskCompact)) {
      if (task.chunks() > kMaxTaskChunks) {
        __syncwarp();  // Other lanes have cleared the outcome.
        StoreCompletion(p, task.token, static_cast<u32>(CompletionStatus::kInvalidArgument),
                        NanosecondClock());
        __syncwarp();
        continue;
      }
      if (task.chunks() > 1) {
        if (watched) {
          RunWideTask</*kWatched=*/true>(p);
        } else {
          RunWideTask</*kWatched=*/false>(p);
        }
        continue;
      }
      FetchArguments(p, ArgumentChunks());
    }
    if (lane == 0) {
      own.handover.wide = 0;
      own.handover.start_ns = NanosecondClock();
    }
    __syncwarp();
    BarrierSync<kHandOverBarrier>();
    if (watched) {
      EndWatched(p);
    } else {
      AwaitFinished</*kWatched=*/false>(p);
    }
  }
  if (lane == 0) own.handover.leave = 1;
  __syncwarp();
  BarrierSync<kHandOverBarrier>();
}

// ---------------------------------------------------- control warp of block 0: poller ----

// (warp) Returns the chunks of slot `index` of a bulk read: lane l gets chunk l % 4.
__device__ __forceinline__ StampedChunk Pick(const StampedChunk (&bulk)[kChunksPerLane],
                                             u32 index) {
  // Chunk c of slot i was read by lane (4 i + c) % 32 as its (4 i + c) / 32-th.
  const u32 from = (index * kChunksPerSlot + LaneId() % kChunksPerSlot) % kWarp;
  const u32 k = index * kChunksPerSlot / kWarp;
  StampedChunk mine = bulk[0];
#pragma unroll
  for (u32 i = 1; i < kChunksPerLane; ++i) {
    if (i == k) mine = bulk[i];
  }
  StampedChunk chunk;
  for (int w = 0; w < 3; ++w) chunk.payload[w] = __shfl_sync(kAllLanes, mine.payload[w], from);
  chunk.stamp = 0;
  return chunk;
}

class Poller {
 public:
  __device__ explicit Poller(const LaunchParameters& p)
      : p_(p), ring_(p), next_(p.first_sequence) {}

  __device__ void Run() {
    while (leave_ == LeaveReason::kNone) {
      const Found found = Look();
      Watch();
      if (found == Found::kLoneTask) {
        AwaitAnswer();
        if (++lone_tasks_ % kPollsToLook != 0) continue;
      } else if (found == Found::kOther) {
        ForwardBulk();
      }
      // Not behind a park marker that was found meanwhile, which would then be lost.
      if (leave_ == LeaveReason::kNone && p_.graph_workers != 0 && MailIdleNs() > kGraphsIdleNs) {
        LeaveFor(LaunchKind::kTasks);
      }
    }
    if (p_.graph_workers != 0) MailLeave(p_);
    // After all tasks: each worker leaves when it reaches this slot.
    StampedChunk leave{};
    if (LaneId() % kChunksPerSlot == 0) leave.payload[1] = kLeave << 16;
    ring_.WriteCopies(leave, gridDim.x - 1);
    // No slot is read meanwhile, so that stops come from the words of the host.
    for (u32 looks = 1; !ring_.AllTaken() || own.handover.state != kIdle; ++looks) {
      if (looks % kLooksToCopy == 0) CopyStopWords(p_);
    }
    const u64 mail_idle_ns = MailIdleNs();
    if (LaneId() == 0) {
      p_.state->filled = ring_.filled();
      p_.control->resume_sequence = next_;
      p_.report->mail_idle_ns = mail_idle_ns;
      p_.report->kind = kind_;
      p_.report->reason = leave_;
      own.handover.leave = 1;
      FenceSystem();
    }
    __syncwarp();
    BarrierSync<kHandOverBarrier>();
  }

 private:
  __device__ const StampedChunk* SlotOf(u64 sequence) const {
    return p_.submissions[sequence & p_.slot_mask].chunks;
  }

  // A task that was read may depend on the last lone task, so its fence must be complete: see
  // "Memory ordering".
  __device__ __forceinline__ void AwaitFence() const {
    while (own.handover.state == kFencing) {
    }
  }

  // Looks now and then whether the lone task has to stop, if it is long.
  __device__ __forceinline__ void Watch() {
    if (!watches_ || own.handover.state != kRunning) return;
    const long long now = clock64();
    if (now - watched_ < kWatchCycles) return;
    watched_ = now;
    WatchLoneTask(p_);
  }

  // Waits until the lone task has ended and the host can have responded to its completion, so that
  // the first poll finds the next task of a client that responds at once. A task that just misses a
  // poll has to wait for the whole PCIe latency of the next one.
  __device__ __forceinline__ void AwaitAnswer() const {
    const long long begin = clock64();
    while (own.handover.state == kRunning && clock64() - begin < kLoneTaskCycles) {
    }
    const bool slow = own.handover.flags & kTaskSlowAnswer;
    const long long answer_cycles = slow ? kSlowAnswerCycles : kAnswerCycles;
    const long long end = clock64();
    while (clock64() - end < answer_cycles) {
    }
  }

  enum class Found { kNothing, kLoneTask, kOther };

  // Polls the next slots, at most kPollsToLook times. If only one task is ready, passes it to this
  // block's compute warps. kOther: several are ready, or this block cannot run it.
  __device__ __forceinline__ Found Look() {
    constexpr u32 kLookLanes = kLookSlots * kChunksPerSlot;
    const u32 lane = LaneId() % kLookLanes;
    const StampedChunk* from = SlotOf(next_ + lane / kChunksPerSlot) + lane % kChunksPerSlot;
    const u32 stamp = Stamp(next_ + lane / kChunksPerSlot);
    StampedChunk chunk;
    u32 ready;
    u32 polls = 0;
    const u32 max_polls = watches_ ? kPollsToWatch : kPollsToLook;
    do {
      chunk = AcquireChunkSystem(from);
      ready = __ballot_sync(kAllLanes, chunk.stamp == stamp);
    } while ((ready & 0xf) != 0xf && ++polls < max_polls);
    if ((ready & 0xf) != 0xf) return Found::kNothing;
    const u32 word1 = __shfl_sync(kAllLanes, chunk.payload[1], 0);
    const u32 flags = FlagsOf(word1);
    if ((ready >> 4 & 0xf) == 0xf || !IsCompactTask(flags)) return Found::kOther;
    AwaitFence();
    if (own.handover.state != kIdle) return Found::kOther;
    if (watches_) ClearStop();
    TakeDescriptor(chunk);
    reset_();
    if (LaneId() == 0) {
      own.handover.wide = 0;
      own.handover.state = kRunning;
      own.handover.start_ns = NanosecondClock();
    }
    // For an operator that may fault, the breadcrumb is written first, because the host needs it
    // after a fault. Otherwise it is written later, so that it does not delay the round trip.
    const bool may_fault = !(flags & kTaskDeviceOutputs);
    if (may_fault && LaneId() == 0) WriteBreadcrumb(static_cast<u32>(next_), OperatorSlotOf(word1));
    __syncwarp();
    BarrierSync<kHandOverBarrier>();
    if (!may_fault && LaneId() == 0)
      WriteBreadcrumb(static_cast<u32>(next_), OperatorSlotOf(word1));
    watches_ = IsWatched(OperatorSlotOf(word1));
    ++next_;
    return Found::kLoneTask;
  }

  __device__ __forceinline__ void LeaveFor(LaunchKind kind) {
    leave_ = LeaveReason::kOtherKind;
    kind_ = kind;
  }

  // (warp) Since the last quantum, or since the launch.
  __device__ __forceinline__ u64 MailIdleNs() const {
    return __shfl_sync(kAllLanes, NanosecondClock() - last_mail_ns, 0);
  }

  // Reads kBulkSlots slots at a time and passes ready tasks on, until a read finds none.
  __device__ void ForwardBulk() {
    StampedChunk bulk[kChunksPerLane];
    while (leave_ == LeaveReason::kNone) {
      ring_.AwaitRoom(kBulkSlots);
      Read(next_, bulk);
      const u32 count = CountReady(next_, bulk);
      if (count == 0) return;
      AwaitFence();
      FenceSystem();
      next_ += HandOn(bulk, count);
      Watch();
    }
  }

  __device__ __forceinline__ void Read(u64 sequence, StampedChunk (&bulk)[kChunksPerLane]) const {
#pragma unroll
    for (u32 k = 0; k < kChunksPerLane; ++k) {
      const u32 c = k * kWarp + LaneId();
      bulk[k] = LoadChunkSystem(SlotOf(sequence + c / kChunksPerSlot) + c % kChunksPerSlot);
    }
  }

  // Returns the number of ready slots, counted from the first without a gap.
  __device__ __forceinline__ u32 CountReady(u64 sequence,
                                            const StampedChunk (&bulk)[kChunksPerLane]) const {
    u32 count = 0;
    bool unbroken = true;
#pragma unroll
    for (u32 k = 0; k < kChunksPerLane; ++k) {
      const u32 c = k * kWarp + LaneId();
      const u32 ready =
          __ballot_sync(kAllLanes, bulk[k].stamp == Stamp(sequence + c / kChunksPerSlot));
      // Number of whole slots before the first chunk that is not ready.
      const u32 slots = (ready == kAllLanes ? kWarp : __ffs(~ready) - 1) / kChunksPerSlot;
      if (unbroken) count += slots;
      unbroken &= ready == kAllLanes;
    }
    return count;
  }

  // Passes on the first `count` slots, up to a park marker, or to a quantum that is for another
  // graph kernel than the one that is there; returns their number. The quantum is not among them:
  // it is the next launch's first slot.
  __device__ __forceinline__ u32 HandOn(const StampedChunk (&bulk)[kChunksPerLane], u32 count) {
    // Whether a slot among them may need special treatment (a marker, a wide task). The flags
    // are in a slot's first chunk.
    bool special = false;
#pragma unroll
    for (u32 k = 0; k < kChunksPerLane; ++k) {
      const u32 c = k * kWarp + LaneId();
      const u32 flags = FlagsOf(bulk[k].payload[1]);
      if (c / kChunksPerSlot < count && c % kChunksPerSlot == 0) {
        special |= !IsCompactTask(flags);
      }
    }
    if (!__any_sync(kAllLanes, special)) {
      constexpr u32 kSlotsPerRow = kWarp / kChunksPerSlot;
#pragma unroll
      for (u32 k = 0; k < kChunksPerLane; ++k) {
        if (k * kSlotsPerRow < count)
          ring_.Write(bulk[k], min(kSlotsPerRow, count - k * kSlotsPerRow));
      }
      return count;
    }
    for (u32 i = 0; i < count; ++i) {
      const StampedChunk chunk = Pick(bulk, i);
      const u32 flags = FlagsOf(__shfl_sync(kAllLanes, chunk.payload[1], 0));
      if (flags & kTaskSkip) continue;
      if (flags & kTaskStop) {
        // words[0] starts at payload word 2, words[1] at 4.
        const u32 token = __shfl_sync(kAllLanes, chunk.payload[2], 0);
        const u32 reason = __shfl_sync(kAllLanes, chunk.payload[1], 1);
        TakeStop(p_, token, static_cast<StopReason>(reason));
        continue;
      }
      if (flags & kTaskPark) {
        leave_ = LeaveReason::kPark;
        return i + 1;
      }
      if (flags & kTaskGraph) {
        const LaunchKind kind = KindFor(p_, chunk);
        if (kind != p_.kind) {
          LeaveFor(kind);
          return i;
        }
        MailQuantum(p_, chunk);
        continue;
      }
      u32 copies = 1;
      bool numbered = false;
      if (flags & kTaskRange) {
        // A RangeDescriptor's count, claim and max_blocks are payload words 5 to 7.
        const u32 tasks = __shfl_sync(kAllLanes, chunk.payload[2], 1);
        const u32 claim = __shfl_sync(kAllLanes, chunk.payload[0], 2);
        copies = BlocksOfRange(tasks, claim, __shfl_sync(kAllLanes, chunk.payload[1], 2));
      } else if (!(flags & kTaskCompact)) {
        // words[1] starts at payload word 4, words[2] at 6.
        const u32 chunks = __shfl_sync(kAllLanes, chunk.payload[1], 1);
        const u32 chunks_high = __shfl_sync(kAllLanes, chunk.payload[2], 1);
        const u32 max_blocks = __shfl_sync(kAllLanes, chunk.payload[0], 2);
        // The worker that gets a task with too many chunks refuses it.
        if (chunks > 1 && chunks <= kMaxTaskChunks && chunks_high == 0) {
          copies = min(min(chunks, max_blocks), gridDim.x - 1);
          numbered = copies == chunks;
        }
      }
      if (numbered) {
        ring_.WriteCopies</*kNumbered=*/true>(chunk, copies);
      } else {
        ring_.WriteCopies(chunk, copies);
      }
    }
    return count;
  }

  const LaunchParameters& p_;
  DeviceRingWriter ring_;
  u64 next_;
  LeaveReason leave_ = LeaveReason::kNone;
  LaunchKind kind_ = LaunchKind::kTasks;
  // Lone tasks so far: see kPollsToLook.
  u32 lone_tasks_ = 0;
  const StateReset reset_;
  // Whether the last lone task can be stopped while it runs, and when Watch last looked.
  bool watches_ = false;
  long long watched_ = 0;
};

}  // namespace

}  // namespace resident

// The second bound limits the kernel to resident::kMaxRegisters, because -maxrregcount has no
// effect on a kernel with launch bounds.
extern "C" __global__ void __launch_bounds__(resident::kMaxComputeThreads +
                                                 resident::kControlThreads,
                                             resident::kLargestBlocksPerSm)
    resident_kernel(const __grid_constant__ resident::LaunchParameters parameters) {
  using namespace resident;
  if (threadIdx.x == 0 && blockIdx.x == 0) InitializeMail();
  InitializeBlock(parameters, blockIdx.x);
  if (threadIdx.x < blockDim.x - kControlThreads) {
    RunOperators(parameters, blockIdx.x == 0);
  } else if (blockIdx.x == 0) {
    Poller(parameters).Run();
  } else {
    ServeDeviceRing(parameters);
  }
}
