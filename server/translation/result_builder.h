// Results: a finished batch to resident.v1.BatchResult.
//
// Thread safety: functions without state of their own.
#ifndef RESIDENT_SERVER_TRANSLATION_RESULT_BUILDER_H_
#define RESIDENT_SERVER_TRANSLATION_RESULT_BUILDER_H_

#include "absl/status/status.h"
#include "resident/v1/executor.pb.h"
#include "server/translation/request_batch.h"

namespace resident {

// Copies what the batch returns out of the window. REQUIRES: its `done` was called.
void BuildResult(const RequestBatch& batch, v1::BatchResult* result);

// The result of a batch that was refused as a whole.
void BuildRefusal(uint64_t id, const absl::Status& why, v1::BatchResult* result);

}  // namespace resident

#endif  // RESIDENT_SERVER_TRANSLATION_RESULT_BUILDER_H_
