// Converts the result of a batch to the answer of its ModelInferRequest.
//
// Thread safety: functions without state.
//
//   RETURN_IF_ERROR(FillInferResponse(context, result, &response));
#ifndef RESIDENT_SERVER_INFERENCE_INFER_RESPONSE_H_
#define RESIDENT_SERVER_INFERENCE_INFER_RESPONSE_H_

#include "absl/status/status.h"
#include "inference/open_inference.pb.h"
#include "resident/v1/executor.pb.h"
#include "server/inference/infer_request.h"

namespace resident {

// Moves the outputs out of the result, and writes those that belong into regions there. The error
// of the first task that failed, with its status, if there is one. INVALID_ARGUMENT: an output does
// not fit into its part of a region.
absl::Status FillInferResponse(const InferContext& context, v1::BatchResult& result,
                               inference::ModelInferResponse* response);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFER_RESPONSE_H_
