// AdminService: resident.v1.Admin.
//
// Thread safety: as gRPC's callback services: calls come from any thread. A call that waits, for
// a device or for a drain, is registered as a waiter and keeps no thread.
#ifndef RESIDENT_SERVER_RPC_ADMIN_SERVICE_H_
#define RESIDENT_SERVER_RPC_ADMIN_SERVICE_H_

#include "resident/v1/admin.grpc.pb.h"
#include "server/rpc/core.h"

namespace resident {

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(Core* core) : core_(*core) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const v1::StatusRequest* request,
                                   v1::StatusResponse* response) override;
  grpc::ServerUnaryReactor* Park(grpc::CallbackServerContext* context,
                                 const v1::ParkRequest* request,
                                 v1::ParkResponse* response) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const v1::ResumeRequest* request,
                                   v1::ResumeResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;

 private:
  // Answers once the device has settled what `start` begins.
  grpc::ServerUnaryReactor* OnDevice(grpc::CallbackServerContext* context, uint32_t device,
                                     void (Device::*start)(Device::Waiter));

  Core& core_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_ADMIN_SERVICE_H_
