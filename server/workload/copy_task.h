// Copies between staging memory, device memory and clients' shared memory, as tasks of the operator
// copy_bytes, because while a kernel is resident only tasks of the ring copy data.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_WORKLOAD_COPY_TASK_H_
#define RESIDENT_SERVER_WORKLOAD_COPY_TASK_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/device/device.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/queue/batch.h"

namespace resident {

// Bytes that one piece of an upload, a download or a restore moves.
inline constexpr uint64_t kCopyPieceBytes = 4u << 20;

// A dense vector as a task's argument.
Argument VectorArgument(DType dtype, uint64_t address, int64_t elements);

// Fills in a task that copies `bytes` bytes, and its two arguments. The addresses must be valid for
// operators.
void FillCopyTask(const ResolvedOperator& copy_bytes, uint64_t from, uint64_t to, uint64_t bytes,
                  TaskDescriptor& task, Argument* arguments);

// Returns a batch of one such task for the session's engine. The caller sets `done` and
// `keep_alive`.
std::shared_ptr<Batch> MakeCopyBatch(const ResolvedOperator& copy_bytes, uint32_t device,
                                     const EngineSession& session, uint64_t from, uint64_t to,
                                     uint64_t bytes);

// Ends a copy that is enqueued: as CANCELLED, unless an engine has begun it. Idempotent.
void CancelCopy(Device& device, Batch& copy);

// Writes bytes to device memory, piece by piece through staging memory, and waits until they are
// written. `fill` provides the bytes at an offset; it has returned, with its locks released, before
// the function waits for the device. Errors: those of `fill`, RESOURCE_EXHAUSTED (staging memory),
// UNAVAILABLE (the engine ended, or a piece took longer than half a minute).
absl::Status WriteAndWait(
    const ResolvedOperator& copy_bytes, Device& device, ClientId client, EngineSession& session,
    uint64_t address, uint64_t bytes,
    const std::function<absl::Status(uint64_t offset, absl::Span<uint8_t> to)>& fill);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_COPY_TASK_H_
