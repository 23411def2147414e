// The calls ModelInfer and ModelStreamInfer.
#ifndef RESIDENT_SERVER_INFERENCE_INFER_CALLS_H_
#define RESIDENT_SERVER_INFERENCE_INFER_CALLS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/open_inference.pb.h"
#include "server/inference/errors.h"
#include "server/inference/inference_state.h"
#include "server/rpc/batch_stream.h"
#include "server/rpc/run_call.h"

namespace resident {

// InferCall: one ModelInfer (server/rpc/run_call.h).
//
// Thread safety: see RunCall.
class InferCall final : public RunCall {
 public:
  InferCall(InferenceState& state, grpc::ByteBuffer& response)
      : RunCall(state.core, response), state_(state) {}

 private:
  absl::Status Read(grpc::ByteBuffer& bytes) override;
  const v1::Batch& message() const override { return work_.batch; }
  ClientId FindBufferOwner(const Client&) const override { return Regions::kBufferOwner; }
  void DropMessage() override { work_.batch.Clear(); }
  absl::Status BuildAnswer(RequestBatch& batch, grpc::ByteBuffer& answer) override;
  void Discard(RequestBatch& batch) override;
  absl::Status Worded(const absl::Status& status) const override {
    return errors::InInferenceWords(status);
  }

  InferenceState& state_;
  const Clock::time_point arrived_ = Clock::now();
  InferWork work_;
};

// InferStream: one ModelStreamInfer (server/rpc/batch_stream.h). The error of a request is an
// answer and does not end the stream, unless the call has the metadata "triton_grpc_error: true".
//
// Thread safety: see BatchStream.
class InferStream final : public BatchStream {
 public:
  InferStream(Transport& transport, InferenceState& state)
      : BatchStream(transport, state.core, "inference.GRPCInferenceService/ModelStreamInfer"),
        state_(state) {}
  void Open(const grpc::CallbackServerContext& context);

 private:
  absl::Status Parse(grpc::ByteBuffer& bytes) override;
  absl::Status Translate() override;
  const v1::Batch& message() const override { return work_.batch; }
  RequestId request_id() const override { return {.text = id_}; }
  std::shared_ptr<Context> TakeContext() override { return std::move(work_.context); }
  uint64_t RequestBytes(bool /*waits*/) override {
    return request_.SpaceUsedLong() + work_.batch.SpaceUsedLong();
  }
  void Drop(bool release) override;
  ClientId FindBufferOwner(const Client&) const override { return Regions::kBufferOwner; }
  absl::Status BuildAnswer(RequestBatch& batch, Context* context,
                           grpc::ByteBuffer& answer) override;
  absl::Status BuildRefusal(const RequestId& id, const absl::Status& why,
                            grpc::ByteBuffer& answer) override;

  InferenceState& state_;
  // Whether the first error ends the stream. Set before the first operation.
  bool ends_at_error_ = false;
  // State of the read loop.
  inference::ModelInferRequest request_;
  std::string id_;
  Clock::time_point arrived_;
  InferWork work_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFER_CALLS_H_
