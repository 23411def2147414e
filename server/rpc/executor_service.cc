#include "server/rpc/executor_service.h"

#include "server/rpc/grpc_call.h"
#include "server/rpc/run_call.h"
#include "server/rpc/submit_stream.h"

namespace resident {

grpc::ServerUnaryReactor* ExecutorService::Run(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return RunCall::Start(core_, *context, *request, *response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ExecutorService::Submit(
    grpc::CallbackServerContext* context) {
  return StartBidiCall<SubmitStream>(*context, core_);
}

}  // namespace resident
