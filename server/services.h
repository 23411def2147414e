// Services: the gRPC server with all its services, each behind the admission of calls.
//
// Thread safety: AnnounceDrain, BeginDrain and health() may be called from any thread, the other
// members from one thread.
//
//   Services services(graphs, buffers, installs, lanes, models, endpoints, devices, facts,
//                    inference);
//   RETURN_IF_ERROR(services.Start(options.max_connection_age));
//   ... services.BeginDrain(); ... endpoints.Close(); services.Stop(absl::Seconds(2));
#ifndef RESIDENT_SERVER_SERVICES_H_
#define RESIDENT_SERVER_SERVICES_H_

#include <chrono>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "runtime/device/device_control.h"
#include "server/buffers/buffers_service.h"
#include "server/core/core.h"
#include "server/endpoints.h"
#include "server/graphs/graphs_service.h"
#include "server/inference/inference_service.h"
#include "server/lanes/lane_table.h"
#include "server/lanes/lanes_service.h"
#include "server/models/models_service.h"
#include "server/operators/operators_service.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/admitted_service.h"
#include "server/rpc/call_memory.h"
#include "server/rpc/channelz_service.h"
#include "server/rpc/executor_service.h"
#include "server/rpc/health_service.h"
#include "server/rpc/reflection_service.h"
#include "server/rpc/sessions_service.h"

namespace resident {

class Services {
 public:
  Services(Graphs& graphs, Buffers& buffers, Installs& installs, LaneTable& lanes, Models& models,
           Endpoints& endpoints, const std::vector<DeviceControl*>& devices,
           AdminService::Facts facts, const InferenceOptions& inference);

  // Opens the endpoints and serves their calls. `max_connection_age`: clients are asked to open a
  // new connection after this time; 0: never.
  absl::Status Start(std::chrono::milliseconds max_connection_age);
  HealthService& health() { return health_; }

  // Health reports NOT_SERVING from now on, and all work is still accepted.
  void AnnounceDrain();
  // Refuses new work from now on: health reports NOT_SERVING, batches that wait to be admitted are
  // refused, checks of graphs end, and lanes take nothing.
  void BeginDrain();
  // Ends the remaining calls, after at most `last_answers` in which they can send their last
  // answers. REQUIRES: the endpoints are closed.
  void Stop(absl::Duration last_answers);

 private:
  // All services with their full names, except reflection_, which lists them.
  std::vector<std::pair<const char*, grpc::Service*>> Others();

  Core& core_;
  Graphs& graphs_;
  Buffers& buffers_;
  LaneTable& lanes_;
  Endpoints& endpoints_;
  ExecutorService executor_;
  SessionsService sessions_;
  const std::unique_ptr<grpc::Service> buffers_service_;
  const std::unique_ptr<grpc::Service> operators_;
  const std::unique_ptr<grpc::Service> graphs_service_;
  LanesService lanes_service_;
  const std::unique_ptr<grpc::Service> models_service_;
  HealthService health_;
  AdminService admin_;
  ChannelzService channelz_;
  const std::unique_ptr<grpc::Service> inference_;  // Null: not enabled.
  ReflectionService reflection_;
  CallMemory memory_;
  OpenCalls calls_;
  std::deque<AdmittedService> admitted_;
  std::unique_ptr<grpc::Server> server_;  // Set by Start.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_SERVICES_H_
