// The graph kernel: executes graphs (kernels/graph/graph_task.h) in gangs, beside the resident
// kernel.
//
//   poller ──Mail──▶ mailboxes of the gang's members ──▶ their control warps (GangWalk)
//   (resident kernel)                                        │ shared memory
//                                                            ▼
//                                                       their compute warps
//
// It is launched together with the resident kernel while graphs are in use (docs/ring.md#gangs), so
// that each SM has a block of it beside those of the resident kernel. Its blocks are the *graph
// workers*: they take nothing from the device ring, and look only at their mailboxes.
//
// A quantum goes to the mailboxes of as many consecutive graph workers as its gang has members, in
// order of their ranks. Each works off its mailbox in order. The poller writes to all mailboxes, so
// all members see the quanta that they share in one order, and none waits for a member that waits
// for it. All graph workers are resident: the kernel is launched before the resident one, and with
// no more blocks than fit beside it.
//
// Park: behind the last quantum the poller mails a slot with kLeave to each graph worker, which
// leaves when it reads it, and so has executed all quanta that were mailed before.
//
// Memory ordering: the poller has read the slot with a fence before it mails it; a member executes
// a fence after it has read its mail. Each lane of the control warp acquires the counters of some
// predecessors. The barrier of the warp, and then the barrier for the hand-over, or the release of
// BlockState::inputs, which an operator that was started early acquires, order what it reads. The
// leader initializes the state, and releases it with WideProgress::arguments_ready. The last member
// that leaves has the writes of all others: see IsLastToFinish.
#include "kernels/graph/gang_walk.h"
#include "kernels/graph/graph_task.h"
#include "kernels/resident/block_shared.cuh"
#include "kernels/resident/launch_parameters.h"
#include "kernels/resident/memory_access.cuh"

namespace resident {
namespace {

// What the control warp has beside the state of its block: the next node, and the scalars of its
// step.
__shared__ GangMemory gang_memory;

// WideProgress::arguments_ready of a quantum: the members execute it, or its image is invalid.
constexpr u32 kQuantumOpen = 1;
constexpr u32 kQuantumRefused = 2;

// Polls of a wait after which the host no longer sees the node before as running.
constexpr u32 kPollsUntilIdle = 64;

// The member of a gang that this block is, for GangWalk.
struct GangMember {
  static constexpr u32 kLanes = kWarp;

  const LaunchParameters& p;
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
  const auto* const from = reinterpret_cast<const StampedChunk*>(&gang_memory.arguments);
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
  // The compute warps wait there, or will: this warp need not wait for them.
  if (walk.first_chunk() < walk.chunks()) BarrierArrive<kHandOverBarrier>();
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
    BarrierArrive<kHandOverBarrier>();
    BarrierSync<kFinishedBarrier>();
  }
  return block_state.status_and_detail;
}

// (warp) Executes the quantum whose GraphDescriptor is the block's descriptor.
__device__ __noinline__ void RunQuantum(const LaunchParameters& p) {
  const GraphDescriptor quantum = reinterpret_cast<const GraphDescriptor&>(block_state.descriptor);
  __syncwarp();  // All lanes have read it.
  const u32 rank = quantum.unused[0];
  WideProgress* const wide = p.wide + (quantum.token & p.slot_mask);
  GangMember member{p};
  GangWalk<GangMember> walk(member, quantum, rank, p.workers, &gang_memory);
  if (LaneId() == 0) {
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

// (compute warps) Runs the operators that the control warp hands over, until the block leaves.
__device__ void RunNodes() {
  while (true) {
    BarrierSync<kHandOverBarrier>();
    if (handover.leave) return;
    RunBlockOperator();
    BarrierArrive<kFinishedBarrier>();
  }
}

// (control warp) Executes the quanta of the block's mailbox, until it reads that it must leave.
__device__ void ServeMailbox(const LaunchParameters& p) {
  for (u32 read = 0;; ++read) {
    const StampedChunk* const slot =
        p.mailboxes->slots[blockIdx.x][read % kMailboxSlots].chunks + LaneId() % kChunksPerSlot;
    StampedChunk chunk;
    // Without acquire: each one empties the L1 cache, which tasks use meanwhile.
    do {
      chunk = LoadChunkDevice(slot);
    } while (!__all_sync(kAllLanes, chunk.stamp == Stamp(read)));
    FenceDevice();
    TakeDescriptor(chunk);
    if (block_state.descriptor.flags & kLeave) break;
    RunQuantum(p);
  }
  if (LaneId() == 0) handover.leave = 1;
  __syncwarp();
  BarrierSync<kHandOverBarrier>();
}

}  // namespace
}  // namespace resident

// The bounds are those of the resident kernel: operators are compiled for kMaxRegisters, and a
// block of either kernel fits where one of the other does.
extern "C" __global__ void __launch_bounds__(resident::kMaxComputeThreads +
                                                 resident::kControlThreads,
                                             resident::kLargestBlocksPerSm)
    resident_graph_kernel(const __grid_constant__ resident::LaunchParameters parameters) {
  using namespace resident;
  InitializeBlock(parameters, parameters.resident_blocks + blockIdx.x);
  if (threadIdx.x < blockDim.x - kControlThreads) {
    RunNodes();
  } else {
    ServeMailbox(parameters);
  }
}
