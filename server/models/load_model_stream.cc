#include "server/models/load_model_stream.h"

#include "runtime/base/status_macros.h"

namespace resident {

absl::Status LoadModelStream::Begin(const grpc::CallbackServerContext& context,
                                    const Caller& caller) {
  ASSIGN_OR_RETURN(client_, FindClient(context, core_));
  loader_.emplace(models_, caller.identity, client_, caller.holder);
  return absl::OkStatus();
}

absl::Status LoadModelStream::Add(grpc::ByteBuffer& bytes) {
  v1::LoadModelRequest message;
  RETURN_IF_ERROR(Parse(bytes, &message));
  return loader_->Add(message);
}

absl::StatusOr<grpc::ByteBuffer> LoadModelStream::Finish() {
  RETURN_IF_ERROR(loader_->Finish());
  v1::LoadModelResponse received;
  received.set_state(v1::LoadModelResponse::STATE_RECEIVED);
  return ToBytes(received);
}

absl::Status LoadModelStream::Work() {
  return loader_->Load([this](const v1::LoadModelResponse& response) { Answer(response); });
}

}  // namespace resident
