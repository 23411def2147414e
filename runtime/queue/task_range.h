// TaskRange: the tasks of a regular batch, which the queue submits as ranges
// (kernels/layout/task.h): a ring slot stands for many tasks of one operator, whose arguments
// differ only in addresses and in the values of scalars.
//
// Thread safety: as of the batch that owns it.
#ifndef RESIDENT_RUNTIME_QUEUE_TASK_RANGE_H_
#define RESIDENT_RUNTIME_QUEUE_TASK_RANGE_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/layout/task.h"

namespace resident {

struct TaskRange {
  uint32_t count = 0;
  // What the tasks have in common. `first`, `count`, `claim` and `max_blocks` are those of a slot;
  // the queue fills them in.
  RangeDescriptor descriptor{};
  // The arguments of task 0, and where those of the others are; one of each for each parameter.
  std::vector<Argument> arguments;
  absl::InlinedVector<RangeColumn, 4> columns;
  // The host's view of each column's `values`; null if the column has none.
  absl::InlinedVector<const uint64_t*, 4> values;
  // The host's view of the outcomes, one for each task. They must be zero.
  const RangeOutcome* outcomes = nullptr;

  bool times() const { return descriptor.options & kRangeTimes; }

  // Task i in the form of a single task; `arguments` is empty if it is in compact form.
  TaskDescriptor Describe(uint32_t i, std::vector<Argument>* task_arguments) const {
    TaskDescriptor task{};
    task.operator_slot = descriptor.operator_slot;
    task.flags = descriptor.flags & kTaskCompact;
    task_arguments->clear();
    if (task.flags & kTaskCompact) {
      task.set_elements(descriptor.elements);
      for (uint32_t a = 0; a < columns.size(); ++a) task.set_compact_argument(a, ColumnValue(a, i));
      return task;
    }
    task.set_argument_count(arguments.size());
    *task_arguments = arguments;
    for (uint32_t a = 0; a < columns.size(); ++a)
      (*task_arguments)[a].scalar_bits = ColumnValue(a, i);
    return task;
  }

 private:
  uint64_t ColumnValue(uint32_t a, uint32_t i) const {
    return values[a] != nullptr ? values[a][i] : columns[a].base + i * columns[a].stride;
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_TASK_RANGE_H_
