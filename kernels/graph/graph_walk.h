// GraphWalk: how workers execute a graph together (graph_task.h): which node may start, what
// follows its end, and the end of a step. It neither calls operators nor waits.
//
//   pending ──(predecessors have ended)──▶ ready ──Take──▶ running ──Finish──▶ ended
//
// Workers come and go. Each takes chunks of ready nodes, executes them and takes the next ones; the
// worker that ends the last node of a step ends the step and begins the next one. A worker that
// finds nothing ready leaves; it need not wait, because a step in which nothing runs has a ready
// node.
//
// Invariants:
//   1. A node is ready at most once in a step, after all its predecessors have ended. Only then are
//      its counters set for the step.
//   2. A node is in the queue of ready nodes once, or one worker keeps it to itself (Finish's
//      `next`), or all its chunks have been taken.
//   3. Positions of the queue never decrease, so that a worker that was delayed, even until a later
//      step, takes either a chunk of a node that is ready now, or nothing.
//   4. An entry of the queue is replaced only after all chunks of its node have been taken: before
//      that, at most one entry for each other node follows. `head` may still be at its position.
//   5. The scalars change only while no node runs.
//
// Memory ordering: what a chunk wrote is visible to the chunks of nodes that wait for its node, and
// to the thread that reads the completion of the quantum: the counters are changed with acquire and
// release.
//
// Thread safety: each worker has its own object; Begin must have returned before others use theirs.
//
//   GraphWalk walk(descriptor, workers);
//   for (GraphChunk chunk; walk.Take(&chunk);) {
//     walk.FillArguments(chunk, &state.arguments);
//     ... call the operator ...
//     bool more_ready = false;
//     walk.Finish(chunk, state.status_and_detail, &next, &more_ready);
//   }
#ifndef RESIDENT_KERNELS_GRAPH_GRAPH_WALK_H_
#define RESIDENT_KERNELS_GRAPH_GRAPH_WALK_H_

#include "kernels/graph/graph_arguments.h"
#include "kernels/graph/graph_task.h"
#include "kernels/graph/scalar_bits.h"
#include "kernels/layout/platform.h"

namespace resident {

struct GraphChunk {
  u32 node = 0;
  u32 chunk = 0;
  u32 chunks = 0;  // 0: none.
};

class GraphWalk {
 public:
  // `workers`: of the engine.
  RESIDENT_HOST_DEVICE GraphWalk(const GraphDescriptor& descriptor, u32 workers)
      : image_(*reinterpret_cast<const GraphImage*>(descriptor.image)),
        state_(*reinterpret_cast<GraphState*>(descriptor.state)),
        quantum_(*reinterpret_cast<GraphQuantum*>(descriptor.quantum)),
        nodes_(ImagePart<GraphNode>(image_, image_.nodes_at)),
        operators_(reinterpret_cast<GraphOperator*>(quantum_.operators)),
        node_states_(reinterpret_cast<GraphNodeState*>(&state_ + 1)),
        ready_(reinterpret_cast<u64*>(node_states_ + image_.nodes)),
        mask_(ReadyCapacity(image_.nodes) - 1),
        workers_(workers) {}

  RESIDENT_HOST_DEVICE static bool IsValid(const GraphDescriptor& descriptor) {
    const auto& image = *reinterpret_cast<const GraphImage*>(descriptor.image);
    return image.magic == kGraphMagic && image.layout_hash == GraphLayoutHash();
  }

  // Begins the quantum.
  RESIDENT_HOST_DEVICE void Begin() {
    if (quantum_.fresh == 0) return;
    Initialize();
    LookForAbort();
    if (!leaving()) BeginStep(nullptr, nullptr);
  }

  // Takes a chunk of a ready node. False: there is none at present, or workers must leave.
  RESIDENT_HOST_DEVICE bool Take(GraphChunk* chunk) {
    while (!leaving()) {
      u64 head = Load(&state_.head);
      if (head == Load(&state_.tail)) return false;
      const u64 entry = Load(&ready_[head & mask_]);
      const i32 ahead =
          static_cast<i32>(static_cast<u32>(entry >> 32) - static_cast<u32>(head + 1));
      if (ahead > 0) {
        // A later entry has replaced it: all chunks of its node had been taken.
        Exchange(&state_.head, head, head + 1);
        continue;
      }
      if (ahead < 0) {
        // Its entry is being written, or others have taken it meanwhile.
        if (Load(&state_.head) == head) return false;
        continue;
      }
      const u32 node = static_cast<u32>(entry);
      GraphNodeState& counters = node_states_[node];
      u32 unclaimed = Load(&counters.unclaimed);
      if (unclaimed == 0) {
        Exchange(&state_.head, head, head + 1);
        continue;
      }
      if (!Exchange(&counters.unclaimed, unclaimed, unclaimed - 1)) continue;
      if (unclaimed == 1) Exchange(&state_.head, head, head + 1);
      // The node cannot end before this chunk does.
      const u32 chunks = Load(&counters.chunks);
      *chunk = {node, chunks - unclaimed, chunks};
      return true;
    }
    return false;
  }
  RESIDENT_HOST_DEVICE bool HasReady() const { return Load(&state_.head) != Load(&state_.tail); }

  RESIDENT_HOST_DEVICE const GraphNode& node(const GraphChunk& chunk) const {
    return nodes_[chunk.node];
  }
  RESIDENT_HOST_DEVICE GraphOperator& op(const GraphChunk& chunk) const {
    return operators_[nodes_[chunk.node].op];
  }
  // Step of the quantum. REQUIRES: a chunk that is running.
  RESIDENT_HOST_DEVICE u32 step() const {
    return static_cast<u32>(state_.step - quantum_.first_step);
  }
  RESIDENT_HOST_DEVICE void FillArguments(const GraphChunk& chunk, ArgumentBlock* block) const {
    FillNodeArguments(image_, nodes_[chunk.node], state_.scalars,
                      quantum_.records + step() * quantum_.record_bytes, block);
  }

  // Whether the run is traced.
  RESIDENT_HOST_DEVICE bool traced() const { return quantum_.trace != 0; }
  // Adds an event to the trace; if there is no room, it is only counted. REQUIRES: traced().
  RESIDENT_HOST_DEVICE void Trace(const GraphTraceEvent& event) const {
    const u32 index = FetchIncrement(&quantum_.trace_events);
    if (index >= quantum_.trace_capacity) return;
    reinterpret_cast<GraphTraceEvent*>(quantum_.trace)[index] = event;
  }

  // The chunk has ended. If a node becomes ready that has one chunk, the worker may keep it:
  // `next->chunks` is not 0 then. Sets `more_ready` if others can take something. Returns whether
  // the node has ended.
  RESIDENT_HOST_DEVICE bool Finish(const GraphChunk& chunk, u32 status_and_detail, GraphChunk* next,
                                   bool* more_ready) {
    *next = GraphChunk();
    if (status_and_detail != 0) {
      Fail(chunk.node, status_and_detail);
      return false;
    }
    if (chunk.chunks > 1 && Decrement(&node_states_[chunk.node].unfinished) != 0) return false;
    const GraphNode& node = nodes_[chunk.node];
    const u32* const successors =
        ImagePart<u32>(image_, image_.successors_at) + node.first_successor;
    for (u32 i = 0; i < node.successors; ++i) {
      if (Decrement(&node_states_[successors[i]].pending) == 0) {
        MakeReady(successors[i], next, more_ready);
      }
    }
    if (Decrement(&state_.remaining) == 0) EndStep(next, more_ready);
    return true;
  }
  // Puts the node of a chunk that Finish returned into the queue, so that any worker can take it.
  RESIDENT_HOST_DEVICE void GiveBack(const GraphChunk& chunk) { Push(chunk.node, chunk.chunks); }

  // Whether workers must leave. The quantum has ended when all of them have.
  RESIDENT_HOST_DEVICE bool leaving() const { return Load(&quantum_.leave) != 0; }
  // The time is over.
  RESIDENT_HOST_DEVICE void Leave() { Store(&quantum_.leave, 1u); }
  // Ends the quantum if the host has set `abort`.
  RESIDENT_HOST_DEVICE void LookForAbort() {
    if (Load(&quantum_.abort) == 0) return;
    End(GraphEnd::kAborted);
  }
  RESIDENT_HOST_DEVICE u64 budget_ns() const { return quantum_.budget_ns; }

  // For the last worker that leaves: sets what the host reads. Returns the status of the quantum.
  RESIDENT_HOST_DEVICE u32 Conclude() {
    if (quantum_.end == static_cast<u32>(GraphEnd::kNone)) {
      quantum_.end = static_cast<u32>(GraphEnd::kQuantum);
    }
    quantum_.in_step = state_.begun;
    return quantum_.failure;
  }

 private:
  // A GPU's kernel needs its own forms of these five.
  template <typename T>
  RESIDENT_HOST_DEVICE static T Load(const T* at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
  }
  template <typename T>
  RESIDENT_HOST_DEVICE static void Store(T* at, T value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
  }
  template <typename T>
  RESIDENT_HOST_DEVICE static bool Exchange(T* at, T expected, T desired) {
    return __atomic_compare_exchange_n(at, &expected, desired, /*weak=*/false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
  }
  // Returns the new value.
  RESIDENT_HOST_DEVICE static u32 Decrement(u32* at) {
    return __atomic_sub_fetch(at, 1u, __ATOMIC_ACQ_REL);
  }
  template <typename T>
  RESIDENT_HOST_DEVICE static T FetchIncrement(T* at) {
    return __atomic_fetch_add(at, T{1}, __ATOMIC_ACQ_REL);
  }

  RESIDENT_HOST_DEVICE void Initialize() {
    for (u32 i = 0; i < image_.scalars; ++i) state_.scalars[i] = quantum_.scalars[i];
    state_.step = quantum_.first_step;
    state_.begun = 0;
    state_.head = 0;
    state_.tail = 0;
    for (u32 i = 0; i < image_.nodes; ++i) {
      node_states_[i] = {0, 0, 0, nodes_[i].predecessors};
    }
    for (u64 i = 0; i <= mask_; ++i) ready_[i] = 0;
  }

  // REQUIRES: no node runs.
  RESIDENT_HOST_DEVICE void BeginStep(GraphChunk* next, bool* more_ready) {
    Store(&state_.remaining, image_.nodes);
    state_.begun = 1;
    const u32* const roots = ImagePart<u32>(image_, image_.roots_at);
    for (u32 i = 0; i < image_.roots; ++i) MakeReady(roots[i], next, more_ready);
  }

  // `next`: null, or where to keep a node with one chunk.
  RESIDENT_HOST_DEVICE void MakeReady(u32 node, GraphChunk* next, bool* more_ready) {
    const GraphNode& record = nodes_[node];
    GraphNodeState& counters = node_states_[node];
    const auto chunks = static_cast<u32>(
        CountNodeChunks(image_, record, operators_[record.op], state_.scalars, workers_));
    counters.pending = record.predecessors;
    counters.unfinished = chunks;
    Store(&counters.chunks, chunks);
    if (next != nullptr && chunks == 1 && next->chunks == 0) {
      *next = {node, 0, 1};
      return;
    }
    Push(node, chunks);
    if (more_ready != nullptr) *more_ready = true;
  }

  RESIDENT_HOST_DEVICE void Push(u32 node, u32 chunks) {
    Store(&node_states_[node].unclaimed, chunks);
    const u64 position = FetchIncrement(&state_.tail);
    Store(&ready_[position & mask_], (position + 1) << 32 | node);
  }

  RESIDENT_HOST_DEVICE void EndStep(GraphChunk* next, bool* more_ready) {
    ++quantum_.steps;
    ++state_.step;
    state_.begun = 0;
    if (IsStopValue()) return End(GraphEnd::kStop);
    if (state_.step >= quantum_.last_step) return End(GraphEnd::kSteps);
    if (!UpdateScalars()) return End(GraphEnd::kScalarRange);
    if (quantum_.steps >= quantum_.max_steps) return Leave();
    LookForAbort();
    // Otherwise the next quantum begins the step, if there is one.
    if (!leaving()) BeginStep(next, more_ready);
  }

  RESIDENT_HOST_DEVICE bool IsStopValue() const {
    if (image_.stop_address == 0) return false;
    const i64 value = image_.stop_dtype == DType::kI32
                          ? *reinterpret_cast<const i32*>(image_.stop_address)
                          : *reinterpret_cast<const i64*>(image_.stop_address);
    const i64* const stops = ImagePart<i64>(image_, image_.stop_values_at);
    for (u32 i = 0; i < image_.stop_values; ++i) {
      if (stops[i] == value) return true;
    }
    return false;
  }

  // False: a scalar would leave its range; none has changed then.
  RESIDENT_HOST_DEVICE bool UpdateScalars() {
    const GraphUpdate* const updates = ImagePart<GraphUpdate>(image_, image_.updates_at);
    double values[kMaxGraphScalars];
    for (u32 i = 0; i < image_.updates; ++i) {
      const GraphUpdate& update = updates[i];
      values[i] = ScaleScalar(update.factor, state_.scalars[update.scalar], update.addend);
      if (!(values[i] >= update.min && values[i] <= update.max)) return false;
    }
    for (u32 i = 0; i < image_.updates; ++i) state_.scalars[updates[i].scalar] = values[i];
    return true;
  }

  RESIDENT_HOST_DEVICE void End(GraphEnd end) {
    Exchange(&quantum_.end, static_cast<u32>(GraphEnd::kNone), static_cast<u32>(end));
    Leave();
  }

  RESIDENT_HOST_DEVICE void Fail(u32 node, u32 status_and_detail) {
    if (Exchange(&quantum_.end, static_cast<u32>(GraphEnd::kNone),
                 static_cast<u32>(GraphEnd::kFailed))) {
      quantum_.failed_node = node;
      quantum_.failure = status_and_detail;
      quantum_.failed_step = state_.step;
    }
    Leave();
  }

  const GraphImage& image_;
  GraphState& state_;
  GraphQuantum& quantum_;
  const GraphNode* const nodes_;
  GraphOperator* const operators_;
  GraphNodeState* const node_states_;
  u64* const ready_;
  const u64 mask_;
  const u32 workers_;
};

}  // namespace resident

#endif  // RESIDENT_KERNELS_GRAPH_GRAPH_WALK_H_
