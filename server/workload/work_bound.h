// The bound of a task's work: a task that can certainly not end within its time limit is refused
// before it reaches a ring, because it would end the engine, with the tasks and the buffers of all
// clients there. Memory does not bound a task's work: a view with strides of 0 repeats elements,
// and a product of two small matrices takes many operations.
//
// The work of a task is
//
//   operations  what its operator's cost says (runtime/model/cost_rule.h). Operators that are
//               installed, and those that only copy, have no cost.
//   elements    those of its largest strided input, repeated ones included. Dense inputs are as
//               large as their memory, and so are outputs, whose elements are all distinct. Where
//               scalars limit the operations they also limit what is read: elements do not count.
//   scattered   the same, of inputs in which no two elements are adjacent: one that is repeated, or
//               every second one. They are read one by one.
//
// and the least time for it follows from the engine's rates (EngineTraits::max_operations_per_ms
// and those after it) and from the number of work units that can take part, one for each chunk. The
// rates are higher than what any engine of the kind was measured to do, so that a task that can end
// in time is never refused. A task that takes longer than the limit, with slow operators much
// longer, may therefore be accepted; it ends the engine. Two things are counted although they may
// not be computed: all pairs of queries and keys of a causal attention, and all elements of a
// strided input that an installed operator looks at in part only.
//
// Thread safety: functions without state.
//
//   const TaskWork work = CountWork(version, shapes, strides, scalars);
//   RETURN_IF_ERROR(CheckWork(version, work, chunks, {device, engine, task_time_limit}));
#ifndef RESIDENT_SERVER_WORKLOAD_WORK_BOUND_H_
#define RESIDENT_SERVER_WORKLOAD_WORK_BOUND_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/engine/engine.h"
#include "runtime/operators/registry/operator_version.h"

namespace resident {

struct TaskWork {
  double operations = 0;
  double elements = 0;
  double scattered = 0;
};

// `shapes` and `scalars`: as of CostRule::Operations. `strides`: by argument, in elements;
// empty: dense.
TaskWork CountWork(const OperatorVersion& version, absl::Span<const Shape> shapes,
                   absl::Span<const Shape> strides, absl::Span<const double> scalars = {});

struct WorkLimits {
  uint32_t device = 0;
  const EngineInfo& engine;
  // --task_time_limit, unless the version has a limit of its own; 0: none.
  std::chrono::milliseconds task_time{0};
};

// INVALID_ARGUMENT, with the time that the work takes at least and the limit: a task of this
// version cannot end in time. `chunks`: of the task.
absl::Status CheckWork(const OperatorVersion& version, const TaskWork& work, uint64_t chunks,
                       const WorkLimits& limits);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_WORK_BOUND_H_
