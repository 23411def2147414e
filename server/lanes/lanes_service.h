// LanesService: resident.v1.Lanes.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_LANES_LANES_SERVICE_H_
#define RESIDENT_SERVER_LANES_LANES_SERVICE_H_

#include "resident/v1/lanes.grpc.pb.h"
#include "server/core/core.h"
#include "server/lanes/lane_table.h"

namespace resident {

class LanesService final : public v1::Lanes::CallbackService {
 public:
  // Both must outlive it.
  LanesService(Core& core, LaneTable& lanes) : core_(core), lanes_(lanes) {}

  grpc::ServerWriteReactor<v1::OpenLaneResponse>* Open(grpc::CallbackServerContext* context,
                                                       const v1::OpenLaneRequest* request) override;
  grpc::ServerUnaryReactor* Bind(grpc::CallbackServerContext* context,
                                 const v1::BindLaneRequest* request,
                                 v1::BindLaneResponse* response) override;
  grpc::ServerUnaryReactor* Prepare(grpc::CallbackServerContext* context,
                                    const v1::PrepareLaneRequest* request,
                                    v1::PrepareLaneResponse* response) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseLaneRequest* request,
                                    v1::ReleaseLaneResponse* response) override;

 private:
  Core& core_;
  LaneTable& lanes_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_LANES_LANES_SERVICE_H_
