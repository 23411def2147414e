#include "server/inference/infer_calls.h"

#include <string>
#include <utility>

#include "inference/open_inference.pb.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "server/core/status.h"
#include "server/inference/errors.h"
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

namespace {

constexpr char kErrorHeader[] = "triton_grpc_error";

}  // namespace

void InferStream::Open(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kErrorHeader);
  ends_at_error_ = found != metadata.end() && found->second == "true";
  BatchStream::Open(context);
}

absl::Status InferStream::Parse(grpc::ByteBuffer& bytes) {
  arrived_ = Clock::now();
  RETURN_IF_ERROR(ParseMessage(bytes, message_limits(), &request_));
  id_ = request_.id();
  return absl::OkStatus();
}

absl::Status InferStream::Translate() {
  work_.batch.Clear();
  ASSIGN_OR_RETURN(work_, TranslateInfer(state_.sources(), request_));
  work_.context->arrived = arrived_;
  return absl::OkStatus();
}

void InferStream::Drop(bool release) {
  // Only a request that was refused still has its context here. The stream's lock may be held, and
  // the end of a region frees its buffer and ends the calls that wait for it.
  if (work_.context != nullptr && !work_.context->regions.empty()) {
    core_.pools.blocking.Post([context = std::move(work_.context)] {});
  }
  work_ = {};
  if (release) request_ = inference::ModelInferRequest();
}

absl::Status InferStream::BuildAnswer(RequestBatch& batch, Context* context,
                                      grpc::ByteBuffer& answer) {
  auto& request = static_cast<InferContext&>(*context);
  inference::ModelStreamInferResponse response;
  const absl::Status status =
      FinishInference(state_, request, batch, response.mutable_infer_response());
  if (!status.ok()) return BuildRefusal({.text = request.id}, status, answer);
  if (request.final_response) {
    (*response.mutable_infer_response()->mutable_parameters())["triton_final_response"]
        .set_bool_param(true);
  }
  ToBytes(response).Swap(&answer);
  return absl::OkStatus();
}

absl::Status InferStream::BuildRefusal(const RequestId& id, const absl::Status& why,
                                       grpc::ByteBuffer& answer) {
  const absl::Status worded = errors::InInferenceWords(why);
  if (ends_at_error_) return worded;
  inference::ModelStreamInferResponse response;
  // Shortened as in the status of a call.
  response.set_error_message(ToUtf8(ShortenMessage(worded.message())));
  response.mutable_infer_response()->set_id(id.text);
  ToBytes(response).Swap(&answer);
  return absl::OkStatus();
}

}  // namespace resident
