// AdminService: resident.v1.Admin.
//
// Thread safety: gRPC makes calls from any thread. A call that waits for a device or for a drain is
// registered as a waiter and does not block a thread.
#ifndef RESIDENT_SERVER_RPC_ADMIN_SERVICE_H_
#define RESIDENT_SERVER_RPC_ADMIN_SERVICE_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "resident/v1/admin.grpc.pb.h"
#include "runtime/device/device_control.h"
#include "server/core/core.h"
#include "server/core/daemon_status.h"

namespace resident {

class AdminService final : public v1::Admin::CallbackService {
 public:
  // What Status reports and the core does not have, and Drain's default timeout.
  struct Facts {
    DaemonFacts daemon;
    std::chrono::milliseconds drain_timeout{0};
  };

  // `devices`: by index. `begin_drain` makes the daemon refuse new work.
  AdminService(Core& core, std::vector<DeviceControl*> devices, Facts facts,
               std::function<void()> begin_drain);
  ~AdminService() override;

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
  // Answers once the operation that `start` begins has ended.
  grpc::ServerUnaryReactor* OnDevice(grpc::CallbackServerContext* context, uint32_t device,
                                     void (DeviceControl::*start)(DeviceControl::Waiter));

  Core& core_;
  const std::vector<DeviceControl*> devices_;
  const Facts facts_;
  const std::function<void()> begin_drain_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_ADMIN_SERVICE_H_
