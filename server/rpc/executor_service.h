// ExecutorService: resident.v1.Executor.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_RPC_EXECUTOR_SERVICE_H_
#define RESIDENT_SERVER_RPC_EXECUTOR_SERVICE_H_

#include "resident/v1/executor.grpc.pb.h"
#include "server/core/core.h"

namespace resident {

class ExecutorService final
    : public v1::Executor::WithRawCallbackMethod_Run<
          v1::Executor::WithRawCallbackMethod_Submit<v1::Executor::Service>> {
 public:
  explicit ExecutorService(Core& core);
  ~ExecutorService() override;

  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Submit(
      grpc::CallbackServerContext* context) override;

 private:
  Core& core_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_EXECUTOR_SERVICE_H_
