// This header is the form of a graph that an engine executes itself: one slot of the ring stands
// for a *quantum*, a part of a run that takes a few milliseconds. docs/ring.md describes it. Host
// and device share the header; GraphLayoutHash is the hash of its structures, which an image
// carries.
//
//   slot (GraphDescriptor) ──▶ image    what the graph is; does not change during a run
//                          ──▶ state    how far the run has come; kept from quantum to quantum
//                          ──▶ quantum  what the host gives and gets: abort, operators, records
//
// The image and the state are in device memory, the quantum is in staging memory.
//
//   image:  GraphImage | GraphNode[nodes] | Argument[...] | GraphPatch[...] | u32 successors[...]
//           | u32 roots[roots] | GraphUpdate[updates] | i64 stop_values[stop_values]
//           | GangNode[nodes] | GangWait[...] | u32 list_begins[gang + 1] | u32 lists[...]
//           | GraphStream[streams]
//   state:  GraphState | GraphNodeState[nodes] | u64 ready[ReadyCapacity(nodes)]
//     or    GangState | GraphOperator[operators] | u32 positions[gang] | u32 ended[nodes]
//
// An engine executes an image in one of two ways. If `gang` is 0, any worker takes any node that is
// ready (graph_walk.h): the workers have other tasks too. Otherwise the image is a schedule for a
// *gang* of so many workers that do nothing else during the quantum: each member, which has a
// *rank*, works off its own list of nodes in the order of the graph and waits before each for its
// predecessors (gang_walk.h). Nothing is taken from a common queue, so that the next node is known
// in advance.
//
// Memory ordering: the stamps of the slot publish the quantum, and the image, which an earlier task
// wrote. The completion of the slot publishes what the engine wrote. Only `abort` is written while
// the slot is in flight.
#ifndef RESIDENT_KERNELS_GRAPH_GRAPH_TASK_H_
#define RESIDENT_KERNELS_GRAPH_GRAPH_TASK_H_

#include "kernels/graph/graph_stream.h"
#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"

namespace resident {

// A value of TaskDescriptor::flags, beside TaskFlags: the payload is a GraphDescriptor. Only
// engines whose traits say so get such a slot.
inline constexpr u8 kTaskGraph = 32;
// GraphDescriptor::operator_slot, which is no slot: the nodes call several operators.
inline constexpr u16 kGraphSlot = 0xffff;

inline constexpr u64 kGraphMagic = 0x3168706172477352;  // "RsGraph1", little-endian.
inline constexpr u32 kMaxGraphScalars = 64;
// Nodes of an image, with those that copy the records of streams.
inline constexpr u32 kMaxImageNodes = 1u << 17;
inline constexpr u64 kMaxImageBytes = u64{256} << 20;
// Steps of a quantum.
inline constexpr u32 kMaxQuantumSteps = 1u << 14;
// Quanta that are in an engine at a time.
inline constexpr u32 kMaxOpenGraphs = 64;

struct GraphDescriptor {
  // As in TaskDescriptor.
  u32 token;
  u16 operator_slot;
  u8 flags;
  u8 reserved;
  // Addresses of the GraphImage, of the GraphState or GangState, and of the GraphQuantum.
  u64 image;
  u64 state;
  u64 quantum;
  // GraphImage::gang.
  u32 gang;
  // Written by the poller for each member.
  u32 rank;
  // GraphImage::streams: if it is not 0, the quantum is for a graph kernel that takes pages.
  u32 streams;
  u32 unused;
};
static_assert(sizeof(GraphDescriptor) == sizeof(TaskDescriptor), "");
static_assert(__builtin_offsetof(GraphDescriptor, token) == 0, "");
static_assert(__builtin_offsetof(GraphDescriptor, operator_slot) == 4, "");
static_assert(__builtin_offsetof(GraphDescriptor, flags) == 6, "");
static_assert(__builtin_offsetof(GraphDescriptor, image) == 8, "");
static_assert(__builtin_offsetof(GraphDescriptor, state) == 16, "");
static_assert(__builtin_offsetof(GraphDescriptor, quantum) == 24, "");
static_assert(__builtin_offsetof(GraphDescriptor, gang) == 32, "");
static_assert(__builtin_offsetof(GraphDescriptor, rank) == 36, "");
static_assert(__builtin_offsetof(GraphDescriptor, streams) == 40, "");

// --- Image -----------------------------------------------------------------------

// Offsets in bytes from the beginning of the image.
struct GraphImage {
  u64 magic;
  u64 layout_hash;
  u64 bytes;
  u64 nodes_at;
  u64 arguments_at;
  u64 patches_at;
  u64 successors_at;
  u64 roots_at;
  u64 updates_at;
  u64 stop_values_at;
  // Address of the element that stops the loop; 0: none does. i32 or i64.
  u64 stop_address;
  u32 nodes;
  u32 roots;
  u32 updates;
  u32 stop_values;
  u32 scalars;
  // Rows of the table of operators.
  u32 operators;
  DType stop_dtype;
  u8 reserved[11];
  // Members of the gang; 0: none, and the image ends with the values that stop the loop.
  u32 gang;
  u64 gang_nodes_at;
  u64 waits_at;
  // The list of rank r is lists[list_begins[r]] to lists[list_begins[r + 1] - 1].
  u64 list_begins_at;
  u64 lists_at;
  // Of the nodes that have one, in their order.
  u64 streams_at;
  u32 streams;
  u32 more_reserved;
  u64 unused[2];
};
static_assert(sizeof(GraphImage) == 192, "");
static_assert(__builtin_offsetof(GraphImage, magic) == 0, "");
static_assert(__builtin_offsetof(GraphImage, layout_hash) == 8, "");
static_assert(__builtin_offsetof(GraphImage, bytes) == 16, "");
static_assert(__builtin_offsetof(GraphImage, nodes_at) == 24, "");
static_assert(__builtin_offsetof(GraphImage, arguments_at) == 32, "");
static_assert(__builtin_offsetof(GraphImage, patches_at) == 40, "");
static_assert(__builtin_offsetof(GraphImage, successors_at) == 48, "");
static_assert(__builtin_offsetof(GraphImage, roots_at) == 56, "");
static_assert(__builtin_offsetof(GraphImage, updates_at) == 64, "");
static_assert(__builtin_offsetof(GraphImage, stop_values_at) == 72, "");
static_assert(__builtin_offsetof(GraphImage, stop_address) == 80, "");
static_assert(__builtin_offsetof(GraphImage, nodes) == 88, "");
static_assert(__builtin_offsetof(GraphImage, roots) == 92, "");
static_assert(__builtin_offsetof(GraphImage, updates) == 96, "");
static_assert(__builtin_offsetof(GraphImage, stop_values) == 100, "");
static_assert(__builtin_offsetof(GraphImage, scalars) == 104, "");
static_assert(__builtin_offsetof(GraphImage, operators) == 108, "");
static_assert(__builtin_offsetof(GraphImage, stop_dtype) == 112, "");
static_assert(__builtin_offsetof(GraphImage, gang) == 124, "");
static_assert(__builtin_offsetof(GraphImage, gang_nodes_at) == 128, "");
static_assert(__builtin_offsetof(GraphImage, waits_at) == 136, "");
static_assert(__builtin_offsetof(GraphImage, list_begins_at) == 144, "");
static_assert(__builtin_offsetof(GraphImage, lists_at) == 152, "");
static_assert(__builtin_offsetof(GraphImage, streams_at) == 160, "");
static_assert(__builtin_offsetof(GraphImage, streams) == 168, "");

// A call of an operator. Its arguments are templates in the form of an argument block; patches
// complete them for the present values of the scalars.
struct GraphNode {
  // Row of the table of operators.
  u32 op;
  // Indices of the first of its arguments, patches and successors: the nodes that wait for it.
  u32 first_argument;
  u32 first_patch;
  u32 first_successor;
  u32 successors;
  // Nodes that it waits for.
  u32 predecessors;
  u16 arguments;
  u16 patches;
  // Its GraphStream, counted from 1; 0: it has none. Only of a gang's image.
  u32 stream;
};
static_assert(sizeof(GraphNode) == 32, "");
static_assert(__builtin_offsetof(GraphNode, op) == 0, "");
static_assert(__builtin_offsetof(GraphNode, first_argument) == 4, "");
static_assert(__builtin_offsetof(GraphNode, first_patch) == 8, "");
static_assert(__builtin_offsetof(GraphNode, first_successor) == 12, "");
static_assert(__builtin_offsetof(GraphNode, successors) == 16, "");
static_assert(__builtin_offsetof(GraphNode, predecessors) == 20, "");
static_assert(__builtin_offsetof(GraphNode, arguments) == 24, "");
static_assert(__builtin_offsetof(GraphNode, patches) == 26, "");
static_assert(__builtin_offsetof(GraphNode, stream) == 28, "");

enum class GraphPatchKind : u8 {
  // The bits of a scalar argument: factor * scalar + addend, converted to `dtype`.
  kValue = 0,
  // Size of a dimension: the scalar.
  kSize = 1,
  // The strides of a tensor whose elements are adjacent at the present sizes are those of a dense
  // tensor. Follows the tensor's sizes.
  kStrides = 2,
  // A record: its address is that of the present step's records plus `addend`, and it is dense.
  // Follows its sizes.
  kRecord = 3,
};

struct GraphPatch {
  GraphPatchKind kind;
  u8 argument;
  u8 dimension;
  DType dtype;
  u32 scalar;
  double factor;
  double addend;
};
static_assert(sizeof(GraphPatch) == 24, "");
static_assert(__builtin_offsetof(GraphPatch, kind) == 0, "");
static_assert(__builtin_offsetof(GraphPatch, argument) == 1, "");
static_assert(__builtin_offsetof(GraphPatch, dimension) == 2, "");
static_assert(__builtin_offsetof(GraphPatch, dtype) == 3, "");
static_assert(__builtin_offsetof(GraphPatch, scalar) == 4, "");
static_assert(__builtin_offsetof(GraphPatch, factor) == 8, "");
static_assert(__builtin_offsetof(GraphPatch, addend) == 16, "");

// After a step, the scalar becomes factor * scalar + addend; the run ends if that is outside of
// [min, max]. All updates use the values before.
struct GraphUpdate {
  u32 scalar;
  u32 reserved;
  double factor;
  double addend;
  double min;
  double max;
};
static_assert(sizeof(GraphUpdate) == 40, "");
static_assert(__builtin_offsetof(GraphUpdate, scalar) == 0, "");
static_assert(__builtin_offsetof(GraphUpdate, factor) == 8, "");
static_assert(__builtin_offsetof(GraphUpdate, addend) == 16, "");
static_assert(__builtin_offsetof(GraphUpdate, min) == 24, "");
static_assert(__builtin_offsetof(GraphUpdate, max) == 32, "");

// Which members of a gang execute a node: `ranks` of them, of which the i-th has the rank
// (first + i) % gang, and executes the chunks i, i + ranks, i + 2 * ranks, ... The number of chunks
// may differ from step to step.
struct GangNode {
  // Index of the first of its GangWaits; their number is GraphNode::predecessors.
  u32 first_wait;
  u16 first;
  u16 ranks;
  // Whether a member waits for it that is not the only one that executes it.
  u32 signals;
  // Whether no node writes what its operator reads before its inputs are ready, if it is one that
  // may be started then (GraphOperator::starts_early).
  u32 starts_early;
};
static_assert(sizeof(GangNode) == 16, "");
static_assert(__builtin_offsetof(GangNode, first_wait) == 0, "");
static_assert(__builtin_offsetof(GangNode, first) == 4, "");
static_assert(__builtin_offsetof(GangNode, ranks) == 6, "");
static_assert(__builtin_offsetof(GangNode, signals) == 8, "");
static_assert(__builtin_offsetof(GangNode, starts_early) == 12, "");

// A predecessor, with its members.
struct GangWait {
  u32 node;
  u16 first;
  u16 ranks;
};
static_assert(sizeof(GangWait) == 8, "");
static_assert(__builtin_offsetof(GangWait, node) == 0, "");
static_assert(__builtin_offsetof(GangWait, first) == 4, "");
static_assert(__builtin_offsetof(GangWait, ranks) == 6, "");

// --- State -----------------------------------------------------------------------

struct GraphNodeState {
  // Chunks that no worker has taken; not 0 only while the node is ready.
  u32 unclaimed;
  // Chunks, and those that have not ended.
  u32 chunks;
  u32 unfinished;
  // Predecessors that have not ended in this step.
  u32 pending;
};
static_assert(sizeof(GraphNodeState) == 16, "");
static_assert(__builtin_offsetof(GraphNodeState, unclaimed) == 0, "");
static_assert(__builtin_offsetof(GraphNodeState, chunks) == 4, "");
static_assert(__builtin_offsetof(GraphNodeState, unfinished) == 8, "");
static_assert(__builtin_offsetof(GraphNodeState, pending) == 12, "");

struct GraphState {
  double scalars[kMaxGraphScalars];
  // Steps that have ended since the run began.
  u64 step;
  // Whether the present step has begun.
  u32 begun;
  u32 reserved;
  // Nodes of the step that have not ended.
  alignas(64) u32 remaining;
  // Positions in the queue of ready nodes. They never decrease. Entry p is at ready[p % capacity]:
  // its stamp, p + 1, in the high half, and the node in the low half.
  alignas(64) u64 head;
  alignas(64) u64 tail;
};
static_assert(sizeof(GraphState) == 768, "");
static_assert(__builtin_offsetof(GraphState, scalars) == 0, "");
static_assert(__builtin_offsetof(GraphState, step) == 512, "");
static_assert(__builtin_offsetof(GraphState, begun) == 520, "");
static_assert(__builtin_offsetof(GraphState, remaining) == 576, "");
static_assert(__builtin_offsetof(GraphState, head) == 640, "");
static_assert(__builtin_offsetof(GraphState, tail) == 704, "");

// A power of two.
RESIDENT_HOST_DEVICE constexpr u64 ReadyCapacity(u64 nodes) {
  u64 capacity = 1;
  while (capacity < nodes) capacity *= 2;
  return capacity;
}
RESIDENT_HOST_DEVICE constexpr u64 GraphStateBytes(u64 nodes) {
  return sizeof(GraphState) + nodes * sizeof(GraphNodeState) + ReadyCapacity(nodes) * sizeof(u64);
}

// The state of a gang. Rank 0, its leader, initializes it for each quantum that begins with a step.
struct GangState {
  double scalars[kMaxGraphScalars];
  // Steps that had ended before the quantum: since the run began, and since the state was
  // initialized. A member that starts late may find that `begun` has changed.
  u64 step;
  u32 steps;
  // Of the quantum: steps that have ended, GraphEnd, and the first failure.
  u32 quantum_steps;
  u32 end;
  u32 failed_node;
  u32 failure;
  // Whether the quantum ended between two steps.
  u32 between_steps;
  u64 failed_step;
  // A copy of what the members need of the GraphQuantum.
  u32 reserved;
  u32 trace_capacity;
  u64 operators;
  u64 records;
  u64 record_bytes;
  u64 trace;
  u64 start_ns;
  // Not 0: no member begins a further chunk.
  alignas(64) u32 leave;
  // Members that have come to the end of a step, since the state was initialized.
  alignas(64) u32 arrived;
  // Steps that have begun after the first one, since the state was initialized.
  alignas(64) u32 begun;
  // Events of the trace so far.
  alignas(64) u32 trace_events;
};
static_assert(sizeof(GangState) == 896, "");
static_assert(__builtin_offsetof(GangState, scalars) == 0, "");
static_assert(__builtin_offsetof(GangState, step) == 512, "");
static_assert(__builtin_offsetof(GangState, steps) == 520, "");
static_assert(__builtin_offsetof(GangState, quantum_steps) == 524, "");
static_assert(__builtin_offsetof(GangState, end) == 528, "");
static_assert(__builtin_offsetof(GangState, failed_node) == 532, "");
static_assert(__builtin_offsetof(GangState, failure) == 536, "");
static_assert(__builtin_offsetof(GangState, between_steps) == 540, "");
static_assert(__builtin_offsetof(GangState, failed_step) == 544, "");
static_assert(__builtin_offsetof(GangState, trace_capacity) == 556, "");
static_assert(__builtin_offsetof(GangState, operators) == 560, "");
static_assert(__builtin_offsetof(GangState, records) == 568, "");
static_assert(__builtin_offsetof(GangState, record_bytes) == 576, "");
static_assert(__builtin_offsetof(GangState, trace) == 584, "");
static_assert(__builtin_offsetof(GangState, start_ns) == 592, "");
static_assert(__builtin_offsetof(GangState, leave) == 640, "");
static_assert(__builtin_offsetof(GangState, arrived) == 704, "");
static_assert(__builtin_offsetof(GangState, begun) == 768, "");
static_assert(__builtin_offsetof(GangState, trace_events) == 832, "");

// A member's position: an index in its list, or, once it has come to the end of the step, this.
inline constexpr u32 kGangArrived = ~0u;

// --- Quantum ---------------------------------------------------------------------

// Why a quantum has ended.
enum class GraphEnd : u32 {
  kNone = 0,
  // The run continues with the next quantum.
  kQuantum = 1,
  // The run has executed all its steps; the stop tensor has a stop value; a scalar would leave its
  // range.
  kSteps = 2,
  kStop = 3,
  kScalarRange = 4,
  // A node did not end OK.
  kFailed = 5,
  // The host has set `abort`.
  kAborted = 6,
  // The image is of another build.
  kBadImage = 7,
};

inline constexpr u32 kStartsEarly = 1;
inline constexpr u32 kTakesPages = 2;

// A row of the table of operators, which is resolved for each quantum. `split_parameter` to
// `limit`, and `other_parameter` and `other_grain`, are those of a SplitRule
// (runtime/model/split_rule.h).
struct GraphOperator {
  u32 slot;
  i32 split_parameter;
  u32 by_first_dim;
  // Whether it may be started before its inputs are ready: it waits for them itself, kStartsEarly;
  // and whether it may also take its matrices from a stream, kTakesPages.
  u32 starts_early;
  u64 grain;
  u64 limit;
  i32 other_parameter;
  u32 other_grain;
  // Set by the engine: its tasks that have ended, and their worker time.
  u64 tasks;
  u64 ns;
};
static_assert(sizeof(GraphOperator) == 56, "");
static_assert(__builtin_offsetof(GraphOperator, slot) == 0, "");
static_assert(__builtin_offsetof(GraphOperator, split_parameter) == 4, "");
static_assert(__builtin_offsetof(GraphOperator, by_first_dim) == 8, "");
static_assert(__builtin_offsetof(GraphOperator, starts_early) == 12, "");
static_assert(__builtin_offsetof(GraphOperator, grain) == 16, "");
static_assert(__builtin_offsetof(GraphOperator, limit) == 24, "");
static_assert(__builtin_offsetof(GraphOperator, other_parameter) == 32, "");
static_assert(__builtin_offsetof(GraphOperator, other_grain) == 36, "");
static_assert(__builtin_offsetof(GraphOperator, tasks) == 40, "");
static_assert(__builtin_offsetof(GraphOperator, ns) == 48, "");

// A chunk in the trace of a run. Times are those of the engine's clock, in nanoseconds.
struct GraphTraceEvent {
  u32 node;
  u32 step;  // Of the quantum.
  u32 chunk;
  u32 worker;
  // When its worker began to wait for predecessors of the node, and when the chunk began and ended.
  u64 wait_ns;
  u64 begin_ns;
  u64 end_ns;
};
static_assert(sizeof(GraphTraceEvent) == 40, "");
static_assert(__builtin_offsetof(GraphTraceEvent, node) == 0, "");
static_assert(__builtin_offsetof(GraphTraceEvent, step) == 4, "");
static_assert(__builtin_offsetof(GraphTraceEvent, chunk) == 8, "");
static_assert(__builtin_offsetof(GraphTraceEvent, worker) == 12, "");
static_assert(__builtin_offsetof(GraphTraceEvent, wait_ns) == 16, "");
static_assert(__builtin_offsetof(GraphTraceEvent, begin_ns) == 24, "");
static_assert(__builtin_offsetof(GraphTraceEvent, end_ns) == 32, "");

struct GraphQuantum {
  // Not 0: end as soon as the nodes that are running have ended.
  alignas(64) u32 abort;
  // Whether it begins with a step: the engine initializes the state. Otherwise it continues the
  // step in which the quantum before ended.
  alignas(64) u32 fresh;
  // Steps of this quantum at most; at most kMaxQuantumSteps.
  u32 max_steps;
  // Steps that ended before it, and of the run in all.
  u64 first_step;
  u64 last_step;
  // The quantum ends once it has taken so long.
  u64 budget_ns;
  // Addresses of the GraphOperators, and of the records: `record_bytes` for each step of the
  // quantum.
  u64 operators;
  u64 records;
  u64 record_bytes;
  // Address of room for so many GraphTraceEvents; 0: the run is not traced.
  u64 trace;
  u32 trace_capacity;
  // Set by the engine: events that there were; those beyond trace_capacity were not written.
  u32 trace_events;
  // Set by the engine. Not 0: no worker takes a further chunk.
  alignas(64) u32 leave;
  // GraphEnd.
  u32 end;
  // Steps of this quantum that have ended, and whether a further one has begun.
  u32 steps;
  u32 in_step;
  // kFailed: the first failure, and its CompletionStatus | detail << 16.
  u32 failed_node;
  u32 failure;
  u64 failed_step;
  // Of all scalars, for the first step, if `fresh`.
  alignas(64) double scalars[kMaxGraphScalars];
};
static_assert(sizeof(GraphQuantum) == 768, "");
static_assert(__builtin_offsetof(GraphQuantum, abort) == 0, "");
static_assert(__builtin_offsetof(GraphQuantum, fresh) == 64, "");
static_assert(__builtin_offsetof(GraphQuantum, max_steps) == 68, "");
static_assert(__builtin_offsetof(GraphQuantum, first_step) == 72, "");
static_assert(__builtin_offsetof(GraphQuantum, last_step) == 80, "");
static_assert(__builtin_offsetof(GraphQuantum, budget_ns) == 88, "");
static_assert(__builtin_offsetof(GraphQuantum, operators) == 96, "");
static_assert(__builtin_offsetof(GraphQuantum, records) == 104, "");
static_assert(__builtin_offsetof(GraphQuantum, record_bytes) == 112, "");
static_assert(__builtin_offsetof(GraphQuantum, trace) == 120, "");
static_assert(__builtin_offsetof(GraphQuantum, trace_capacity) == 128, "");
static_assert(__builtin_offsetof(GraphQuantum, trace_events) == 132, "");
static_assert(__builtin_offsetof(GraphQuantum, leave) == 192, "");
static_assert(__builtin_offsetof(GraphQuantum, end) == 196, "");
static_assert(__builtin_offsetof(GraphQuantum, steps) == 200, "");
static_assert(__builtin_offsetof(GraphQuantum, in_step) == 204, "");
static_assert(__builtin_offsetof(GraphQuantum, failed_node) == 208, "");
static_assert(__builtin_offsetof(GraphQuantum, failure) == 212, "");
static_assert(__builtin_offsetof(GraphQuantum, failed_step) == 216, "");
static_assert(__builtin_offsetof(GraphQuantum, scalars) == 256, "");

// `operators`: rows of the table.
RESIDENT_HOST_DEVICE constexpr u64 GangStateBytes(u64 operators, u64 gang, u64 nodes) {
  return sizeof(GangState) + operators * sizeof(GraphOperator) + (gang + nodes) * sizeof(u32);
}

// Breadcrumb::task of a worker that executes a node: the node, and the step of the quantum.
inline constexpr u32 kGraphNodeBits = 17;
static_assert(kMaxImageNodes == 1u << kGraphNodeBits, "");
static_assert(u64{kMaxQuantumSteps} << kGraphNodeBits <= u64{1} << 32, "");
RESIDENT_HOST_DEVICE constexpr u32 PackGraphTask(u32 node, u32 step) {
  return node | step << kGraphNodeBits;
}
RESIDENT_HOST_DEVICE constexpr u32 GraphTaskNode(u32 task) { return task & (kMaxImageNodes - 1); }
RESIDENT_HOST_DEVICE constexpr u32 GraphTaskStep(u32 task) { return task >> kGraphNodeBits; }

// It differs if two builds could interpret an image differently.
RESIDENT_HOST_DEVICE constexpr u64 GraphLayoutHash() {
  constexpr u64 kFields[] = {
      4,  // Version: increment it if the meaning of a field changes, but no size and no offset.
      sizeof(GraphDescriptor),
      sizeof(GraphImage),
      sizeof(GraphNode),
      sizeof(GraphPatch),
      sizeof(GraphUpdate),
      sizeof(GraphNodeState),
      sizeof(GraphState),
      sizeof(GraphOperator),
      sizeof(GraphQuantum),
      sizeof(GangNode),
      sizeof(GangWait),
      sizeof(GraphStream),
      kStreamPageBytes,
      __builtin_offsetof(GraphStream, base),
      sizeof(GangState),
      sizeof(GraphTraceEvent),
      sizeof(Argument),
      kMaxGraphScalars,
      kGraphNodeBits,
      __builtin_offsetof(GraphImage, nodes),
      __builtin_offsetof(GraphNode, predecessors),
      __builtin_offsetof(GraphPatch, factor),
      __builtin_offsetof(GraphImage, gang),
      __builtin_offsetof(GangNode, signals),
      __builtin_offsetof(GangState, leave),
      __builtin_offsetof(GraphState, head),
      __builtin_offsetof(GraphOperator, tasks),
      __builtin_offsetof(GraphQuantum, leave),
      __builtin_offsetof(GraphQuantum, scalars),
  };
  u64 hash = 14695981039346656037ULL;  // FNV-1a.
  for (u64 field : kFields) hash = (hash ^ field) * 1099511628211ULL;
  return hash;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_GRAPH_GRAPH_TASK_H_
