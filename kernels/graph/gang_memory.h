// GangMemory: what a member of a gang keeps in fast memory while it walks a graph (gang_walk.h),
// and GangView, what that refers to.
#ifndef RESIDENT_KERNELS_GRAPH_GANG_MEMORY_H_
#define RESIDENT_KERNELS_GRAPH_GANG_MEMORY_H_

#include "kernels/graph/graph_task.h"
#include "kernels/layout/platform.h"

namespace resident {

// What does not change while a member executes a quantum. It is in fast memory because the
// registers of a GPU's thread do not suffice for it: they would be stored to memory that is slow to
// read after each load with acquire.
struct GangQuantum {
  const GraphImage* image;
  GangState* state;
  GraphQuantum* quantum;
  GraphOperator* operators;
  const u32* list;  // Of the member's nodes, and their number.
  u32 size;
  u32 gang;
  u32 rank;
  u32 workers;
};

// A node of the member's list, as it is in the image, with the index of the node behind it. Behind
// the last one of the list follows the first one, in the next step.
struct GangEntry {
  GraphNode node;
  GangNode members;
  u32 behind;
  u32 index;  // Its own.
};
// The node that is executed next, or was executed; see GraphNode and GangNode.
struct GangStep {
  u32 node;
  u32 op;
  u32 operator_slot;
  u32 arguments;
  u32 chunks;
  u32 first;
  u32 ranks;
  u32 index;  // The member's first chunk.
  u32 signals;
  u32 starts_early;
  u32 waits;
  u32 first_wait;
};
// A node whose matrices the member takes from a stream.
struct GangTurn {
  u32 stream;  // GraphNode::stream; 0: it does not, and the others have no meaning.
  // Its pages, and those that it has taken before in the quantum.
  StreamShare pages;
  u32 pages_before;
  StreamForm form;
  u32 normalized;
  u32 columns;
  u32 signals;  // As in GangStep, where it is 0: see signal.
};

// The fast memory of a member.
struct GangMemory {
  GangQuantum fixed;
  // The node that is executed next, and the one that is or was executed.
  GangStep next;
  GangStep done;
  // Of `next`, in a member that takes pages.
  GangTurn turn;
  // That which is prepared next.
  GangEntry ahead;
  // Of the node that is prepared: its operator without `tasks` and `ns`, and its stream.
  GraphOperator op;
  GraphStream stream;
  union {
    // Of the node that is executed next.
    ArgumentBlock arguments;
    // While the leader opens a quantum.
    GraphQuantum quantum;
  };
  double scalars[kMaxGraphScalars];
  // Of the quantum.
  u64 first_step;
  u64 start_ns;
  u64 trace;
  // The step, and the pages that the member has taken in the quantum.
  u64 step;
  u32 pages;
  // When the member ended its last node.
  u64 free_ns;
  // Only the leader's: limits of the quantum; when the step began, and when the leader looked at
  // the host's word `abort`.
  u64 last_step;
  u64 budget_ns;
  u64 step_begin_ns;
  u64 looked_ns;
  u32 max_steps;
};

// What a member's fast memory refers to.
class GangView {
 public:
  RESIDENT_HOST_DEVICE explicit GangView(GangMemory* memory) : memory_(*memory) {}

  RESIDENT_HOST_DEVICE u32 rank() const { return memory_.fixed.rank; }
  RESIDENT_HOST_DEVICE u32 gang() const { return memory_.fixed.gang; }
  // Step of the quantum.
  RESIDENT_HOST_DEVICE u32 step() const {
    return static_cast<u32>(memory_.step - memory_.first_step);
  }

 protected:
  RESIDENT_HOST_DEVICE const GraphImage& image() const { return *memory_.fixed.image; }
  RESIDENT_HOST_DEVICE GangState& state() const { return *memory_.fixed.state; }
  RESIDENT_HOST_DEVICE GraphQuantum& quantum() const { return *memory_.fixed.quantum; }
  RESIDENT_HOST_DEVICE GraphOperator* operators() const { return memory_.fixed.operators; }
  RESIDENT_HOST_DEVICE const u32* list() const { return memory_.fixed.list; }
  RESIDENT_HOST_DEVICE u32 size() const { return memory_.fixed.size; }
  RESIDENT_HOST_DEVICE u32 workers() const { return memory_.fixed.workers; }
  RESIDENT_HOST_DEVICE u32* positions() const {
    return reinterpret_cast<u32*>(operators() + image().operators);
  }
  // By node: how often a member has ended it.
  RESIDENT_HOST_DEVICE u32* ended() const { return positions() + gang(); }

  GangMemory& memory_;
};

}  // namespace resident

#endif  // RESIDENT_KERNELS_GRAPH_GANG_MEMORY_H_
