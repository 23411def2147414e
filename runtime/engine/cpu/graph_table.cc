#include "runtime/engine/cpu/graph_table.h"

#include <algorithm>

#include "runtime/base/time_source.h"

namespace resident {
namespace {

constexpr uint64_t kTurnNs = GraphTable::kTurn.count();

// Counts ended tasks and their time for one operator after the other, so that workers seldom write
// to the counters that they share.
class TaskCounter {
 public:
  ~TaskCounter() { Flush(); }
  void Add(GraphOperator* op, uint64_t ns, bool ended) {
    if (op != op_) {
      Flush();
      op_ = op;
    }
    ns_ += ns;
    tasks_ += ended;
  }

 private:
  void Flush() {
    if (op_ == nullptr) return;
    __atomic_fetch_add(&op_->tasks, tasks_, __ATOMIC_RELAXED);
    __atomic_fetch_add(&op_->ns, ns_, __ATOMIC_RELAXED);
    tasks_ = ns_ = 0;
  }

  GraphOperator* op_ = nullptr;
  u64 tasks_ = 0;
  u64 ns_ = 0;
};

}  // namespace

void GraphTable::Open(uint64_t sequence, const GraphDescriptor& descriptor) {
  const uint64_t now = SteadyNs();
  constexpr auto kRefused = static_cast<uint32_t>(CompletionStatus::kInternal);
  if (!GraphWalk::IsValid(descriptor)) {
    reinterpret_cast<GraphQuantum*>(descriptor.quantum)->end =
        static_cast<uint32_t>(GraphEnd::kBadImage);
    return engine_.CompleteGraph(sequence, now, kRefused);
  }
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [](Entry& each) {
    return !each.taken.exchange(true, std::memory_order_acq_rel);
  });
  // The front end submits at most kMaxOpenGraphs at a time.
  if (entry == entries_.end()) return engine_.CompleteGraph(sequence, now, kRefused);
  entry->descriptor = descriptor;
  entry->sequence = sequence;
  entry->start_ns = now;
  Walk(*entry).Begin();
  entry->word.store(kOpen, std::memory_order_release);
  open_.fetch_add(1, std::memory_order_seq_cst);
  engine_.WakeWorkers();
}

bool GraphTable::Join(Entry& entry) {
  uint64_t word = entry.word.load(std::memory_order_relaxed);
  while ((word & (kOpen | kOver)) == kOpen) {
    if (entry.word.compare_exchange_weak(word, word + 1, std::memory_order_acquire)) return true;
  }
  return false;
}

void GraphTable::Leave(Entry& entry, GraphWalk& walk) {
  const uint64_t over = walk.leaving() ? kOver : 0;
  uint64_t word = entry.word.load(std::memory_order_relaxed);
  uint64_t left = 0;
  do {
    left = (word | over) - 1;
  } while (!entry.word.compare_exchange_weak(word, left, std::memory_order_acq_rel));
  // No worker joins a graph that is over, so that exactly one worker passes the next line.
  if ((left & kWorkers) != 0 || (left & kOver) == 0) return;
  const uint32_t status = walk.Conclude();
  const uint64_t sequence = entry.sequence;
  const uint64_t start_ns = entry.start_ns;
  // The entry is free before the host can submit the next quantum.
  entry.word.store(0, std::memory_order_relaxed);
  entry.taken.store(false, std::memory_order_release);
  engine_.CompleteGraph(sequence, start_ns, status);
  open_.fetch_sub(1, std::memory_order_seq_cst);
}

bool GraphTable::HasReady() {
  if (!any_open()) return false;
  for (Entry& entry : entries_) {
    if (!Join(entry)) continue;
    GraphWalk walk = Walk(entry);
    const bool ready = walk.HasReady();
    Leave(entry, walk);
    if (ready) return true;
  }
  return false;
}

bool GraphTable::Work(uint32_t worker, BlockState& state) {
  if (!any_open()) return false;
  Worker& own = workers_[worker];
  for (uint32_t i = 0; i < kMaxOpenGraphs; ++i) {
    const uint32_t index = (own.next + i) % kMaxOpenGraphs;
    Entry& entry = entries_[index];
    if (!Join(entry)) continue;
    GraphWalk walk = Walk(entry);
    walk.LookForAbort();
    GraphChunk chunk;
    const bool taken = walk.Take(&chunk);
    if (taken) TakeTurn(entry, walk, chunk, worker, state);
    Leave(entry, walk);
    if (!taken) continue;
    own.next = index + 1;
    return true;
  }
  if (own.idle_since_ns == 0) own.idle_since_ns = SteadyNs();
  return false;
}

void GraphTable::TakeTurn(const Entry& entry, GraphWalk& walk, GraphChunk chunk, uint32_t worker,
                          BlockState& state) {
  TaskCounter counter;
  const uint32_t token = entry.descriptor.token;
  const bool traced = walk.traced();
  const uint64_t begin = SteadyNs();
  uint64_t before = begin;
  uint64_t& idle_since = workers_[worker].idle_since_ns;
  // The wait for a chunk begins no earlier than the quantum.
  idle_since = idle_since == 0 ? begin : std::max(idle_since, entry.start_ns);
  while (true) {
    GraphOperator& op = walk.op(chunk);
    const uint32_t step = walk.step();
    engine_.NoteGraphTask(worker, token, op.slot, PackGraphTask(chunk.node, step));
    state.descriptor = TaskDescriptor{.token = token,
                                      .operator_slot = static_cast<u16>(op.slot),
                                      .flags = 0,
                                      .reserved = 0,
                                      .words = {}};
    state.descriptor.set_argument_count(walk.node(chunk).arguments);
    walk.FillArguments(chunk, &state.arguments);
    state.chunk = chunk.chunk;
    state.chunk_count = chunk.chunks;
    const uint64_t called = traced ? SteadyNs() : 0;
    const uint32_t outcome = engine_.CallOperator(worker, token, state);

    const uint64_t now = SteadyNs();
    GraphChunk next;
    bool more_ready = false;
    const bool ended = walk.Finish(chunk, outcome, &next, &more_ready);
    counter.Add(&op, now - before, ended);
    before = now;
    if (traced) {
      walk.Trace({.node = chunk.node,
                  .step = step,
                  .chunk = chunk.chunk,
                  .worker = worker,
                  .wait_ns = idle_since,
                  .begin_ns = called,
                  .end_ns = now});
    }
    idle_since = now;
    if (now - entry.start_ns >= walk.budget_ns()) walk.Leave();
    walk.LookForAbort();
    const bool others = engine_.RingHasTask() || open_.load(std::memory_order_relaxed) > 1;
    if (walk.leaving() || (others && now - begin >= kTurnNs)) {
      if (next.chunks != 0) {
        walk.GiveBack(next);
        more_ready = true;
      }
      next = GraphChunk();
    } else if (next.chunks == 0) {
      walk.Take(&next);
    }
    if (more_ready && !walk.leaving()) engine_.WakeWorkers();
    if (next.chunks == 0) break;
    chunk = next;
  }
  engine_.NoteGraphTask(worker, kNoToken, 0, 0);
}

}  // namespace resident
