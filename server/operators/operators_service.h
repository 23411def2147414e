// OperatorsService: resident.v1.Operators.
//
// Methods that change something, or read the state folder, run on a thread that may block.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_OPERATORS_OPERATORS_SERVICE_H_
#define RESIDENT_SERVER_OPERATORS_OPERATORS_SERVICE_H_

#include "resident/v1/operators.grpc.pb.h"
#include "server/operators/installs.h"
#include "server/operators/removal_waits.h"

namespace resident {

// Install reads bytes (message_bytes.h); for the other methods, see v1::Operators::CallbackService.
using OperatorsCallbacks =
    v1::Operators::WithCallbackMethod_List<v1::Operators::WithCallbackMethod_Describe<
        v1::Operators::WithRawCallbackMethod_Install<v1::Operators::WithCallbackMethod_Activate<
            v1::Operators::WithCallbackMethod_Rollback<v1::Operators::WithCallbackMethod_Remove<
                v1::Operators::WithCallbackMethod_Promote<v1::Operators::WithCallbackMethod_Watch<
                    v1::Operators::WithCallbackMethod_Audit<v1::Operators::Service>>>>>>>>>;

class OperatorsService final : public OperatorsCallbacks {
 public:
  explicit OperatorsService(Installs& installs);
  ~OperatorsService() override;

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListOperatorsRequest* request,
                                 v1::ListOperatorsResponse* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeOperatorRequest* request,
                                     v1::DescribeOperatorResponse* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Install(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Activate(grpc::CallbackServerContext* context,
                                     const v1::ActivateRequest* request,
                                     v1::ActivateResponse* response) override;
  grpc::ServerUnaryReactor* Rollback(grpc::CallbackServerContext* context,
                                     const v1::RollbackRequest* request,
                                     v1::RollbackResponse* response) override;
  grpc::ServerUnaryReactor* Remove(grpc::CallbackServerContext* context,
                                   const v1::RemoveRequest* request,
                                   v1::RemoveResponse* response) override;
  grpc::ServerUnaryReactor* Promote(grpc::CallbackServerContext* context,
                                    const v1::PromoteRequest* request,
                                    v1::PromoteResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override;
  grpc::ServerUnaryReactor* Audit(grpc::CallbackServerContext* context,
                                  const v1::AuditRequest* request,
                                  v1::AuditResponse* response) override;

 private:
  Core& core_;
  Installs& installs_;
  RemovalWaits removals_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_OPERATORS_SERVICE_H_
