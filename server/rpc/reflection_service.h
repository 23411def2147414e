// ReflectionService: grpc.reflection.v1alpha.ServerReflection, for clients that have no protos.
//
// Answers from the descriptors that are linked into the program, one answer for each request,
// in order. A request that names nothing known gets an error response, and the stream goes on.
//
// Thread safety: as gRPC's callback services: calls come from any thread.
#ifndef RESIDENT_SERVER_RPC_REFLECTION_SERVICE_H_
#define RESIDENT_SERVER_RPC_REFLECTION_SERVICE_H_

#include <string>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/rpc/core.h"

namespace resident {

class ReflectionService final
    : public grpc::reflection::v1alpha::ServerReflection::CallbackService {
 public:
  // `services`: full names of what the daemon serves.
  ReflectionService(Core& core, std::vector<std::string> services)
      : core_(core), services_(std::move(services)) {}

  grpc::ServerBidiReactor<grpc::reflection::v1alpha::ServerReflectionRequest,
                          grpc::reflection::v1alpha::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override;

 private:
  Core& core_;
  const std::vector<std::string> services_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_REFLECTION_SERVICE_H_
