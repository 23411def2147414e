// Tasks whose arguments are dense vectors, such as those of copy_bytes, which copies between
// staging memory, device memory and clients' shared memory (copy_workload.h).
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_WORKLOAD_COPY_TASK_H_
#define RESIDENT_SERVER_WORKLOAD_COPY_TASK_H_

#include <cstdint>

#include "absl/types/span.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/queue/batch.h"

namespace resident {

// A dense vector as a task's argument.
Argument VectorArgument(DType dtype, uint64_t address, int64_t elements);

// Fills in a task of an operator whose arguments have `bytes` bytes each, at these addresses, which
// must be valid for operators; and its arguments. `workers`: of the engine.
void FillBytesTask(const ResolvedOperator& op, absl::Span<const uint64_t> addresses, uint64_t bytes,
                   uint64_t workers, TaskDescriptor& task, Argument* arguments);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_COPY_TASK_H_
