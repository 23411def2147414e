// Graph workers: the blocks that execute graphs (kernels/graph/graph_task.h) in gangs.
//
//   poller ──Mail──▶ mailboxes of the gang's members ──▶ their control warps (GangWalk)
//
// On each SM one worker is a graph worker, half of all workers usually. Until a graph arrives it
// takes tasks from the device ring as the others do. The poller then opens the mailboxes and calls
// the graph workers: a worker that waits for a task holds a ticket, so the poller writes a slot
// with kTaskGraph for each ticket that is held, and repeats this until all graph workers have
// answered. (A slot reaches any worker; the others ignore it.) When no graph has come for some time
// it closes the mailboxes, and graph workers take tasks again.
//
// A quantum goes to the mailboxes of as many consecutive graph workers as its gang has members, in
// order of their ranks. Each works off its mailbox in order. The poller writes to all mailboxes, so
// all members see the quanta that they share in one order, and none waits for a member that waits
// for it. All graph workers are resident; those that run a task of the ring come when it has ended.
//
// Invariants:
//   1. A graph worker that reads its slot to leave, or leaves its mailbox for the ring, has
//      executed all quanta that were mailed before: it looks at its mailbox again after it has read
//      that slot, or that the mailboxes are closed.
//   2. At most kMailSlots quanta are in flight, so that a mailbox has room.
//
// Memory ordering: the poller has read the slot with a fence before it mails it; a member executes
// a fence after it has read its mail. Each lane of the control warp acquires the counters of some
// predecessors. The barrier of the warp, and then the barrier for the hand-over, or the release of
// BlockState::inputs, which an operator that was started early acquires, order what it reads. The
// leader initializes the state, and releases it with WideProgress::arguments_ready. The last member
// that leaves has the writes of all others: see IsLastToFinish.
#ifndef RESIDENT_KERNELS_RESIDENT_GRAPH_WORKER_CUH_
#define RESIDENT_KERNELS_RESIDENT_GRAPH_WORKER_CUH_

#include "kernels/graph/gang_walk.h"
#include "kernels/graph/graph_task.h"
#include "kernels/resident/block_shared.cuh"
#include "kernels/resident/kernel_parameters.h"
#include "kernels/resident/memory_access.cuh"

namespace resident {
namespace {

static_assert(kMailSlots >= kMaxOpenGraphs, "each quantum in flight has a place in each mailbox");

// WideProgress::arguments_ready of a quantum: the members execute it, or its image is invalid.
constexpr u32 kQuantumOpen = 1;
constexpr u32 kQuantumRefused = 2;

// Polls of a wait after which the host no longer sees the node before as running.
constexpr u32 kPollsUntilIdle = 64;
// The poller calls graph workers that have not answered again after this time, and then after
// twice the time (10 us to 4 ms at 1.98 GHz).
constexpr long long kCallCycles = 20'000;
constexpr long long kMaxCallCycles = 8'000'000;
// It closes the mailboxes when no graph has come for so long (20 ms).
constexpr long long kCloseCycles = 40'000'000;

// The member of a gang that this block is, for GangWalk.
struct GangMember {
  static constexpr u32 kLanes = kWarp;

  const KernelParameters& p;
  // Whether the host no longer sees the block as running a node.
  bool idle = false;

  __device__ __forceinline__ static u32 Lane() { return LaneId(); }
  __device__ __forceinline__ static void Sync() { __syncwarp(); }
  __device__ __forceinline__ static bool All(bool value) { return __all_sync(kAllLanes, value); }
  template <typename T>
  __device__ __forceinline__ static T First(T value) {
    return __shfl_sync(kAllLanes, value, 0);
  }

  __device__ __forceinline__ static u32 Load(const u32* from) { return LoadDevice(from); }
  __device__ __forceinline__ static i32 Load(const i32* from) {
    return static_cast<i32>(LoadDevice(reinterpret_cast<const u32*>(from)));
  }
  __device__ __forceinline__ static u64 Load(const u64* from) { return LoadDevice(from); }
  __device__ __forceinline__ static i64 Load(const i64* from) {
    return static_cast<i64>(LoadDevice(reinterpret_cast<const u64*>(from)));
  }
  __device__ __forceinline__ static double Load(const double* from) {
    return __longlong_as_double(Load(reinterpret_cast<const i64*>(from)));
  }
  __device__ __forceinline__ static u32 LoadAcquire(const u32* from) { return AcquireDevice(from); }
  __device__ __forceinline__ static void StoreRelease(u32* to, u32 value) {
    ReleaseDevice(to, value);
  }
  __device__ __forceinline__ static void AddRelease(u32* to, u32 value) {
    AddReleaseDevice(to, value);
  }
  __device__ __forceinline__ static void Add(u64* to, u64 value) { AddDevice(to, value); }
  __device__ __forceinline__ static u32 FetchAdd(u32* to, u32 value) {
    return atomicAdd(to, value);
  }
  __device__ __forceinline__ static bool Exchange(u32* at, u32 expected, u32 desired) {
    return atomicCAS(at, expected, desired) == expected;
  }

  __device__ __forceinline__ static u32 LoadHost(const u32* from) { return LoadSystem(from); }
  __device__ __forceinline__ static u64 LoadHost(const u64* from) { return LoadSystem(from); }
  __device__ __forceinline__ static double LoadHost(const double* from) {
    return __longlong_as_double(static_cast<i64>(LoadSystem(reinterpret_cast<const u64*>(from))));
  }

  __device__ __forceinline__ static u64 Clock() { return NanosecondClock(); }

  __device__ __forceinline__ void Wait(u32 polls) {
    if (polls != kPollsUntilIdle) return;
    if (LaneId() == 0) WriteBreadcrumb(kNoToken, 0);
    idle = true;
  }
};

// (lane 0) Notes for the host that the block runs the node that was prepared.
__device__ __forceinline__ void NoteNode(const GangWalk<GangMember>& walk) {
  // The descriptor has the quantum's token also while a node is the block's task.
  WriteBreadcrumb(block_state.descriptor.token, walk.operator_slot(),
                  PackGraphTask(walk.node(), walk.step()));
}

// (warp) Makes the node that was prepared the block's task, and starts its operator with the
// member's first chunk, if it has one. One that awaits its inputs is noted later.
template <InputState kInputs>
__device__ __forceinline__ void StartNode(const GangWalk<GangMember>& walk) {
  if (kInputs != InputState::kReady) __syncwarp();  // All lanes have read the former outcome.
  const u32 lane = LaneId();
  constexpr u32 kPiecesPerArgument = sizeof(Argument) / sizeof(StampedChunk);
  const u32 pieces = walk.arguments() * kPiecesPerArgument;
  const auto* const from = reinterpret_cast<const StampedChunk*>(&prepared.gang.arguments);
  auto* const to = reinterpret_cast<StampedChunk*>(&block_state.arguments);
#pragma unroll 1
  for (u32 i = lane; i < pieces; i += kWarp) to[i] = from[i];
  ClearOutcome();
  if (lane == 0) {
    TaskDescriptor& task = block_state.descriptor;
    task.operator_slot = static_cast<u16>(walk.operator_slot());
    task.set_argument_count(walk.arguments());
    block_state.chunk = walk.first_chunk();
    block_state.chunk_count = walk.chunks();
    // Otherwise it is so already.
    if (kInputs != InputState::kReady) block_state.inputs = kInputs;
    if (kInputs == InputState::kReady) NoteNode(walk);
  }
  __syncwarp();
  if (walk.first_chunk() < walk.chunks()) BarrierSync<kHandOverBarrier>();
}

// (warp) Tells an operator that was started early how its wait for inputs ends. If they are
// cancelled, waits until it has returned.
__device__ __forceinline__ void EndWaitForInputs(bool ready) {
  if (LaneId() == 0) {
    ReleaseBlock(&block_state.inputs, ready ? InputState::kReady : InputState::kCancelled);
  }
  __syncwarp();
  if (ready) return;
  BarrierSync<kFinishedBarrier>();
  if (LaneId() == 0) block_state.inputs = InputState::kReady;
  __syncwarp();
}

// (warp) Waits for the operator that StartNode has started, and executes the block's further
// chunks. Returns the status and detail.
__device__ __forceinline__ u32 EndNode(u32 stride) {
  const u32 chunks = static_cast<u32>(block_state.chunk_count);
  u32 chunk = static_cast<u32>(block_state.chunk);
  if (chunk >= chunks) return 0;
  BarrierSync<kFinishedBarrier>();
  for (chunk += stride; chunk < chunks; chunk += stride) {
    if (LaneId() == 0) {
      block_state.chunk = chunk;
      block_state.barrier_arrivals = 0;
    }
    __syncwarp();
    BarrierSync<kHandOverBarrier>();
    BarrierSync<kFinishedBarrier>();
  }
  return block_state.status_and_detail;
}

// (warp) Executes the quantum whose GraphDescriptor is the block's descriptor.
__device__ __noinline__ void RunQuantum(const KernelParameters& p) {
  const GraphDescriptor quantum = reinterpret_cast<const GraphDescriptor&>(block_state.descriptor);
  __syncwarp();  // All lanes have read it.
  const u32 rank = quantum.unused[0];
  WideProgress* const wide = p.wide + (quantum.token & p.slot_mask);
  GangMember member{p};
  GangWalk<GangMember> walk(member, quantum, rank, gridDim.x, &prepared.gang);
  if (LaneId() == 0) {
    handover.wide = 1;
    TaskDescriptor& task = block_state.descriptor;
    task.flags = 0;
    for (u32 w = 0; w < kTaskWords; ++w) task.words[w] = 0;
  }
  __syncwarp();
  u32 ready = kQuantumOpen;
  if (rank == 0) {
    if (LaneId() == 0) wide->start_ns = NanosecondClock();
    if (!walk.Open()) ready = kQuantumRefused;
    FenceDevice();
    __syncwarp();
    if (LaneId() == 0) ReleaseDevice(&wide->arguments_ready, ready);
  } else {
    do {
      ready = AcquireDevice(&wide->arguments_ready);
    } while (ready == 0);
    FenceDevice();
    ready = __shfl_sync(kAllLanes, ready, 0);
  }
  if (ready == kQuantumOpen) {
    walk.Join();
    u64 begin_ns = 0;
    u32 stride = 1;
    for (bool runs = false;;) {
      walk.Prepare();
      bool early = walk.starts_early();
      if (runs) {
        const u32 status_and_detail = EndNode(stride);
        const u64 end_ns = NanosecondClock();
        early = early && status_and_detail == 0;
        if (early) StartNode<InputState::kAwaited>(walk);
        walk.Finish(status_and_detail, begin_ns, end_ns);
      } else if (early) {
        StartNode<InputState::kAwaited>(walk);
      }
      if (early) {
        // After the stores of the node before have been released: one that faults is still seen as
        // that node's.
        if (LaneId() == 0) NoteNode(walk);
        member.idle = false;
      }
      runs = walk.Next();
      if (early) {
        if (runs && member.idle && LaneId() == 0) NoteNode(walk);
        EndWaitForInputs(/*ready=*/runs);
      }
      if (runs) {
        stride = walk.stride();
        begin_ns = NanosecondClock();
        if (!early) StartNode<InputState::kReady>(walk);
      } else if (walk.leaves()) {
        break;
      }
    }
    walk.Save();
  }
  __syncwarp();
  const bool last = IsLastToFinish(wide, quantum.gang);
  // After the fence, so that a store that faults is still that of a node.
  if (LaneId() == 0) WriteBreadcrumb(kNoToken, 0);
  if (!last) return;
  const u32 status_and_detail = ready == kQuantumOpen ? walk.Conclude() : walk.Refuse();
  const u64 start_ns = *reinterpret_cast<volatile u64*>(&wide->start_ns);
  ClearOutcome();
  __syncwarp();
  if (LaneId() == 0) *wide = WideProgress{};
  FenceSystem();
  __syncwarp();
  StoreCompletion(p, quantum.token, status_and_detail, start_ns);
  __syncwarp();  // All lanes have read the result.
}

// A block's part in the execution of graphs, for the control warp of a worker.
class GraphWorker {
 public:
  // Counts the block, and decides whether it is a graph worker.
  __device__ explicit GraphWorker(const KernelParameters& p) : p_(p) {
    if (p.graph_workers == 0) return;
    u32 index = kNone;
    if (LaneId() == 0) {
      u32 sm;
      asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
      if (atomicAdd(&p.gangs->sm_blocks[sm % kMaxSms], 1) == 0) {
        index = atomicAdd(&p.gangs->members, 1);
        if (index >= p.graph_workers) index = kNone;
      }
      FenceDevice();
      atomicAdd(&p.gangs->counted, 1);
    }
    index_ = __shfl_sync(kAllLanes, index, 0);
  }

  // Called for a slot with kTaskGraph: executes graphs until the mailboxes are closed.
  __device__ void Serve() {
    if (index_ == kNone) return;
    if (LaneId() == 0) atomicAdd(&p_.gangs->entered, 1);
    while (true) {
      if (RunMail()) continue;
      // As long as they are open, without acquire: see GangWalk::AwaitPredecessors.
      if (__shfl_sync(kAllLanes, LoadDevice(&p_.gangs->open), 0) != 0) continue;
      FenceDevice();
      if (!RunMail()) break;
    }
    if (LaneId() == 0) atomicSub(&p_.gangs->entered, 1);
  }

  // Executes what was mailed while the block had a task of the ring.
  __device__ void ServeRest() {
    if (index_ == kNone) return;
    while (RunMail()) {
    }
  }

 private:
  static constexpr u32 kNone = ~0u;

  // Executes the next quantum of the mailbox, if there is one.
  __device__ bool RunMail() {
    const StampedChunk* const slot = p_.gangs->mailboxes[index_][read_ % kMailSlots].chunks;
    const StampedChunk chunk = LoadChunkDevice(slot + LaneId() % kChunksPerSlot);
    if (!__all_sync(kAllLanes, chunk.stamp == Stamp(read_))) return false;
    FenceDevice();
    ++read_;
    TakeDescriptor(chunk);
    RunQuantum(p_);
    return true;
  }

  const KernelParameters& p_;
  u32 index_ = kNone;
  // Slots of the mailbox that the block has read.
  u32 read_ = 0;
};

// (warp of block 0) Opens the mailboxes.
__device__ __forceinline__ void OpenMailboxes(const KernelParameters& p) {
  while (__shfl_sync(kAllLanes, AcquireDevice(&p.gangs->counted), 0) != gridDim.x - 1) {
  }
  const u32 members = __shfl_sync(kAllLanes, LoadDevice(&p.gangs->members), 0);
  if (LaneId() == 0) {
    ReleaseDevice(&p.gangs->open, 1);
    MailState& mail = prepared.mail;
    mail.open = 1;
    mail.entered_all = 0;
    mail.members = min(members, p.graph_workers);
    // The first call is due at once.
    mail.last_call = clock64() - kCallCycles;
    mail.call_cycles = kCallCycles;
  }
  __syncwarp();
}

// (warp of block 0) Closes them.
__device__ __noinline__ void CloseMailboxes(const KernelParameters& p) {
  FenceDevice();  // Who sees that they are closed sees all mail.
  if (LaneId() == 0) {
    ReleaseDevice(&p.gangs->open, 0);
    prepared.mail.open = 0;
  }
  __syncwarp();
}

// (warp of block 0) Sends a quantum to the members of its gang. Lane l has chunk l % 4 of the slot.
__device__ __noinline__ void MailQuantum(const KernelParameters& p, StampedChunk chunk) {
  if (prepared.mail.open == 0) OpenMailboxes(p);
  const u32 members = prepared.mail.members;
  const u32 next = prepared.mail.next_worker;
  // GraphDescriptor::gang is payload word 8, the member's rank is written to word 9.
  const u32 wanted = __shfl_sync(kAllLanes, chunk.payload[2], 2);
  // One member refuses what has no gang, or one that is too large.
  const u32 gang = wanted == 0 || wanted > members ? 1 : wanted;
  if (gang != wanted && LaneId() % kChunksPerSlot == 2) chunk.payload[2] = gang;
  for (u32 first = 0; first < gang; first += kWarp / kChunksPerSlot) {
    const u32 rank = first + LaneId() / kChunksPerSlot;
    const u32 worker = (next + rank) % members;
    if (rank < gang) {
      const u32 index = p.gangs->mailed[worker];
      if (LaneId() % kChunksPerSlot == 3) chunk.payload[0] = rank;
      chunk.stamp = Stamp(index);
      StoreChunkDevice(
          p.gangs->mailboxes[worker][index % kMailSlots].chunks + LaneId() % kChunksPerSlot, chunk);
    }
    __syncwarp();  // All lanes have read the index.
    if (rank < gang && LaneId() % kChunksPerSlot == 0) ++p.gangs->mailed[worker];
  }
  __syncwarp();
  if (LaneId() == 0) {
    prepared.mail.next_worker = (next + gang) % members;
    prepared.mail.last_mail = clock64();
  }
  __syncwarp();
}

// (warp of block 0) Closes the mailboxes when it is time. Otherwise returns the tickets for which a
// call is due: those that workers hold, from `filled` on.
__device__ __noinline__ u32 TicketsToCall(const KernelParameters& p, u64 filled) {
  MailState& mail = prepared.mail;
  const long long now = __shfl_sync(kAllLanes, clock64(), 0);
  if (now - mail.last_mail > kCloseCycles) {
    CloseMailboxes(p);
    return 0;
  }
  if (mail.entered_all != 0 || now - mail.last_call < mail.call_cycles) return 0;
  const u32 entered = __shfl_sync(kAllLanes, LoadDevice(&p.gangs->entered), 0);
  if (LaneId() == 0) {
    mail.last_call = now;
    mail.call_cycles = min(2 * mail.call_cycles, kMaxCallCycles);
    mail.entered_all = entered == mail.members;
  }
  __syncwarp();
  if (mail.entered_all != 0) return 0;
  const u64 taken = __shfl_sync(kAllLanes, LoadDevice(&p.state->next_ticket), 0);
  return taken <= filled ? 0 : static_cast<u32>(min(taken - filled, u64{gridDim.x - 1}));
}

}  // namespace
}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_GRAPH_WORKER_CUH_
