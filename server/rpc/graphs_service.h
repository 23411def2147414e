// GraphsService: resident.v1.Graphs.
//
// A large graph takes seconds and up to a gigabyte: checks run on two threads of their own, so that
// they neither delay other calls nor need more memory together.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_RPC_GRAPHS_SERVICE_H_
#define RESIDENT_SERVER_RPC_GRAPHS_SERVICE_H_

#include <atomic>
#include <cstdint>

#include "resident/v1/graphs.grpc.pb.h"
#include "server/rpc/core.h"
#include "server/rpc/worker_pool.h"

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
  // Its destructor finishes the posted checks, so it comes last.
  WorkerPool threads_{2};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_GRAPHS_SERVICE_H_
