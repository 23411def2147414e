#include "server/services/executor_service.h"

#include "server/services/run_call.h"
#include "server/services/submit_stream.h"

namespace resident {

grpc::ServerUnaryReactor* ExecutorService::Run(grpc::CallbackServerContext* context,
                                               const v1::RunRequest* request,
                                               v1::RunResponse* response) {
  return RunCall::Start(core_, *context, *request, *response);
}

grpc::ServerBidiReactor<v1::SubmitRequest, v1::SubmitResponse>* ExecutorService::Submit(
    grpc::CallbackServerContext* context) {
  return SubmitStream::Start(core_, *context);
}

}  // namespace resident
