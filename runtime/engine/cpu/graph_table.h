// GraphTable: the graphs that the CPU engine is executing (kernels/graph/graph_task.h), and how its
// workers share them with the tasks of the ring.
//
// No worker owns a graph. The worker that takes the slot opens the graph; then workers take
// *turns*: in a turn a worker executes chunks of one graph until nothing is ready, or, once kTurn
// has passed, until there is something else to do: a task in the ring, or another graph. The last
// worker that leaves a graph whose quantum is over completes its slot.
//
//   free ──Open──▶ open ──(time, steps, a failure, an abort)──▶ over ──(the last worker leaves)──▶
//   free
//
// Invariants:
//   1. A worker accesses the memory of a graph only between Join and Leave. The slot is completed
//      when no worker is in between, so that the host may free the memory then.
//   2. No worker joins a graph that is over.
//
// Thread safety: all members may be called by all workers at once.
//
// Memory ordering: Open publishes an entry by its word (release); Join reads it (acquire). Leave
// releases what the worker did to the one that completes the slot.
//
//   graphs.Open(sequence, descriptor);
//   while (graphs.Work(worker, state)) {}
#ifndef RESIDENT_RUNTIME_ENGINE_CPU_GRAPH_TABLE_H_
#define RESIDENT_RUNTIME_ENGINE_CPU_GRAPH_TABLE_H_

#include <array>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/graph/graph_task.h"
#include "kernels/graph/graph_walk.h"
#include "kernels/sdk/operator.h"

namespace resident {

class GraphTable {
 public:
  // How long a worker executes one graph, or tasks of the ring, while there is work of both kinds.
  static constexpr std::chrono::nanoseconds kTurn = std::chrono::microseconds(20);

  // What the engine does for the table.
  class Engine {
   public:
    // Calls the operator of the block's descriptor for the quantum with this token. Returns
    // CompletionStatus | detail << 16.
    virtual uint32_t CallOperator(uint32_t worker, uint32_t token, BlockState& state) = 0;
    // The worker executes a task of this slot now; kNoToken: none.
    virtual void NoteGraphTask(uint32_t worker, uint32_t token, uint32_t operator_slot,
                               uint32_t task) = 0;
    virtual bool RingHasTask() const = 0;
    // There may be work for workers that sleep.
    virtual void WakeWorkers() = 0;
    virtual void CompleteGraph(uint64_t sequence, uint64_t start_ns,
                               uint32_t status_and_detail) = 0;

   protected:
    ~Engine() = default;
  };
  // The token whose stamp is 0: no task.
  static constexpr uint32_t kNoToken = UINT32_MAX;

  explicit GraphTable(Engine& engine) : engine_(engine) {}

  // REQUIRES: no worker runs.
  void SetWorkers(uint32_t workers) {
    assert(!any_open());
    workers_.assign(workers, Worker());
  }

  // Begins the quantum of a slot that was taken.
  void Open(uint64_t sequence, const GraphDescriptor& descriptor);
  // Takes a turn with a graph. Returns false if no chunk is ready.
  bool Work(uint32_t worker, BlockState& state);
  bool any_open() const { return open_.load(std::memory_order_seq_cst) != 0; }
  // Whether Work may find something.
  bool HasReady();
  // The worker has executed something that is not part of a graph.
  void NoteOtherWork(uint32_t worker) { workers_[worker].idle_since_ns = 0; }

 private:
  // Entry::word has the number of workers in its low half, and these bits.
  static constexpr uint64_t kOpen = uint64_t{1} << 32;
  static constexpr uint64_t kOver = uint64_t{1} << 33;
  static constexpr uint64_t kWorkers = kOpen - 1;

  struct alignas(64) Entry {
    std::atomic<bool> taken{false};
    std::atomic<uint64_t> word{0};
    GraphDescriptor descriptor{};
    uint64_t sequence = 0;
    uint64_t start_ns = 0;
  };

  // Used by one worker only.
  struct alignas(64) Worker {
    // The entry that it looks at first.
    uint32_t next = 0;
    // Since when it has looked for chunks; 0: it has just begun to.
    uint64_t idle_since_ns = 0;
  };

  static bool Join(Entry& entry);
  void Leave(Entry& entry, GraphWalk& walk);
  GraphWalk Walk(const Entry& entry) const {
    return GraphWalk(entry.descriptor, static_cast<uint32_t>(workers_.size()));
  }
  void TakeTurn(const Entry& entry, GraphWalk& walk, GraphChunk chunk, uint32_t worker,
                BlockState& state);

  Engine& engine_;
  std::atomic<uint32_t> open_{0};
  std::array<Entry, kMaxOpenGraphs> entries_;
  std::vector<Worker> workers_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CPU_GRAPH_TABLE_H_
