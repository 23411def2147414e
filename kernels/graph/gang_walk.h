// GangWalk: how the members of a gang execute a graph together (graph_task.h): what a member
// executes next, what it waits for, and the end of a step. It does not call operators.
//
//   Open (only rank 0, the leader) ─▶ Join ─▶ (nodes) ─▶ Save ─▶ Conclude (only the last one)
//
// A member works off its list of nodes, whose order is that of the graph. Before a node it waits
// until the counters of the node's predecessors have the values that they have once all members of
// these nodes have ended them in this step. The counters never decrease. At the end of its list a
// member reports to the leader; when all have, the leader ends the step, and the others wait until
// it begins the next one.
//
// While the operator runs, Prepare reads what the next node needs, so that little but the wait
// remains between two nodes. Its loads do not depend on each other: the record of a node, which
// says where the others are, is read one node earlier, and its index in the list two nodes earlier.
// An operator that waits for its inputs itself is started before the wait, and reads meanwhile what
// no node writes.
//
// Invariants:
//   1. The first node that has not ended, in the order of the graph, waits for no node, and its
//      members reach it, because all nodes before it have ended. So the members never wait for each
//      other in a circle.
//   2. A member that leaves has executed all nodes before its position in this step, and none
//      after. Another quantum can therefore continue from the positions and the counters.
//   3. The scalars change only between two steps, when no member executes a node.
//
// Memory ordering: what a member wrote is visible to the members that wait for its node: the
// counter is incremented with release and read with acquire. The caller orders the threads of a
// member: it calls Finish after a barrier, and has another one between Next and the operator, or
// lets an operator that was started early acquire what it releases behind Next.
//
// Thread safety: each member has its own object. On a GPU all lanes of one warp call its members
// together; what decides where they go on is lane 0's value. `Platform` has the memory operations
// of the engine:
//
//   kLanes, Lane(), Sync(), All(bool), First(T)              the lanes of a member
//   Load, LoadAcquire, StoreRelease, AddRelease, Add,        of memory that members share
//   FetchAdd, Exchange
//   LoadHost                                                 of memory that the host writes
//   Clock()                                                  in nanoseconds
//   Wait(polls)                                              called in each loop that waits; not
//                                                            static
//   TakesPages()                                             whether the member takes matrices from
//                                                            streams (graph_stream.h); not static
//   InputsOfTurn()                                           of an operator that does: how its wait
//                                                            for the nodes before ended; not static
//
//   GangWalk<Platform> walk(platform, descriptor, rank, workers, &fast_memory);
//   if (rank == 0) walk.Open(); else ... wait until the leader has ...
//   walk.Join();
//   for (bool runs = false;;) {
//     walk.Prepare();
//     if (runs) ... wait for the operator, execute further chunks ...
//     early = ... it ended OK ... && walk.starts_early();
//     if (early) ... take the arguments, start the operator, which awaits its inputs ...
//     if (runs) walk.Finish(status_and_detail, begin_ns, end_ns);
//     runs = walk.Next();
//     if (early) ... the inputs are ready, or, if !runs, will not be ...
//     if (runs) {
//       if (!early) ... take the arguments, start the operator ...
//     } else if (walk.leaves()) {
//       break;
//     }
//   }
//   walk.Save();
#ifndef RESIDENT_KERNELS_GRAPH_GANG_WALK_H_
#define RESIDENT_KERNELS_GRAPH_GANG_WALK_H_

#include "kernels/graph/gang_events.h"
#include "kernels/graph/gang_memory.h"
#include "kernels/graph/graph_arguments.h"
#include "kernels/graph/graph_task.h"
#include "kernels/layout/platform.h"
#include "kernels/sdk/block.h"

namespace resident {

// Polls of a wait for predecessors that acquire (about 5 us on a GPU), which most waits of a decode
// are shorter than: a further load with acquire behind the last poll would take 0.18 us.
inline constexpr u32 kAcquiringPolls = 32;

template <typename Platform>
class GangWalk : public GangView {
 public:
  // `workers`: of the engine.
  RESIDENT_HOST_DEVICE GangWalk(Platform& platform, const GraphDescriptor& descriptor, u32 rank,
                                u32 workers, GangMemory* memory)
      : GangView(memory), platform_(platform) {
    auto* const state = reinterpret_cast<GangState*>(descriptor.state);
    if (Platform::Lane() == 0) {
      memory_.fixed = {reinterpret_cast<const GraphImage*>(descriptor.image),
                       state,
                       reinterpret_cast<GraphQuantum*>(descriptor.quantum),
                       reinterpret_cast<GraphOperator*>(state + 1),
                       nullptr,
                       0,
                       descriptor.gang,
                       rank,
                       workers};
    }
    Platform::Sync();
  }

  // The leader begins the quantum. False: the image is not one of this build for this gang; then
  // only Refuse may be called.
  RESIDENT_HOST_DEVICE bool Open() {
    if (gang() == 0 || image().magic != kGraphMagic || image().layout_hash != GraphLayoutHash() ||
        image().gang != gang()) {
      return false;
    }
    // Each access to the host's memory takes more than 1 us: the quantum is read at once.
    ReadHost(&quantum(), sizeof(GraphQuantum), &memory_.quantum);
    const GraphQuantum& quantum = memory_.quantum;
    ReadHost(reinterpret_cast<const void*>(quantum.operators),
             image().operators * u32{sizeof(GraphOperator)}, operators());
    const bool fresh = quantum.fresh != 0;
    if (fresh) {
      for (u32 i = Platform::Lane(); i < image().scalars; i += Platform::kLanes) {
        state().scalars[i] = quantum.scalars[i];
      }
      Clear(positions(), gang());
      Clear(ended(), image().nodes);
    }
    // A run that is aborted before the members begin is not within its first step.
    const bool aborted = quantum.abort != 0;
    if (Platform::Lane() == 0) {
      if (fresh) state().arrived = state().begun = 0;
      state().step = quantum.first_step;
      state().steps = state().begun;
      state().quantum_steps = 0;
      state().end = static_cast<u32>(aborted ? GraphEnd::kAborted : GraphEnd::kNone);
      state().failure = 0;
      state().between_steps = aborted && fresh;
      state().operators = quantum.operators;
      state().records = quantum.records;
      state().record_bytes = quantum.record_bytes;
      state().trace = quantum.trace;
      state().trace_capacity = quantum.trace_capacity;
      state().start_ns = Platform::Clock();
      state().leave = aborted;
      state().trace_events = 0;
    }
    memory_.last_step = quantum.last_step;
    memory_.max_steps = quantum.max_steps;
    memory_.budget_ns = quantum.budget_ns;
    Platform::Sync();
    return true;
  }

  // A member begins. REQUIRES: what Open wrote is visible to it.
  RESIDENT_HOST_DEVICE void Join() {
    const u32* const begins = ImagePart<u32>(image(), image().list_begins_at);
    const u32 begin = begins[rank()];
    if (Platform::Lane() == 0) {
      memory_.fixed.list = ImagePart<u32>(image(), image().lists_at) + begin;
      memory_.fixed.size = begins[rank() + 1] - begin;
    }
    Platform::Sync();
    // All lanes write the same values.
    const u64 start_ns = state().start_ns;
    memory_.start_ns = memory_.step_begin_ns = memory_.looked_ns = memory_.free_ns = start_ns;
    memory_.trace = state().trace;
    memory_.first_step = memory_.step = state().step;
    memory_.pages = 0;
    Platform::Sync();
    steps_ = state().steps;
    const u32 position = positions()[rank()];
    arrived_ = position == kGangArrived;
    position_ = arrived_ ? size() : position;
    // A member that has come to the end of the step reads them when the next one has begun, which
    // may be now.
    if (!arrived_ || rank() == 0) ReadScalars();
    takes_pages_ = platform_.TakesPages() && AllTakePages();
    if (size() == 0) return;
    const u32 at = InList(position_);
    const u32 node = list()[at];
    TakeEntry(node, RequestEntry(node, InList(at + 1)));
  }

  // Reads the record, the arguments and the first predecessors of the next node of the list. The
  // caller has taken what was prepared before.
  RESIDENT_HOST_DEVICE void Prepare() {
    Platform::Sync();  // All lanes have read what was prepared before.
    if (rank() == 0) LookForEnd<Platform>(&memory_);
    const u32 leave = Platform::Load(&state().leave);
    if (position_ == size()) {
      leaves_ = Platform::First(leave) != 0;
      return;
    }
    const GraphNode& record = memory_.ahead.node;
    const u32 behind = memory_.ahead.behind;
    const u32 arguments = record.arguments;
    const u32 patches = record.patches;
    const u32 first_patch = record.first_patch;
    const bool from_stream = takes_pages_ && record.stream != 0;
    if (Platform::Lane() == 0) {
      const GangNode& members = memory_.ahead.members;
      GangStep& next = memory_.next;
      next.node = memory_.ahead.index;
      next.op = record.op;
      next.arguments = arguments;
      next.waits = record.predecessors;
      next.first = members.first;
      next.ranks = members.ranks;
      next.signals = members.signals;
      next.starts_early = members.starts_early;
      next.first_wait = members.first_wait;
      next.index = rank() >= next.first ? rank() - next.first : rank() + gang() - next.first;
      next.chunks = 1;
      if (takes_pages_) memory_.turn.stream = record.stream;
    }
    // Independent of each other: the operator, the predecessors, the entry behind, the arguments.
    const RowWords row = RequestRow(record.op, from_stream ? record.stream : 0);
    ReadWait(record.predecessors, memory_.ahead.members.first_wait, Platform::Lane());
    const EntryWords ahead = RequestEntry(behind, InList(InList(position_ + 1) + 1));
    CopyArguments(ImagePart<Argument>(image(), image().arguments_at) + record.first_argument,
                  arguments);
    // All lanes have read the entry: CopyArguments ends with Sync.
    TakeRow(row);
    TakeEntry(behind, ahead);
    if (Platform::Lane() == 0) {
      GangStep& next = memory_.next;
      const GraphOperator& op = memory_.op;
      next.operator_slot = op.slot;
      next.starts_early &= op.starts_early & kStartsEarly;
      if (patches != 0) {
        PatchArguments(ImagePart<GraphPatch>(image(), image().patches_at) + first_patch, patches,
                       memory_.scalars, state().records + step() * state().record_bytes,
                       &memory_.arguments);
      }
      if (from_stream) {
        PrepareTurn();
      } else if (op.split_parameter >= 0) {
        next.chunks = static_cast<u32>(
            CountGangChunks(CountChunksOf(memory_.arguments, op, workers()), op.limit, next.ranks));
      }
    }
    leaves_ = Platform::First(leave) != 0;
    Platform::Sync();
  }

  // Whether the operator of the node that was prepared may be started before Next: Next then
  // decides whether its inputs become ready. REQUIRES: the node before has ended OK.
  RESIDENT_HOST_DEVICE bool starts_early() const {
    return position_ != size() && !leaves_ && memory_.next.starts_early != 0 &&
           memory_.next.index < memory_.next.chunks;
  }

  // Waits until the node that was prepared may be executed; its arguments are in the fast memory.
  // False: the step has ended, and the first node of the next one is to be prepared, or the member
  // must leave.
  RESIDENT_HOST_DEVICE bool Next() {
    if (position_ == size()) {
      leaves_ = !EndStep();
      return false;
    }
    // Before the wait, so that it takes no time behind it: what was executed before has ended.
    if (Platform::Lane() == 0) memory_.done = memory_.next;
    leaves_ = leaves_ || !(has_turn() ? AwaitOperator() : AwaitPredecessors());
    if (leaves_) return false;
    ++position_;
    return true;
  }
  RESIDENT_HOST_DEVICE bool leaves() const { return leaves_; }

  // Of the node that was prepared.
  RESIDENT_HOST_DEVICE u32 node() const { return memory_.next.node; }
  RESIDENT_HOST_DEVICE u32 operator_slot() const { return memory_.next.operator_slot; }
  RESIDENT_HOST_DEVICE u32 arguments() const { return memory_.next.arguments; }
  RESIDENT_HOST_DEVICE u32 argument_bytes() const {
    return arguments() * static_cast<u32>(sizeof(Argument));
  }
  // The chunks of the node that this member executes.
  RESIDENT_HOST_DEVICE u32 first_chunk() const { return memory_.next.index; }
  RESIDENT_HOST_DEVICE u32 chunks() const { return memory_.next.chunks; }
  RESIDENT_HOST_DEVICE u32 stride() const { return memory_.next.ranks; }

  // The member has executed all its chunks of the node before the one that was prepared, from
  // begin_ns to end_ns.
  RESIDENT_HOST_DEVICE void Finish(u32 status_and_detail, u64 begin_ns, u64 end_ns) {
    if (memory_.trace != 0) TraceNode<Platform>(&memory_, begin_ns, end_ns);
    if (status_and_detail != 0) {
      --position_;  // The node has not ended.
      leaves_ = true;
      Fail<Platform>(&memory_, memory_.done.node, status_and_detail);
      return;
    }
    if (Platform::Lane() == 0) {
      if (memory_.done.signals != 0) Platform::AddRelease(&ended()[memory_.done.node], 1u);
      GraphOperator& op = operators()[memory_.done.op];
      Platform::Add(&op.ns, end_ns - begin_ns);
      if (memory_.done.index == 0) Platform::Add(&op.tasks, u64{1});
      memory_.free_ns = end_ns;
    }
  }

  // The member leaves. The caller makes what it wrote visible to the last one.
  RESIDENT_HOST_DEVICE void Save() {
    if (Platform::Lane() != 0) return;
    positions()[rank()] = arrived_ ? kGangArrived : position_;
  }

  // For the last member that leaves: sets what the host reads. Returns the status of the quantum.
  RESIDENT_HOST_DEVICE u32 Conclude() {
    auto* const rows = reinterpret_cast<GraphOperator*>(Platform::Load(&state().operators));
    for (u32 row = Platform::Lane(); row < image().operators; row += Platform::kLanes) {
      rows[row].tasks = Platform::Load(&operators()[row].tasks);
      rows[row].ns = Platform::Load(&operators()[row].ns);
    }
    const u32 end = Platform::Load(&state().end);
    const u32 failure = Platform::Load(&state().failure);
    if (Platform::Lane() == 0) {
      quantum().end =
          end == static_cast<u32>(GraphEnd::kNone) ? static_cast<u32>(GraphEnd::kQuantum) : end;
      quantum().steps = Platform::Load(&state().quantum_steps);
      quantum().in_step = Platform::Load(&state().between_steps) == 0;
      quantum().failed_node = Platform::Load(&state().failed_node);
      quantum().failure = failure;
      quantum().failed_step = Platform::Load(&state().failed_step);
      quantum().trace_events = Platform::Load(&state().trace_events);
    }
    return failure;
  }

  // Instead of all the others, if Open returned false. Returns the status of the quantum.
  RESIDENT_HOST_DEVICE u32 Refuse() {
    if (Platform::Lane() == 0) quantum().end = static_cast<u32>(GraphEnd::kBadImage);
    return static_cast<u32>(CompletionStatus::kInternal);
  }

  // --- Streams. Of the node that was prepared, which is executed by an operator that takes its
  // matrices from a stream: it waits for the nodes before itself, and releases what it wrote to
  // those behind it. Next waits until it has seen how the wait ended.

  RESIDENT_HOST_DEVICE bool has_turn() const { return takes_pages_ && memory_.turn.stream != 0; }
  RESIDENT_HOST_DEVICE const GangTurn& turn() const { return memory_.turn; }
  // Nodes that it waits for.
  RESIDENT_HOST_DEVICE u32 waits() const { return memory_.next.waits; }
  // The counter that the calling lane's part of the wait is for, and the value that it must have;
  // null: it need not wait.
  RESIDENT_HOST_DEVICE const u32* counter() const {
    return wait_node_ == kNoNode ? nullptr : &ended()[wait_node_];
  }
  RESIDENT_HOST_DEVICE u32 target() const { return wait_target_; }
  // The counter that is incremented with release if turn().signals is not 0.
  RESIDENT_HOST_DEVICE u32* signal() const { return &ended()[memory_.next.node]; }
  // Not 0: the wait ends without its inputs.
  RESIDENT_HOST_DEVICE const u32* leave() const { return &state().leave; }
  // Whether it waits for the node before it in the member's list.
  RESIDENT_HOST_DEVICE bool AwaitsNodeBefore() const {
    return !Platform::All(wait_node_ != memory_.done.node);
  }

  // All streams of the image, and the one that the member comes to next. REQUIRES: Join has
  // returned.
  RESIDENT_HOST_DEVICE const GraphStream* streams() const {
    return ImagePart<GraphStream>(image(), image().streams_at);
  }
  RESIDENT_HOST_DEVICE u32 stream_count() const { return image().streams; }
  // Whether the member executes the nodes that have one from pages.
  RESIDENT_HOST_DEVICE bool takes_pages() const { return takes_pages_; }
  RESIDENT_HOST_DEVICE u32 FirstStream() const {
    const GraphNode* const nodes = ImagePart<GraphNode>(image(), image().nodes_at);
    for (u32 i = position_; i < size(); ++i) {
      const u32 stream = nodes[list()[i]].stream;
      if (stream != 0) return stream - 1;
    }
    return 0;
  }

 private:
  static constexpr u32 kNoNode = ~0u;

  // Whether there are streams, and the operators of all their nodes take pages.
  RESIDENT_HOST_DEVICE bool AllTakePages() const {
    bool all = stream_count() != 0;
    for (u32 i = Platform::Lane(); i < stream_count(); i += Platform::kLanes) {
      all = all && (operators()[streams()[i].op].starts_early & kTakesPages) != 0;
    }
    return Platform::All(all);
  }

  // Waits until an operator that takes pages has seen how its wait ended. False: without inputs.
  RESIDENT_HOST_DEVICE bool AwaitOperator() {
    for (u32 polls = 0;; ++polls) {
      const auto state =
          static_cast<InputState>(Platform::First(static_cast<u32>(platform_.InputsOfTurn())));
      if (state != InputState::kAwaited) return state == InputState::kReady;
      if (rank() == 0) LookForEnd<Platform>(&memory_);
      platform_.Wait(polls);
    }
  }

  // Copies memory of the host: all that fits in registers is requested before the first of it is
  // stored. `bytes`: a multiple of 8.
  RESIDENT_HOST_DEVICE static void ReadHost(const void* from, u32 bytes, void* to) {
    constexpr u32 kRounds = 4;
    const u32 words = bytes / u32{sizeof(u64)};
    RESIDENT_UNROLL(1)
    for (u32 base = Platform::Lane(); base < words; base += kRounds * Platform::kLanes) {
      u64 loaded[kRounds];
      RESIDENT_UNROLL(4)
      for (u32 k = 0; k < kRounds; ++k) {
        const u32 i = base + k * Platform::kLanes;
        if (i < words) loaded[k] = Platform::LoadHost(static_cast<const u64*>(from) + i);
      }
      RESIDENT_UNROLL(4)
      for (u32 k = 0; k < kRounds; ++k) {
        const u32 i = base + k * Platform::kLanes;
        void* const word = static_cast<unsigned char*>(to) + u64{i} * sizeof(u64);
        if (i < words) __builtin_memcpy(__builtin_assume_aligned(word, 8), &loaded[k], sizeof(u64));
      }
    }
    Platform::Sync();
  }

  RESIDENT_HOST_DEVICE static void Clear(u32* words, u32 count) {
    RESIDENT_UNROLL(4)
    for (u32 i = Platform::Lane(); i < count; i += Platform::kLanes) words[i] = 0;
  }

  RESIDENT_HOST_DEVICE void ReadScalars() {
    for (u32 i = Platform::Lane(); i < image().scalars; i += Platform::kLanes) {
      memory_.scalars[i] = Platform::Load(&state().scalars[i]);
    }
    Platform::Sync();
  }

  RESIDENT_HOST_DEVICE void CopyArguments(const Argument* from, u32 count) {
    struct alignas(16) Piece {
      u64 words[2];
    };
    static_assert(sizeof(Argument) % sizeof(Piece) == 0, "");
    constexpr u32 kPieces = kMaxArguments * sizeof(Argument) / sizeof(Piece);
    constexpr u32 kRounds = (kPieces + Platform::kLanes - 1) / Platform::kLanes;
    const u32 pieces = count * static_cast<u32>(sizeof(Argument) / sizeof(Piece));
    const auto* const source = reinterpret_cast<const Piece*>(from);
    auto* const target = reinterpret_cast<Piece*>(&memory_.arguments);
    Piece loaded[kRounds];
    RESIDENT_UNROLL(kRounds)
    for (u32 k = 0; k < kRounds; ++k) {
      const u32 i = k * Platform::kLanes + Platform::Lane();
      if (i < pieces) loaded[k] = source[i];
    }
    RESIDENT_UNROLL(kRounds)
    for (u32 k = 0; k < kRounds; ++k) {
      const u32 i = k * Platform::kLanes + Platform::Lane();
      if (i < pieces) target[i] = loaded[k];
    }
    Platform::Sync();
  }

  // A position of the list: behind the last one is the first one.
  RESIDENT_HOST_DEVICE u32 InList(u32 position) const {
    return position < size() ? position : position - size();
  }

  // The words of a GangEntry that are read: a lane has some of them.
  static constexpr u32 kNodeWords = sizeof(GraphNode) / sizeof(u32);
  static constexpr u32 kMemberWords = sizeof(GangNode) / sizeof(u32);
  static constexpr u32 kEntryWords = kNodeWords + kMemberWords + 1;
  static constexpr u32 kEntryRounds = (kEntryWords + Platform::kLanes - 1) / Platform::kLanes;
  struct EntryWords {
    u32 words[kEntryRounds];
  };
  // Loads the entry of a node. `position`: that behind it in the list.
  RESIDENT_HOST_DEVICE EntryWords RequestEntry(u32 node, u32 position) const {
    const auto* const record = reinterpret_cast<const unsigned char*>(
        ImagePart<GraphNode>(image(), image().nodes_at) + node);
    const auto* const members = reinterpret_cast<const unsigned char*>(
        ImagePart<GangNode>(image(), image().gang_nodes_at) + node);
    EntryWords entry = {};
    RESIDENT_UNROLL(kEntryRounds)
    for (u32 k = 0; k < kEntryRounds; ++k) {
      const u32 i = k * Platform::kLanes + Platform::Lane();
      if (i >= kEntryWords) continue;
      const unsigned char* from = record + i * sizeof(u32);
      if (i >= kNodeWords) from = members + (i - kNodeWords) * sizeof(u32);
      if (i == kEntryWords - 1) from = reinterpret_cast<const unsigned char*>(list() + position);
      __builtin_memcpy(&entry.words[k], __builtin_assume_aligned(from, sizeof(u32)), sizeof(u32));
    }
    return entry;
  }
  RESIDENT_HOST_DEVICE void TakeEntry(u32 node, const EntryWords& entry) {
    static_assert(__builtin_offsetof(GangEntry, members) == kNodeWords * sizeof(u32), "");
    static_assert(__builtin_offsetof(GangEntry, behind) == (kEntryWords - 1) * sizeof(u32), "");
    auto* const to = reinterpret_cast<unsigned char*>(&memory_.ahead);
    RESIDENT_UNROLL(kEntryRounds)
    for (u32 k = 0; k < kEntryRounds; ++k) {
      const u32 i = k * Platform::kLanes + Platform::Lane();
      if (i >= kEntryWords) continue;
      __builtin_memcpy(__builtin_assume_aligned(to + i * sizeof(u32), sizeof(u32)), &entry.words[k],
                       sizeof(u32));
    }
    if (Platform::Lane() == 0) memory_.ahead.index = node;
    Platform::Sync();
  }

  // Loads the row of an operator, and the stream with a number, if it is not 0: as RequestEntry.
  static constexpr u32 kOperatorWords = __builtin_offsetof(GraphOperator, tasks) / sizeof(u32);
  static constexpr u32 kStreamWords = sizeof(GraphStream) / sizeof(u32);
  static constexpr u32 kRowRounds =
      (kOperatorWords + kStreamWords + Platform::kLanes - 1) / Platform::kLanes;
  struct RowWords {
    u32 words[kRowRounds];
  };
  RESIDENT_HOST_DEVICE RowWords RequestRow(u32 op, u32 stream) const {
    const auto* const row = reinterpret_cast<const u32*>(operators() + op);
    const auto* const words = reinterpret_cast<const u32*>(streams() + (stream - 1));
    const u32 count = stream == 0 ? kOperatorWords : kOperatorWords + kStreamWords;
    RowWords loaded = {};
    RESIDENT_UNROLL(kRowRounds)
    for (u32 k = 0; k < kRowRounds; ++k) {
      const u32 i = k * Platform::kLanes + Platform::Lane();
      const u32* const from = i < kOperatorWords ? row + i : words + (i - kOperatorWords);
      if (i < count) {
        __builtin_memcpy(&loaded.words[k], __builtin_assume_aligned(from, sizeof(u32)),
                         sizeof(u32));
      }
    }
    return loaded;
  }
  // The caller executes Sync.
  RESIDENT_HOST_DEVICE void TakeRow(const RowWords& loaded) {
    auto* const op = reinterpret_cast<unsigned char*>(&memory_.op);
    auto* const stream = reinterpret_cast<unsigned char*>(&memory_.stream);
    RESIDENT_UNROLL(kRowRounds)
    for (u32 k = 0; k < kRowRounds; ++k) {
      const u32 i = k * Platform::kLanes + Platform::Lane();
      if (i >= kOperatorWords + kStreamWords) continue;
      unsigned char* const to =
          i < kOperatorWords ? op + i * sizeof(u32) : stream + (i - kOperatorWords) * sizeof(u32);
      __builtin_memcpy(__builtin_assume_aligned(to, sizeof(u32)), &loaded.words[k], sizeof(u32));
    }
  }

  // (one lane) The node that is prepared takes its matrices from memory_.stream.
  RESIDENT_HOST_DEVICE void PrepareTurn() {
    GangTurn& turn = memory_.turn;
    GangStep& next = memory_.next;
    const GraphStream& stream = memory_.stream;
    turn.pages = ShareOf(stream, rank(), gang());
    turn.pages_before = memory_.pages;
    turn.form = stream.form;
    turn.normalized = stream.normalized;
    turn.columns = stream.columns;
    turn.signals = next.signals;
    memory_.pages += turn.pages.count;
    next.signals = 0;
    next.chunks = next.ranks;  // Each member takes its pages.
  }

  // A lane's predecessor: that with this index among the `count` ones of the node.
  RESIDENT_HOST_DEVICE void ReadWait(u32 count, u32 first, u32 index) {
    wait_node_ = kNoNode;
    if (index >= count) return;
    const GangWait wait = ImagePart<GangWait>(image(), image().waits_at)[first + index];
    // Its own nodes have ended, because they are before this one.
    if (wait.ranks == 1 && wait.first == rank()) return;
    wait_node_ = wait.node;
    wait_target_ = wait.ranks * (steps_ + 1);
  }

  RESIDENT_HOST_DEVICE bool AwaitPredecessors() {
    for (u32 group = 0; group < memory_.next.waits; group += Platform::kLanes) {
      if (group != 0) {
        ReadWait(memory_.next.waits, memory_.next.first_wait, group + Platform::Lane());
      }
      bool reached = wait_node_ == kNoNode;
      // Different signs: the counter has not reached the target.
      const auto has_target = [&](u32 value) {
        return static_cast<i32>(value - wait_target_) >= 0;
      };
      u32 polls = 0;
      for (;; ++polls) {
        const bool leave = Platform::Load(&state().leave) != 0;
        if (!reached) {
          // On a GPU each load with acquire empties the L1 cache, which other tasks use meanwhile:
          // a long wait does without.
          const u32* const counter = &ended()[wait_node_];
          reached = has_target(polls < kAcquiringPolls ? Platform::LoadAcquire(counter)
                                                       : Platform::Load(counter));
        }
        if (Platform::All(reached)) break;
        if (Platform::First(leave)) return false;
        if (rank() == 0) LookForEnd<Platform>(&memory_);
        platform_.Wait(polls);
      }
      if (polls >= kAcquiringPolls && wait_node_ != kNoNode) {
        (void)Platform::LoadAcquire(&ended()[wait_node_]);
      }
    }
    Platform::Sync();
    return true;
  }

  // The member has come to the end of its list. Returns whether another step begins.
  RESIDENT_HOST_DEVICE bool EndStep() {
    if (!arrived_) {
      arrived_ = true;
      if (gang() > 1 && Platform::Lane() == 0) Platform::AddRelease(&state().arrived, 1u);
    }
    if (rank() == 0) {
      if (gang() > 1) {
        const u32 target = gang() * (steps_ + 1);
        for (u32 polls = 0; Platform::First(Platform::LoadAcquire(&state().arrived)) != target;
             ++polls) {
          if (Platform::First(Platform::Load(&state().leave)) != 0) return false;
          LookForEnd<Platform>(&memory_);
          platform_.Wait(polls);
        }
      }
      if (!LeadStep<Platform>(&memory_, steps_)) return false;
    } else {
      for (u32 polls = 0;; ++polls) {
        const u32 leave = Platform::First(Platform::LoadAcquire(&state().leave));
        // If the step has begun before that, the member leaves at its beginning.
        if (Platform::First(Platform::LoadAcquire(&state().begun)) != steps_) break;
        if (leave != 0) return false;
        platform_.Wait(polls);
      }
      if (Platform::Lane() == 0) ++memory_.step;  // The leader does it in LeadStep.
      ReadScalars();
    }
    arrived_ = false;
    position_ = 0;
    ++steps_;
    return true;
  }

  Platform& platform_;

  u32 position_ = 0;
  // Whether the member has reported the end of the step.
  bool arrived_ = false;
  bool leaves_ = false;
  // Steps that have ended since the state was initialized.
  u32 steps_ = 0;

  // A lane's predecessor, and the value that its counter must have; kNoNode: it need not wait.
  u32 wait_node_ = kNoNode;
  u32 wait_target_ = 0;
  // Whether nodes that have a stream are executed from pages.
  bool takes_pages_ = false;
};

}  // namespace resident

#endif  // RESIDENT_KERNELS_GRAPH_GANG_WALK_H_
