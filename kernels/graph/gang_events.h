// GangEvents: the rare events of a walk through a graph (gang_walk.h): the end of a step, the end
// of the quantum, a failure, an event of a trace.
#ifndef RESIDENT_KERNELS_GRAPH_GANG_EVENTS_H_
#define RESIDENT_KERNELS_GRAPH_GANG_EVENTS_H_

#include "kernels/graph/gang_memory.h"
#include "kernels/graph/graph_arguments.h"
#include "kernels/graph/graph_task.h"
#include "kernels/graph/scalar_bits.h"
#include "kernels/layout/platform.h"

namespace resident {

// How often the leader looks at the host's word `abort`, at most.
inline constexpr u64 kAbortLookNs = 50'000;

// What happens rarely in a walk. It is out of line, and what is uniform in a warp is in the fast
// memory, so that the rest needs no stack: an operator that waits for its inputs empties the L1
// cache, and what is on the stack then comes from the L2 cache.
template <typename Platform>
class GangEvents : public GangView {
 public:
  using GangView::GangView;

  // The leader ends a step and begins the next one. False: the quantum ends between them.
  // `steps`: those that have ended since the state was initialized.
  RESIDENT_HOST_DEVICE bool LeadStep(u32 steps) {
    const u64 now = Platform::First(Platform::Clock());
    if (Platform::Lane() == 0) ++memory_.step;
    Platform::Sync();
    const u32 quantum_steps = step();
    GraphEnd end = GraphEnd::kNone;
    bool leave = false;
    if (IsStopValue()) {
      end = GraphEnd::kStop;
    } else if (memory_.step >= memory_.last_step) {
      end = GraphEnd::kSteps;
    } else if (!UpdateScalars()) {
      end = GraphEnd::kScalarRange;
    } else {
      // A further step would exceed the time, if it takes as long as this one.
      leave = Platform::First(quantum_steps >= memory_.max_steps ||
                              now + (now - memory_.step_begin_ns) >
                                  memory_.start_ns + memory_.budget_ns);
      // The host, whose memory takes more than 1 us to read, begins no other quantum of a run that
      // it has aborted.
      if (!leave) LookForAbort(now);
      leave = leave || Platform::First(Platform::Load(&state().leave)) != 0;
    }
    leave = Platform::First(leave || end != GraphEnd::kNone);
    memory_.step_begin_ns = now;
    if (Platform::Lane() == 0) {
      state().quantum_steps = quantum_steps;
      if (end != GraphEnd::kNone) End(end);
      if (leave) state().between_steps = 1;
      if (leave) {
        Platform::StoreRelease(&state().leave, 1u);
      } else {
        Platform::StoreRelease(&state().begun, steps + 1);
      }
    }
    Platform::Sync();
    return !leave;
  }

  RESIDENT_HOST_DEVICE bool IsStopValue() const {
    if (image().stop_address == 0) return false;
    const i64 value = image().stop_dtype == DType::kI32
                          ? Platform::Load(reinterpret_cast<const i32*>(image().stop_address))
                          : Platform::Load(reinterpret_cast<const i64*>(image().stop_address));
    const i64* const stops = ImagePart<i64>(image(), image().stop_values_at);
    bool differs = true;
    for (u32 i = Platform::Lane(); i < image().stop_values; i += Platform::kLanes) {
      differs &= stops[i] != value;
    }
    return !Platform::All(differs);
  }

  // Computes the scalars of the next step. False: one would leave its range; none has changed then.
  RESIDENT_HOST_DEVICE bool UpdateScalars() {
    static_assert(kMaxGraphScalars % Platform::kLanes == 0, "");
    constexpr u32 kRounds = kMaxGraphScalars / Platform::kLanes;
    const GraphUpdate* const updates = ImagePart<GraphUpdate>(image(), image().updates_at);
    double values[kRounds];
    bool valid = true;
    RESIDENT_UNROLL(1)
    for (u32 k = 0; k < kRounds; ++k) {
      const u32 i = k * Platform::kLanes + Platform::Lane();
      if (i >= image().updates) continue;
      const GraphUpdate update = updates[i];
      values[k] = ScaleScalar(update.factor, memory_.scalars[update.scalar], update.addend);
      valid &= values[k] >= update.min && values[k] <= update.max;
    }
    if (!Platform::All(valid)) return false;
    RESIDENT_UNROLL(1)
    for (u32 k = 0; k < kRounds; ++k) {
      const u32 i = k * Platform::kLanes + Platform::Lane();
      if (i >= image().updates) continue;
      const u32 scalar = updates[i].scalar;
      memory_.scalars[scalar] = values[k];
      state().scalars[scalar] = values[k];
    }
    Platform::Sync();
    return true;
  }

  // (leader) Ends the quantum if its time is over or the host has set `abort`.
  RESIDENT_HOST_DEVICE void LookForEnd() {
    const u64 now = Platform::First(Platform::Clock());
    if (Platform::Lane() == 0 && now - memory_.start_ns > memory_.budget_ns) {
      Platform::StoreRelease(&state().leave, 1u);
    }
    if (Platform::First(now - memory_.looked_ns > kAbortLookNs)) LookForAbort(now);
  }
  RESIDENT_HOST_DEVICE void LookForAbort(u64 now) {
    memory_.looked_ns = now;
    if (Platform::First(Platform::LoadHost(&quantum().abort)) == 0) return;
    if (Platform::Lane() == 0) {
      End(GraphEnd::kAborted);
      Platform::StoreRelease(&state().leave, 1u);
    }
    Platform::Sync();
  }

  // (one lane) The first reason is kept.
  RESIDENT_HOST_DEVICE bool End(GraphEnd end) {
    return Platform::Exchange(&state().end, static_cast<u32>(GraphEnd::kNone),
                              static_cast<u32>(end));
  }

  RESIDENT_HOST_DEVICE void Fail(u32 node, u32 status_and_detail) {
    if (Platform::Lane() == 0) {
      if (End(GraphEnd::kFailed)) {
        state().failed_node = node;
        state().failure = status_and_detail;
        state().failed_step = memory_.step;
      }
      Platform::StoreRelease(&state().leave, 1u);
    }
    Platform::Sync();
  }

  // Of the node that was executed. Its first chunk stands for all that the member executed.
  RESIDENT_HOST_DEVICE void Trace(u64 begin_ns, u64 end_ns) {
    if (Platform::Lane() != 0) return;
    const u32 at = Platform::FetchAdd(&state().trace_events, 1u);
    if (at >= state().trace_capacity) return;
    reinterpret_cast<GraphTraceEvent*>(memory_.trace)[at] = {
        memory_.done.node, step(), memory_.done.index, rank(), memory_.free_ns, begin_ns, end_ns};
  }
};

template <typename Platform>
RESIDENT_OUT_OF_LINE bool LeadStep(GangMemory* memory, u32 steps) {
  return GangEvents<Platform>(memory).LeadStep(steps);
}
template <typename Platform>
RESIDENT_OUT_OF_LINE void LookForEnd(GangMemory* memory) {
  GangEvents<Platform>(memory).LookForEnd();
}
template <typename Platform>
RESIDENT_OUT_OF_LINE void Fail(GangMemory* memory, u32 node, u32 status_and_detail) {
  GangEvents<Platform>(memory).Fail(node, status_and_detail);
}
template <typename Platform>
RESIDENT_OUT_OF_LINE void TraceNode(GangMemory* memory, u64 begin_ns, u64 end_ns) {
  GangEvents<Platform>(memory).Trace(begin_ns, end_ns);
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_GRAPH_GANG_EVENTS_H_
