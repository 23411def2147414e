#include "server/inference/infer_call.h"

#include <utility>

#include "inference/open_inference.pb.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"

namespace resident {

absl::Status InferCall::Read(grpc::ByteBuffer& bytes) {
  inference::ModelInferRequest request;
  const MessageLimits limits =
      FindMessageLimits(core_, "/inference.GRPCInferenceService/ModelInfer");
  RETURN_IF_ERROR(ParseMessage(bytes, limits, &request));
  ASSIGN_OR_RETURN(work_, TranslateInfer(state_.sources(), request));
  work_.context->arrived = arrived_;
  return absl::OkStatus();
}

absl::Status InferCall::BuildAnswer(RequestBatch& batch, grpc::ByteBuffer& answer) {
  inference::ModelInferResponse response;
  RETURN_IF_ERROR(FinishInference(state_, *work_.context, batch, &response));
  ToBytes(response).Swap(&answer);
  return absl::OkStatus();
}

void InferCall::Discard(RequestBatch& batch) { AbandonInference(state_, *work_.context, batch); }

}  // namespace resident
