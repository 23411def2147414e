// Converts a finished batch to resident.v1.BatchResult.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_WORKLOAD_RESULT_BUILDER_H_
#define RESIDENT_SERVER_WORKLOAD_RESULT_BUILDER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "resident/v1/executor.pb.h"
#include "server/workload/workload.h"

namespace resident {

// Bytes for each task in addition to its descriptor: status, time and detail, in the batch, in the
// answer's message, and in its bytes.
inline constexpr uint64_t kTaskOutcomeBytes = 24;

// Copies the batch's results out of staging memory. REQUIRES: its `done` was called.
void BuildResult(const RequestBatch& batch, v1::BatchResult* result);

// Adds the time and the status of the only task of a batch, and its error if it failed.
void AddOutcome(const RequestBatch& batch, v1::BatchResult* result);

// Adds the error of a task, whose index in the result is `index`.
void AddTaskError(const RequestBatch& batch, uint32_t index, size_t task, v1::BatchResult* result);

// The result of a batch that was refused as a whole.
void BuildRefusal(uint64_t id, const absl::Status& why, v1::BatchResult* result);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_RESULT_BUILDER_H_
