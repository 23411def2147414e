// Services: the gRPC server with all its services, each behind the admission of calls.
//
// Thread safety: BeginDrain and health() may be called from any thread, the rest belongs to one.
//
//   Services services(core, endpoints, devices, facts);
//   RETURN_IF_ERROR(services.Start());
//   ... services.BeginDrain(); ... endpoints.Close(); services.Stop();
#ifndef RESIDENT_SERVER_SERVICES_H_
#define RESIDENT_SERVER_SERVICES_H_

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/server.h"
#include "runtime/device/device_control.h"
#include "server/endpoints.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/admitted_service.h"
#include "server/rpc/buffers_service.h"
#include "server/rpc/channelz_service.h"
#include "server/rpc/core.h"
#include "server/rpc/executor_service.h"
#include "server/rpc/health_service.h"
#include "server/rpc/operators_service.h"
#include "server/rpc/reflection_service.h"
#include "server/rpc/sessions_service.h"

namespace resident {

class Services {
 public:
  Services(Core& core, Endpoints& endpoints, const std::vector<DeviceControl*>& devices,
           AdminService::Facts facts);

  // Serves what comes over the endpoints, which this opens.
  absl::Status Start();
  HealthService& health() { return health_; }

  // From now on no work is taken: health is NOT_SERVING, and batches that wait to be admitted are
  // refused.
  void BeginDrain();
  // Ends the calls that are left, after a moment for their last answers. REQUIRES: the endpoints
  // are closed.
  void Stop();

 private:
  // All services but reflection_, which names them; with their full names.
  std::vector<std::pair<const char*, grpc::Service*>> Others();

  Core& core_;
  Endpoints& endpoints_;
  ExecutorService executor_;
  SessionsService sessions_;
  BuffersService buffers_;
  OperatorsService operators_;
  HealthService health_;
  AdminService admin_;
  ChannelzService channelz_;
  ReflectionService reflection_;
  std::deque<AdmittedService> admitted_;
  std::unique_ptr<grpc::Server> server_;  // From Start on.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_SERVICES_H_
