// InferCall: one ModelInfer (server/rpc/run_call.h).
//
// Thread safety: see RunCall.
#ifndef RESIDENT_SERVER_INFERENCE_INFER_CALL_H_
#define RESIDENT_SERVER_INFERENCE_INFER_CALL_H_

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/inference/errors.h"
#include "server/inference/inference_state.h"
#include "server/rpc/run_call.h"

namespace resident {

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

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFER_CALL_H_
