#include "server/rpc/executor_service.h"

#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/message_bytes.h"
#include "server/rpc/run_call.h"
#include "server/rpc/submit_stream.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

class NativeRun final : public RunCall {
 public:
  NativeRun(Core& core, grpc::ByteBuffer& response) : RunCall(core, response) {}

 private:
  absl::Status Read(grpc::ByteBuffer& bytes) override {
    const MessageLimits limits = FindMessageLimits(core_, "/resident.v1.Executor/Run");
    return ParseMessage(bytes, limits, &request_);
  }
  const v1::Batch& message() const override { return request_.batch(); }
  void DropMessage() override { request_.Clear(); }
  absl::Status BuildAnswer(RequestBatch& batch, grpc::ByteBuffer& answer) override {
    v1::RunResponse response;
    BuildResult(batch, response.mutable_result());
    ToBytes(response).Swap(&answer);
    return absl::OkStatus();
  }

  v1::RunRequest request_;
};

}  // namespace

ExecutorService::ExecutorService(Core& core) : core_(core) {}
ExecutorService::~ExecutorService() = default;

grpc::ServerUnaryReactor* ExecutorService::Run(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return RunCall::Start(std::make_shared<NativeRun>(core_, *response), *context, *request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ExecutorService::Submit(
    grpc::CallbackServerContext* context) {
  return StartBidiCall<SubmitStream>(*context, core_);
}

}  // namespace resident
