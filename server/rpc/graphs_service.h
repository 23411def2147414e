// GraphsService: resident.v1.Graphs.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_RPC_GRAPHS_SERVICE_H_
#define RESIDENT_SERVER_RPC_GRAPHS_SERVICE_H_

#include "resident/v1/graphs.grpc.pb.h"
#include "server/rpc/core.h"
#include "server/rpc/graph_checker.h"

namespace resident {

class GraphsService final : public v1::Graphs::CallbackService {
 public:
  explicit GraphsService(Core& core) : core_(core), checker_(core) {}

  grpc::ServerUnaryReactor* Validate(grpc::CallbackServerContext* context,
                                     const v1::ValidateGraphRequest* request,
                                     v1::ValidateGraphResponse* response) override;
  grpc::ServerWriteReactor<v1::RunGraphResponse>* Run(grpc::CallbackServerContext* context,
                                                      const v1::RunGraphRequest* request) override;

 private:
  Core& core_;
  GraphChecker checker_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_GRAPHS_SERVICE_H_
