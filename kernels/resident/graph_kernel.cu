// The graph kernel: executes graphs (kernels/graph/graph_task.h) in gangs, beside the resident
// kernel.
//
//   poller ──Mail──▶ mailboxes of the gang's members ──▶ their control warps (GangWalk)
//   (resident kernel)                                        │ shared memory
//                                                            ▼
//                                                       their compute warps
//
// It is launched together with the resident kernel while graphs are in use (docs/ring.md#gangs), so
// that each SM has a block of it beside those of the resident kernel. It has two forms, of which
// one is there at a time: with a loader and a ring of pages (stream_ring.cuh), for graphs that have
// streams, and without, for others, whose nodes would be slower beside a ring, because it takes the
// most part of the SM's L1 cache. Its blocks are the *graph
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
#include "kernels/resident/stream_product.cuh"
#include "kernels/resident/stream_ring.cuh"
#include "kernels/resident/task_stop.cuh"

namespace resident {
namespace {

// What the control warp hands over to the warps that run operators: one command after the other,
// and the next one perhaps while one is executed. Command n is at place n % 2.
enum CommandKind : u32 { kRunOperator = 0, kRunTurn = 1, kLeaveNodes = 2 };
struct Commands {
  // Phase n / 2 ends when command n has been posted, and when all warps have executed it.
  u64 posted[2];
  u64 done[2];
  u32 kinds[2];
  // Commands that have been posted. Only for the control warp.
  u32 count;
  // By warp that runs operators: commands that it has executed. Not on its stack, which operators
  // that wait for inputs move to the L2 cache.
  volatile u32 executed[kMaxComputeThreads / kWarp];
};
__shared__ Commands commands;

// What the control warp has beside the state of its block: the next node, and the scalars of its
// step.
__shared__ GangMemory gang_memory;

// WideProgress::arguments_ready of a quantum: the members execute it, or its image is invalid.
constexpr u32 kQuantumOpen = 1;
constexpr u32 kQuantumRefused = 2;

// Polls of a wait after which the host no longer sees the node before as running.
constexpr u32 kPollsUntilIdle = 64;

// The member of a gang that this block is, for GangWalk. kStreams: it takes pages.
template <bool kStreams>
struct GangMember {
  static constexpr u32 kLanes = kWarp;

  const LaunchParameters& p;
  // Whether the host no longer sees the block as running a node.
  bool idle = false;
  // The place of the turn that was posted last.
  u32 turn = 0;
  const StateReset reset = {};

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

  __device__ __forceinline__ static bool TakesPages() { return kStreams; }
  __device__ __forceinline__ InputState InputsOfTurn() const {
    if constexpr (kStreams) {
      constexpr u32 kLookNs = 20;
      const InputState inputs = *static_cast<const volatile InputState*>(&turns[turn].inputs);
      if (inputs == InputState::kAwaited) __nanosleep(kLookNs);
      return inputs;
    } else {
      return InputState::kReady;
    }
  }

  __device__ __forceinline__ void Wait(u32 polls) {
    if (polls != kPollsUntilIdle) return;
    if (LaneId() == 0) WriteBreadcrumb(kNoToken, 0);
    idle = true;
  }
};

template <bool kStreams>
using Walk = GangWalk<GangMember<kStreams>>;

// (lane 0) Notes for the host that the block runs the node that was prepared.
template <bool kStreams>
__device__ __forceinline__ void NoteNode(const Walk<kStreams>& walk) {
  WriteBreadcrumb(own.handover.token, walk.operator_slot(),
                  PackGraphTask(walk.node(), walk.step()));
}

// (warp) Lets the warps that run operators execute a command behind those before. Returns its
// number.
__device__ __forceinline__ u32 Post(CommandKind kind) {
  const u32 number = commands.count;
  __syncwarp();
  if (LaneId() == 0) {
    commands.kinds[number % 2] = kind;
    commands.count = number + 1;
    ArriveAtPhase(SharedAddress(commands.posted + number % 2));
  }
  __syncwarp();
  return number;
}
// (warp) Waits until the command has been executed. AwaitOperator: it runs an operator, which is
// stopped if it has to and can be.
__device__ __forceinline__ void AwaitCommand(u32 number) {
  AwaitPhase(SharedAddress(commands.done + number % 2), number / 2 & 1);
  __syncwarp();
}
__device__ __forceinline__ void AwaitOperator(const LaunchParameters& p, u32 number, bool watched) {
  if (!watched) return AwaitCommand(number);
  AwaitWatched(p, SharedAddress(commands.done + number % 2), number / 2 & 1, /*since_ns=*/0);
}

// A node that the block executes.
struct RunningNode {
  u32 command;
  bool turn;
  bool started;  // The block has a chunk of it.
  u32 chunk;
  u32 chunks;
  u32 stride;

  // Whether it has no chunks beyond the command that was posted.
  __device__ __forceinline__ bool IsLastCommand() const {
    return turn || !started || chunk + stride >= chunks;
  }
};

// (warp) Makes the node that was prepared the block's task, and starts its operator with the
// member's first chunk, if it has one. One that awaits its inputs is noted later.
template <InputState kInputs, bool kStreams>
__device__ __forceinline__ RunningNode StartOperator(const Walk<kStreams>& walk,
                                                     const StateReset& reset) {
  if (kInputs != InputState::kReady) __syncwarp();  // All lanes have read the former outcome.
  const u32 lane = LaneId();
  constexpr u32 kPiecesPerArgument = sizeof(Argument) / sizeof(StampedChunk);
  const u32 pieces = walk.arguments() * kPiecesPerArgument;
  const auto* const from = reinterpret_cast<const StampedChunk*>(&gang_memory.arguments);
  auto* const to = reinterpret_cast<StampedChunk*>(&own.state.arguments);
#pragma unroll 1
  for (u32 i = lane; i < pieces; i += kWarp) to[i] = from[i];
  reset();
  __syncwarp();
  if (lane == 0) {
    TaskDescriptor& task = own.state.descriptor;
    own.handover.operator_slot = task.operator_slot = static_cast<u16>(walk.operator_slot());
    task.set_argument_count(walk.arguments());
    own.state.chunk = walk.first_chunk();
    own.state.chunk_count = walk.chunks();
    if (kInputs != InputState::kReady) own.state.inputs = kInputs;
    if (kInputs == InputState::kReady) NoteNode<kStreams>(walk);
  }
  __syncwarp();
  RunningNode node = {0,
                      false,
                      walk.first_chunk() < walk.chunks(),
                      walk.first_chunk(),
                      walk.chunks(),
                      walk.stride()};
  if (node.started) node.command = Post(kRunOperator);
  return node;
}

// (warp) The same for a node that multiplies by pages.
__device__ __forceinline__ RunningNode StartTurn(const Walk<true>& walk) {
  const u32 lane = LaneId();
  const GangTurn& next = walk.turn();
  StreamTurn& turn = turns[commands.count % 2];
  const Argument* const arguments = gang_memory.arguments.arguments;
  const u32 matrix = next.normalized != 0 ? 2 : 1;
  if (lane < walk.waits()) {
    const u32* const counter = walk.counter();
    turn.counters[lane] = counter;
    turn.targets[lane] = walk.target();
  }
  const bool gated = next.form == StreamForm::kGated;
  const u32 results = gated ? 1 : CountMatrices(next.form);
  if (lane < results) {
    // A matrix for each result, or two for one, then the biases, or none.
    const TensorArgument& bias = arguments[matrix + results + lane].tensor;
    const TensorArgument& out = arguments[matrix + 2 * results + lane].tensor;
    turn.out[lane] = {out.address, out.dtype};
    turn.bias[lane] = {gated || bias.shape[0] == 0 ? 0 : bias.address, bias.dtype};
  }
  if (lane == 0) {
    const u32 rows = static_cast<u32>(arguments[matrix].tensor.shape[0]);
    turn.columns = next.columns;
    turn.form = next.form;
    turn.normalized = next.normalized;
    turn.count = next.pages.count;
    turn.first = next.pages.first;
    turn.pitch = walk.gang();
    turn.sequence = next.pages_before;
    turn.waits = walk.waits();
    turn.signals = next.signals;
    turn.inputs = InputState::kAwaited;
    turn.signal = walk.signal();
    turn.leave = walk.leave();
    turn.norm = arguments[1].tensor.address;
    turn.x = {arguments[0].tensor.address, arguments[0].tensor.dtype};
    turn.ends[0] = rows;
    turn.ends[1] = rows + static_cast<u32>(arguments[matrix + 1].tensor.shape[0]);
    turn.eps = __uint_as_float(static_cast<u32>(arguments[walk.arguments() - 1].scalar_bits));
  }
  __syncwarp();
  return {Post(kRunTurn), true, true, 0, 0, 0};
}

template <bool kStreams>
__device__ __forceinline__ RunningNode StartEarly(const Walk<kStreams>& walk,
                                                  const StateReset& reset) {
  if constexpr (kStreams) {
    if (walk.has_turn()) return StartTurn(walk);
  }
  return StartOperator<InputState::kAwaited, kStreams>(walk, reset);
}

// (warp) Tells an operator that was started early how its wait for inputs ends. If they are
// cancelled, waits until it has returned.
__device__ __forceinline__ void EndWaitForInputs(const RunningNode& node, bool ready) {
  if (!node.turn) {
    if (LaneId() == 0) {
      ReleaseBlock(&own.state.inputs, ready ? InputState::kReady : InputState::kCancelled);
    }
    __syncwarp();
  }
  if (ready) return;
  AwaitCommand(node.command);
  if (LaneId() == 0) own.state.inputs = InputState::kReady;
  __syncwarp();
}

// (warp) Waits for the node, and executes the block's further chunks. Returns the status and
// detail.
__device__ __forceinline__ u32 EndNode(const LaunchParameters& p, const RunningNode& node) {
  if (!node.started) return 0;
  if (node.turn) {
    AwaitCommand(node.command);
    return 0;
  }
  const bool watched = IsWatched(own.handover.operator_slot);
  AwaitOperator(p, node.command, watched);
  for (u32 chunk = node.chunk + node.stride; chunk < node.chunks; chunk += node.stride) {
    if (watched && ReadStop() != StopReason::kNone) break;
    if (LaneId() == 0) {
      own.state.chunk = chunk;
      own.state.barrier_arrivals = 0;
    }
    __syncwarp();
    AwaitOperator(p, Post(kRunOperator), watched);
  }
  const u32 outcome = ReadOutcome(watched);
  if (watched) {
    __syncwarp();  // All lanes have read it.
    ClearStop();
  }
  return outcome;
}

// (warp) Executes the quantum whose GraphDescriptor is the block's descriptor.
template <bool kStreams>
__device__ __noinline__ void RunQuantum(const LaunchParameters& p) {
  const GraphDescriptor quantum = reinterpret_cast<const GraphDescriptor&>(own.state.descriptor);
  __syncwarp();  // All lanes have read it.
  const u32 rank = quantum.rank;
  WideProgress* const wide = p.wide + (quantum.token & p.slot_mask);
  GangMember<kStreams> member{p};
  Walk<kStreams> walk(member, quantum, rank, p.workers, &gang_memory);
  if (LaneId() == 0) {
    TaskDescriptor& task = own.state.descriptor;
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
    const bool streams = kStreams && walk.takes_pages();
    if (streams) {
      StartLoader(walk.streams(), walk.stream_count(), walk.FirstStream(), rank, walk.gang());
    }
    u64 begin_ns = 0;
    RunningNode node = {};
    for (bool runs = false;;) {
      walk.Prepare();
      bool early = walk.starts_early();
      bool started = false;
      RunningNode next = {};
      if (runs) {
        // Behind one that cannot fail, or whose failure withdraws it, and with other memory.
        started = kStreams && early && node.IsLastCommand() &&
                  (node.turn || (walk.has_turn() && walk.AwaitsNodeBefore()));
        if (started) next = StartEarly<kStreams>(walk, member.reset);
        const u32 status_and_detail = EndNode(p, node);
        const u64 end_ns = NanosecondClock();
        early = started || (early && status_and_detail == 0);
        if (early && !started) next = StartEarly<kStreams>(walk, member.reset);
        walk.Finish(status_and_detail, begin_ns, end_ns);
      } else if (early) {
        next = StartEarly<kStreams>(walk, member.reset);
      }
      if (early) {
        // After the stores of the node before have been released: one that faults is still seen as
        // that node's.
        if (LaneId() == 0) NoteNode<kStreams>(walk);
        member.idle = false;
        member.turn = next.command % 2;
      }
      runs = walk.Next();
      if (early) {
        if (runs && member.idle && LaneId() == 0) NoteNode<kStreams>(walk);
        EndWaitForInputs(next, /*ready=*/runs);
      }
      if (runs) {
        begin_ns = NanosecondClock();
        node = early ? next : StartOperator<InputState::kReady, kStreams>(walk, member.reset);
      } else if (walk.leaves()) {
        break;
      }
    }
    if (streams) StopLoader();
    walk.Save();
  }
  __syncwarp();
  const bool last = IsLastToFinish(wide, quantum.gang);
  // After the fence, so that a store that faults is still that of a node.
  if (LaneId() == 0) WriteBreadcrumb(kNoToken, 0);
  if (!last) return;
  const u32 status_and_detail = ready == kQuantumOpen ? walk.Conclude() : walk.Refuse();
  const u64 start_ns = *reinterpret_cast<volatile u64*>(&wide->start_ns);
  member.reset();
  __syncwarp();
  if (LaneId() == 0) *wide = WideProgress{};
  FenceSystem();
  __syncwarp();
  StoreCompletion(p, quantum.token, status_and_detail, start_ns);
  __syncwarp();  // All lanes have read the result.
}

// (compute warps) Runs the operators that the control warp hands over, until the block leaves.
template <bool kStreams>
__device__ __forceinline__ void RunNodes() {
  while (true) {
    const u32 number = commands.executed[threadIdx.x / kWarp];
    const u32 place = number % 2;
    AwaitPhaseRelaxed(SharedAddress(commands.posted + place), number / 2 & 1);
    const u32 kind = *static_cast<volatile u32*>(commands.kinds + place);
    if (kind == kLeaveNodes) return;
    if constexpr (kStreams) {
      if (kind == kRunTurn) {
        RunTurn(place);
      } else {
        // A turn before it may still have results in the block's memory.
        Block(&own.state).barrier();
        RunBlockOperator();
      }
    } else {
      RunBlockOperator();
    }
    __syncwarp();
    if (LaneId() == 0) {
      volatile u32& executed = commands.executed[threadIdx.x / kWarp];
      const u32 ended = executed;
      executed = ended + 1;
      ArriveAtPhase(SharedAddress(commands.done + ended % 2));
    }
    __syncwarp();
  }
}

// (control warp) Executes the quanta of the block's mailbox, until it reads that it must leave.
template <bool kStreams>
__device__ __forceinline__ void ServeMailbox(const LaunchParameters& p) {
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
    if (own.handover.flags & kLeave) break;
    RunQuantum<kStreams>(p);
  }
  if (LaneId() == 0) own.handover.leave = 1;
  __syncwarp();
  if constexpr (kStreams) EndLoader();
  Post(kLeaveNodes);
}

// (all threads) A graph worker. kStreams: with a loader, and so with kMaxComputeThreads threads
// that run operators.
template <bool kStreams>
__device__ __forceinline__ void RunGraphWorker(const LaunchParameters& p) {
  // The last warps of a block: the control warp, and the loader.
  const u32 control = blockDim.x - (kStreams ? kLoaderThreads : 0) - kControlThreads;
  if (threadIdx.x == 0) {
    for (u32 place = 0; place < 2; ++place) {
      InitializePhases(SharedAddress(commands.posted + place), 1);
      InitializePhases(SharedAddress(commands.done + place), control / kWarp);
    }
    commands.count = 0;
    for (u32 warp = 0; warp < kMaxComputeThreads / kWarp; ++warp) commands.executed[warp] = 0;
    if constexpr (kStreams) InitializeRing();
  }
  InitializeBlock(p, p.resident_blocks + blockIdx.x);
  if (threadIdx.x < control) {
    RunNodes<kStreams>();
  } else if (!kStreams || threadIdx.x < control + kControlThreads) {
    ServeMailbox<kStreams>(p);
  } else if constexpr (kStreams) {
    RunLoader();
  }
}

}  // namespace
}  // namespace resident

// The bound of registers is that beside a block of the resident kernel: the registers of an SM are
// divided among its schedulers (FitsBeside, runtime/engine/cuda/launch_shape.h).
extern "C" __global__ void __maxnreg__(resident::kGraphRegisters)
    resident_graph_kernel(const __grid_constant__ resident::LaunchParameters parameters) {
  resident::RunGraphWorker</*kStreams=*/false>(parameters);
}

// For graphs that have streams.
extern "C" __global__ void __maxnreg__(resident::kGraphRegisters)
    resident_graph_stream_kernel(const __grid_constant__ resident::LaunchParameters parameters) {
  resident::RunGraphWorker</*kStreams=*/true>(parameters);
}
