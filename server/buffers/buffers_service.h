// The service resident.v1.Buffers. gRPC makes its calls from any thread.
#ifndef RESIDENT_SERVER_BUFFERS_BUFFERS_SERVICE_H_
#define RESIDENT_SERVER_BUFFERS_BUFFERS_SERVICE_H_

#include <memory>

#include "grpcpp/impl/service_type.h"
#include "server/buffers/buffers.h"

namespace resident {

// `buffers` outlives the service, and the service all of its calls.
std::unique_ptr<grpc::Service> MakeBuffersService(Buffers& buffers);

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_BUFFERS_SERVICE_H_
