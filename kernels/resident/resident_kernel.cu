// The resident kernel: launched once, it runs tasks from the ring until it is parked.
//
//              host memory                        device memory
//   front end ───────────▶ block 0's control warp ──────────────▶ the other blocks'
//              submission  (the poller)            device ring    control warps
//              ring           │ a lone task
//                             ▼
//                          block 0's own compute warps
//
// Every block has compute warps (eight, unless set otherwise), which run operators, and a
// control warp, which finds the next task. Only one warp reads host memory for tasks: idle readers
// queue behind one another there (docs/gpu_facts.md). The poller gives a task that comes alone to
// its own block, through shared memory; as soon as a second one is ready behind it, tasks go
// through the device ring.
//
// The device ring: a worker takes a ticket, then waits for its own slot, so that
// claiming a task costs nothing once it is there. Slots carry stamps as the host's do.
// A worker takes its next ticket only when it is free: a ticket is a promise to start.
//
// A wide task takes a device-ring slot for each block that is to work on it. These
// claim chunks from a counter; the last to finish completes the task.
//
// Memory ordering. A task's inputs, written before its submission, are visible to its
// operator: the poller reads the stamps with acquiring loads, or fences after it has
// read them, before it hands the task on; a worker fences after it has read its slot;
// barriers carry it to the compute warps. A task's outputs are visible to whoever has read its
// completion: the compute warps meet at a barrier, then one thread fences and stores the
// completion.
//
// A lone task whose outputs are all in device memory (kTaskDeviceOutputs) is completed
// before that fence: its outputs can be read by later tasks only, and the poller, who
// shares the block, hands nothing on until the fence is through. Of the round trip
// this takes 1.1 us away (docs/benchmarks).
//
// Park: the poller sends every worker a slot that says leave, behind all tasks. Each
// block finishes what it is at. `filled` and `next_ticket` are then equal, and the
// next launch goes on from there.
#include "kernels/resident/kernel_parameters.h"
#include "kernels/resident/memory_access.cuh"
#include "kernels/sdk/operator.h"

namespace resident {

// The function in each operator slot; empty slots hold null. Defined by the jump table
// that this image was linked with.
extern __constant__ OperatorFunction kJumpTable[kMaxOperatorSlots];

namespace {

constexpr u32 kWarp = 32;
constexpr u32 kEverybody = 0xffffffffu;
// Submission slots that the poller looks at while it waits for a lone task. With 1 a
// lone task takes 7.6 us, with 2 4.1, with 4 3.3, with 8 3.4 (docs/benchmarks).
constexpr u32 kLookSlots = 4;
// How long it lets a lone task run before it looks for the next, at most, and how long the
// host takes to answer a completion (2.0 and 0.3 us at 1.98 GHz). A lone task takes 3.0 to
// 3.4 us with 450 to 1,300 cycles for the latter; with fewer, or without any waiting, 4.2 us
// or 3.1, as the looks happen to fall (docs/benchmarks).
constexpr long long kLoneTaskCycles = 4000;
constexpr long long kAnswerCycles = 600;
// Submission slots that it reads at once when there are more: the time of a read is
// that of its way over PCIe, whatever its size.
constexpr u32 kBulkSlots = 64;
constexpr u32 kChunksPerLane = kBulkSlots * kChunksPerSlot / kWarp;
constexpr u32 kQuarterSlots = kDeviceRingSlots / kDeviceRingQuarters;
// A device-ring slot with these flags tells its worker to leave.
constexpr u32 kLeave = kTaskPark;

static_assert(Block::kMaxThreads == kMaxComputeThreads, "");
static_assert((kDeviceRingSlots & (kDeviceRingSlots - 1)) == 0, "");

// What the compute warps of block 0 are at.
enum LoneState : u32 {
  kIdle = 0,
  kRunning = 1,
  // The task's completion is stored, or about to be; its fence is not through.
  kFencing = 2,
};

// What control and compute warps of a block tell each other.
struct Handover {
  u32 leave;
  u32 wide;            // The task's chunk is not all of it.
  volatile u32 state;  // Block 0: a LoneState.
  u32 reserved;
  u64 start_ns;
};

__shared__ BlockState block_state;
__shared__ Handover handover;

__device__ __forceinline__ u32 LaneId() { return threadIdx.x % kWarp; }

// Payload words of a descriptor: chunk c carries words 3c to 3c + 2. Word 0 is the
// token, word 1 holds operator slot (low half) and flags.
__device__ __forceinline__ u32 FlagsOf(u32 word1) { return word1 >> 16 & 0xff; }
__device__ __forceinline__ u32 OperatorSlotOf(u32 word1) { return word1 & 0xffff; }

// Lanes 0 to 3 hold the chunks of a slot: makes it the block's task.
__device__ __forceinline__ void TakeDescriptor(const StampedChunk& chunk) {
  if (LaneId() < kChunksPerSlot) {
    u32* to = reinterpret_cast<u32*>(&block_state.descriptor) + 3 * LaneId();
    to[0] = chunk.payload[0];
    to[1] = chunk.payload[1];
    to[2] = chunk.payload[2];
  }
  __syncwarp();
}

// (warp) What the operator may leave behind starts empty.
__device__ __forceinline__ void ClearOutcome() {
  if (LaneId() < kResultBytes / 4) reinterpret_cast<u32*>(block_state.result)[LaneId()] = 0;
  if (LaneId() == 0) {
    block_state.status_and_detail = 0;
    block_state.barrier_arrivals = 0;
  }
}

// Chunks of the block's arguments, as the operator's signature has them.
__device__ __forceinline__ u32 ArgumentChunks() {
  const u64 count = block_state.descriptor.argument_count();
  return static_cast<u32>(min(count, u64{kMaxArguments}) * sizeof(Argument) / sizeof(StampedChunk));
}

// (warp) Copies the first `chunks` chunks of an argument block, all loads before the
// first store.
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

// (warp) Fetches the arguments of the block's task from host memory.
__device__ __forceinline__ void FetchArguments(const KernelParameters& p) {
  const auto* from = reinterpret_cast<const StampedChunk*>(
      p.argument_blocks + (block_state.descriptor.token & p.slot_mask));
  auto* to = reinterpret_cast<StampedChunk*>(&block_state.arguments);
  CopyArguments(
      ArgumentChunks(), [&](u32 i) { return LoadChunkSystem(from + i); },
      [&](u32 i, const StampedChunk& chunk) { to[i] = chunk; });
}

// (lane 0) Tells the host what this block is at.
__device__ __forceinline__ void LeaveCrumb(const KernelParameters& p, u32 token,
                                           u32 operator_slot) {
  asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(p.breadcrumbs + blockIdx.x),
               "r"(Stamp(token)), "r"(operator_slot)
               : "memory");
}

// (warp, behind a barrier) Stores a completion; the fence is the caller's.
__device__ __forceinline__ void StoreCompletion(const KernelParameters& p, u32 token,
                                                u32 status_and_detail, u64 start_ns) {
  const u64 elapsed = NanosecondClock() - start_ns;
  const u32 lane = LaneId();
  if (lane >= kChunksPerSlot) return;
  const u32* result = reinterpret_cast<const u32*>(block_state.result);
  StampedChunk chunk;
  chunk.stamp = Stamp(token);
  // Words 0-1 start, 2 duration, 3 status and detail, 4-11 result.
  chunk.payload[0] = lane == 0   ? static_cast<u32>(start_ns)
                     : lane == 1 ? status_and_detail
                                 : result[3 * lane - 4];
  chunk.payload[1] = lane == 0 ? static_cast<u32>(start_ns >> 32) : result[3 * lane - 3];
  chunk.payload[2] = lane == 0 ? static_cast<u32>(elapsed < kEverybody ? elapsed : kEverybody)
                               : result[3 * lane - 2];
  StoreChunkSystem(p.completions[token & p.slot_mask].chunks + lane, chunk);
}

// ---------------------------------------------------------------- compute warps ----

// (warp 0 of block 0) Completes the block's task; see "Memory ordering" above.
__device__ __forceinline__ void FinishLoneTask(const KernelParameters& p) {
  const bool device_outputs = block_state.descriptor.flags & kTaskDeviceOutputs;
  if (!device_outputs) FenceSystem();
  if (threadIdx.x == 0) handover.state = kFencing;
  FenceBlock();  // The poller sees kFencing before the host can see the completion.
  StoreCompletion(p, block_state.descriptor.token, block_state.status_and_detail,
                  handover.start_ns);
  if (device_outputs) FenceDevice();
  __syncwarp();
  if (threadIdx.x == 0) handover.state = kIdle;
}

__device__ void RunOperators(const KernelParameters& p, bool is_poller) {
  Block block(&block_state);
  const Args args(&block_state);
  while (true) {
    BarrierSync<kHandOverBarrier>();
    if (handover.leave) return;
    const u32 slot = block_state.descriptor.operator_slot;
    const OperatorFunction function = slot < kMaxOperatorSlots ? kJumpTable[slot] : nullptr;
    if (function != nullptr) {
      function(block, args);
    } else {
      block.fail(CompletionStatus::kNoOperator);
    }
    block.barrier();
    if (threadIdx.x < kWarp) {
      if (is_poller) {
        FinishLoneTask(p);
      } else if (!handover.wide) {
        FenceSystem();
        StoreCompletion(p, block_state.descriptor.token, block_state.status_and_detail,
                        handover.start_ns);
        __syncwarp();  // The state is read: it may be filled in again.
      }
    }
    if (!is_poller) BarrierArrive<kFinishedBarrier>();
  }
}

// ------------------------------------------------------- control warp of a worker ----

// (warp) Gets the arguments of a wide task: one block, the leader, fetches them from host
// memory and leaves a copy in device memory for the others. If each fetched them, the
// reads would queue: 260 blocks took 200 us (docs/benchmarks, "wide add").
__device__ __forceinline__ void ShareArguments(const KernelParameters& p, WideProgress* wide,
                                               bool leader) {
  const u32 token = block_state.descriptor.token;
  auto* shared = reinterpret_cast<StampedChunk*>(&block_state.arguments);
  auto* device = reinterpret_cast<StampedChunk*>(p.wide_arguments + (token & p.slot_mask));
  if (leader) {
    FetchArguments(p);
    for (u32 i = LaneId(); i < ArgumentChunks(); i += kWarp)
      StoreChunkDevice(device + i, shared[i]);
    __syncwarp();
    FenceDevice();
    if (LaneId() == 0) StoreDevice(&wide->arguments_ready, 1);
    return;
  }
  while (LoadDevice(&wide->arguments_ready) == 0) {
  }
  FenceDevice();
  CopyArguments(
      ArgumentChunks(), [&](u32 i) { return LoadChunkDevice(device + i); },
      [&](u32 i, const StampedChunk& chunk) { shared[i] = chunk; });
}

// (warp) Runs chunks of the block's wide task until none is left; completes it if this
// block is the last to finish.
__device__ void RunWideTask(const KernelParameters& p) {
  const TaskDescriptor& task = block_state.descriptor;
  const u32 token = task.token;
  const u32 chunks = static_cast<u32>(task.chunks());
  const u32 most_blocks = static_cast<u32>(task.max_blocks());
  const u32 blocks = min(min(chunks, most_blocks), gridDim.x - 1);
  WideProgress* wide = p.wide + (token & p.slot_mask);
  u32 chunk = 0;
  if (LaneId() == 0) chunk = atomicAdd(&wide->next_chunk, 1);
  chunk = __shfl_sync(kEverybody, chunk, 0);
  if (chunk == 0 && LaneId() == 0) wide->start_ns = NanosecondClock();
  if (chunk < chunks) ShareArguments(p, wide, /*leader=*/chunk == 0);
  while (chunk < chunks) {
    if (LaneId() == 0) {
      block_state.chunk = chunk;
      block_state.chunk_count = chunks;
      handover.wide = 1;
    }
    __syncwarp();
    BarrierSync<kHandOverBarrier>();
    // The next chunk is claimed while this one is worked on.
    if (LaneId() == 0) chunk = atomicAdd(&wide->next_chunk, 1);
    chunk = __shfl_sync(kEverybody, chunk, 0);
    BarrierSync<kFinishedBarrier>();
  }
  u32 done = 0;
  if (LaneId() == 0) {
    if (block_state.status_and_detail != 0) {
      atomicCAS(&wide->status_and_detail, 0, block_state.status_and_detail);
    }
    FenceDevice();
    done = atomicAdd(&wide->blocks_done, 1) + 1;
    FenceDevice();
  }
  done = __shfl_sync(kEverybody, done, 0);
  if (done != blocks) return;
  const u32 status_and_detail = *reinterpret_cast<volatile u32*>(&wide->status_and_detail);
  const u64 start_ns = *reinterpret_cast<volatile u64*>(&wide->start_ns);
  __syncwarp();
  if (LaneId() == 0) *wide = WideProgress{};
  FenceSystem();
  StoreCompletion(p, token, status_and_detail, start_ns);
}

__device__ void ServeDeviceRing(const KernelParameters& p) {
  const u32 lane = LaneId();
  while (true) {
    u64 ticket = 0;
    if (lane == 0) ticket = atomicAdd(&p.state->next_ticket, 1ULL);
    ticket = __shfl_sync(kEverybody, ticket, 0);
    const StampedChunk* slot = p.device_ring[ticket & (kDeviceRingSlots - 1)].chunks;
    StampedChunk chunk;
    do {
      chunk = LoadChunkDevice(slot + lane % kChunksPerSlot);
    } while (!__all_sync(kEverybody, chunk.stamp == Stamp(ticket)));
    if (lane == 0) AddDevice(&p.state->taken[ticket / kQuarterSlots % kDeviceRingQuarters], 1);
    FenceDevice();
    TakeDescriptor(chunk);
    const TaskDescriptor& task = block_state.descriptor;
    if (task.flags & kLeave) break;
    if (lane == 0) LeaveCrumb(p, task.token, task.operator_slot);
    ClearOutcome();
    if (!(task.flags & kTaskCompact)) {
      if (task.chunks() > kMaxTaskChunks) {
        __syncwarp();  // The outcome was cleared by other lanes.
        StoreCompletion(p, task.token, static_cast<u32>(CompletionStatus::kInvalidArgument),
                        NanosecondClock());
        __syncwarp();
        continue;
      }
      if (task.chunks() > 1) {
        RunWideTask(p);
        continue;
      }
      FetchArguments(p);
    }
    if (lane == 0) {
      block_state.chunk = 0;
      block_state.chunk_count = 1;
      handover.wide = 0;
      handover.start_ns = NanosecondClock();
    }
    __syncwarp();
    BarrierSync<kHandOverBarrier>();
    BarrierSync<kFinishedBarrier>();
  }
  if (lane == 0) handover.leave = 1;
  __syncwarp();
  BarrierSync<kHandOverBarrier>();
}

// ---------------------------------------------------- control warp of block 0: poller ----

// (warp) Fills device-ring slots. Lane l passes chunk l % 4 of the (l / 4)-th of up to 8
// tasks; `count` tells how many there are.
class DeviceRingWriter {
 public:
  __device__ explicit DeviceRingWriter(const KernelParameters& p)
      : p_(p), filled_(p.state->filled) {}

  __device__ __forceinline__ void Write(StampedChunk chunk, u32 count) {
    const u64 last = filled_ + count - 1;
    if (filled_ % kQuarterSlots == 0) AwaitQuarter(filled_);
    if (last / kQuarterSlots != filled_ / kQuarterSlots) AwaitQuarter(last);
    const u64 index = filled_ + LaneId() / kChunksPerSlot;
    if (LaneId() < count * kChunksPerSlot) {
      chunk.stamp = Stamp(index);
      StoreChunkDevice(
          p_.device_ring[index & (kDeviceRingSlots - 1)].chunks + LaneId() % kChunksPerSlot, chunk);
    }
    filled_ += count;
  }

  // The same task in `count` slots. Lane l holds chunk l % 4.
  __device__ void WriteCopies(const StampedChunk& chunk, u32 count) {
    constexpr u32 kAtOnce = kWarp / kChunksPerSlot;
    for (u32 done = 0; done < count; done += kAtOnce) Write(chunk, min(kAtOnce, count - done));
  }

  __device__ u64 filled() const { return filled_; }

 private:
  // Waits until every slot of index's quarter was read in the lap before.
  __device__ void AwaitQuarter(u64 index) {
    const u64 lap = index / kDeviceRingSlots;
    const u64* taken = &p_.state->taken[index / kQuarterSlots % kDeviceRingQuarters];
    while (LoadDevice(taken) < lap * kQuarterSlots) {
    }
  }

  const KernelParameters& p_;
  u64 filled_;
};

// (warp) The chunk of slot `index` of a bulk read, lane l getting chunk l % 4.
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
  for (int w = 0; w < 3; ++w) chunk.payload[w] = __shfl_sync(kEverybody, mine.payload[w], from);
  chunk.stamp = 0;
  return chunk;
}

class Poller {
 public:
  __device__ explicit Poller(const KernelParameters& p)
      : p_(p), ring_(p), next_(p.first_sequence) {}

  __device__ void Run() {
    while (!leave_) {
      if (LookForLoneTask()) {
        AwaitAnswer();
      } else {
        ForwardBulk();
      }
    }
    // Behind every task: the workers leave as they get there.
    StampedChunk leave{};
    if (LaneId() % kChunksPerSlot == 0) leave.payload[1] = kLeave << 16;
    ring_.WriteCopies(leave, gridDim.x - 1);
    while (handover.state != kIdle) {
    }
    if (LaneId() == 0) {
      p_.state->filled = ring_.filled();
      p_.control->resume_sequence = next_;
      handover.leave = 1;
      FenceSystem();
    }
    __syncwarp();
    BarrierSync<kHandOverBarrier>();
  }

 private:
  __device__ const StampedChunk* SlotOf(u64 sequence) const {
    return p_.submissions[sequence & p_.slot_mask].chunks;
  }

  // What a task that was read may depend on is fenced: see "Memory ordering".
  __device__ __forceinline__ void AwaitFence() const {
    while (handover.state == kFencing) {
    }
  }

  // Lets the lone task that was given away end, and its answer reach the host, before it
  // looks again, so that a client who answers at once is seen by the first look. One that
  // just misses a look waits for all of the next one's way over PCIe.
  __device__ __forceinline__ void AwaitAnswer() const {
    const long long begin = clock64();
    while (handover.state == kRunning && clock64() - begin < kLoneTaskCycles) {
    }
    const long long end = clock64();
    while (clock64() - end < kAnswerCycles) {
    }
  }

  // Polls the next slots. Gives a task that is ready alone to this block's compute
  // warps and returns true; returns false when several are ready, or this one cannot
  // be taken here.
  __device__ __forceinline__ bool LookForLoneTask() {
    constexpr u32 kLookLanes = kLookSlots * kChunksPerSlot;
    const u32 lane = LaneId() % kLookLanes;
    const StampedChunk* from = SlotOf(next_ + lane / kChunksPerSlot) + lane % kChunksPerSlot;
    const u32 stamp = Stamp(next_ + lane / kChunksPerSlot);
    StampedChunk chunk;
    u32 ready;
    do {
      chunk = AcquireChunkSystem(from);
      ready = __ballot_sync(kEverybody, chunk.stamp == stamp);
    } while ((ready & 0xf) != 0xf);
    const u32 word1 = __shfl_sync(kEverybody, chunk.payload[1], 0);
    const u32 flags = FlagsOf(word1);
    if ((ready >> 4 & 0xf) == 0xf || (flags & ~kTaskDeviceOutputs) != kTaskCompact) return false;
    AwaitFence();
    if (handover.state != kIdle) return false;
    TakeDescriptor(chunk);
    ClearOutcome();
    if (LaneId() == 0) {
      block_state.chunk = 0;
      block_state.chunk_count = 1;
      handover.wide = 0;
      handover.state = kRunning;
      handover.start_ns = NanosecondClock();
    }
    // An operator that may fault leaves its crumb first: the host looks for it then. For
    // one that cannot, the crumb is off the way of the round trip.
    const bool may_fault = !(flags & kTaskDeviceOutputs);
    if (may_fault && LaneId() == 0) LeaveCrumb(p_, static_cast<u32>(next_), OperatorSlotOf(word1));
    __syncwarp();
    BarrierSync<kHandOverBarrier>();
    if (!may_fault && LaneId() == 0) LeaveCrumb(p_, static_cast<u32>(next_), OperatorSlotOf(word1));
    ++next_;
    return true;
  }

  // Reads kBulkSlots slots at a time and hands on what is ready, until a read finds
  // nothing.
  __device__ void ForwardBulk() {
    StampedChunk bulk[kChunksPerLane];
    while (!leave_) {
      Read(next_, bulk);
      const u32 count = CountReady(next_, bulk);
      if (count == 0) return;
      AwaitFence();
      FenceSystem();
      next_ += HandOn(bulk, count);
    }
  }

  __device__ __forceinline__ void Read(u64 sequence, StampedChunk (&bulk)[kChunksPerLane]) const {
#pragma unroll
    for (u32 k = 0; k < kChunksPerLane; ++k) {
      const u32 c = k * kWarp + LaneId();
      bulk[k] = LoadChunkSystem(SlotOf(sequence + c / kChunksPerSlot) + c % kChunksPerSlot);
    }
  }

  // How many slots from the first on are ready.
  __device__ __forceinline__ u32 CountReady(u64 sequence,
                                            const StampedChunk (&bulk)[kChunksPerLane]) const {
    u32 count = 0;
    bool unbroken = true;
#pragma unroll
    for (u32 k = 0; k < kChunksPerLane; ++k) {
      const u32 c = k * kWarp + LaneId();
      const u32 ready =
          __ballot_sync(kEverybody, bulk[k].stamp == Stamp(sequence + c / kChunksPerSlot));
      // Chunks ready from the first on, in whole slots.
      const u32 slots = (ready == kEverybody ? kWarp : __ffs(~ready) - 1) / kChunksPerSlot;
      if (unbroken) count += slots;
      unbroken &= ready == kEverybody;
    }
    return count;
  }

  // Hands on the first `count` slots, up to a park marker; returns how many that were.
  __device__ __forceinline__ u32 HandOn(const StampedChunk (&bulk)[kChunksPerLane], u32 count) {
    // Whether anything among them may need more than to be passed on (a marker, a wide
    // task). Flags stand in a slot's first chunk.
    bool special = false;
#pragma unroll
    for (u32 k = 0; k < kChunksPerLane; ++k) {
      const u32 c = k * kWarp + LaneId();
      const u32 flags = FlagsOf(bulk[k].payload[1]);
      if (c / kChunksPerSlot < count && c % kChunksPerSlot == 0) {
        special |= (flags & ~kTaskDeviceOutputs) != kTaskCompact;
      }
    }
    if (!__any_sync(kEverybody, special)) {
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
      const u32 flags = FlagsOf(__shfl_sync(kEverybody, chunk.payload[1], 0));
      if (flags & kTaskSkip) continue;
      if (flags & kTaskPark) {
        leave_ = true;
        return i + 1;
      }
      u32 copies = 1;
      if (!(flags & kTaskCompact)) {
        // words[1] starts at payload word 4, words[2] at 6.
        const u32 chunks = __shfl_sync(kEverybody, chunk.payload[1], 1);
        const u32 chunks_high = __shfl_sync(kEverybody, chunk.payload[2], 1);
        const u32 most_blocks = __shfl_sync(kEverybody, chunk.payload[0], 2);
        // One with too many chunks is refused by the worker that gets it.
        if (chunks > 1 && chunks <= kMaxTaskChunks && chunks_high == 0) {
          copies = min(min(chunks, most_blocks), gridDim.x - 1);
        }
      }
      ring_.WriteCopies(chunk, copies);
    }
    return count;
  }

  const KernelParameters& p_;
  DeviceRingWriter ring_;
  u64 next_;
  bool leave_ = false;
};

}  // namespace

}  // namespace resident

// The second bound keeps the kernel within resident::kMaxRegisters: -maxrregcount does not
// hold where there are launch bounds.
extern "C" __global__ void __launch_bounds__(resident::kMaxComputeThreads +
                                                 resident::kControlThreads,
                                             resident::kLargestBlocksPerSm)
    resident_kernel(const __grid_constant__ resident::KernelParameters parameters) {
  using namespace resident;
  if (threadIdx.x == 0) {
    handover = Handover{};
    block_state.scratch = parameters.scratch + blockIdx.x * kScratchBytes;
  }
  if (threadIdx.x < kResultBytes / 4) reinterpret_cast<u32*>(block_state.result)[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x < blockDim.x - kControlThreads) {
    RunOperators(parameters, blockIdx.x == 0);
  } else if (blockIdx.x == 0) {
    Poller(parameters).Run();
  } else {
    ServeDeviceRing(parameters);
  }
}
