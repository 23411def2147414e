// The service resident.v1.Operators. gRPC makes its calls from any thread. Methods that change
// something, or read the state folder, run on a thread that may block.
#ifndef RESIDENT_SERVER_OPERATORS_OPERATORS_SERVICE_H_
#define RESIDENT_SERVER_OPERATORS_OPERATORS_SERVICE_H_

#include <memory>

#include "grpcpp/impl/service_type.h"
#include "server/operators/installs.h"

namespace resident {

// `installs` outlives the service, and the service all of its calls.
std::unique_ptr<grpc::Service> MakeOperatorsService(Installs& installs);

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_OPERATORS_SERVICE_H_
