// The service resident.v1.Graphs. gRPC makes its calls from any thread.
#ifndef RESIDENT_SERVER_GRAPHS_GRAPHS_SERVICE_H_
#define RESIDENT_SERVER_GRAPHS_GRAPHS_SERVICE_H_

#include <memory>

#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/graphs.pb.h"
#include "server/graphs/graphs.h"

namespace resident {

// `graphs` outlives the service, and the service all of its calls.
std::unique_ptr<grpc::Service> MakeGraphsService(Graphs& graphs);

// Its call Run (graph_run_stream.cc). `request` is valid until the call is over.
grpc::ServerWriteReactor<v1::RunGraphResponse>* StartGraphRun(grpc::CallbackServerContext& context,
                                                              Graphs& graphs,
                                                              const v1::RunGraphRequest& request);

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPHS_SERVICE_H_
