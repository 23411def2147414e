// GraphsService: resident.v1.Graphs.
//
// A check runs on a thread that may block, because a large graph takes seconds.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_RPC_GRAPHS_SERVICE_H_
#define RESIDENT_SERVER_RPC_GRAPHS_SERVICE_H_

#include <atomic>
#include <cstdint>

#include "resident/v1/graphs.grpc.pb.h"
#include "server/rpc/core.h"

namespace resident {

class GraphsService final : public v1::Graphs::CallbackService {
 public:
  explicit GraphsService(Core& core) : core_(core) {}

  grpc::ServerUnaryReactor* Validate(grpc::CallbackServerContext* context,
                                     const v1::ValidateGraphRequest* request,
                                     v1::ValidateGraphResponse* response) override;

 private:
  Core& core_;
  // Checks that are running or wait for a thread.
  std::atomic<uint32_t> checks_{0};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_GRAPHS_SERVICE_H_
