// OperatorsService: resident.v1.Operators.
//
// Thread safety: as gRPC's callback services: calls come from any thread.
#ifndef RESIDENT_SERVER_SERVICES_OPERATORS_SERVICE_H_
#define RESIDENT_SERVER_SERVICES_OPERATORS_SERVICE_H_

#include "resident/v1/operators.grpc.pb.h"
#include "server/core.h"

namespace resident {

class OperatorsService final : public v1::Operators::CallbackService {
 public:
  explicit OperatorsService(Core* core) : core_(*core) {}

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListOperatorsRequest* request,
                                 v1::ListOperatorsResponse* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeOperatorRequest* request,
                                     v1::DescribeOperatorResponse* response) override;

 private:
  Core& core_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_SERVICES_OPERATORS_SERVICE_H_
