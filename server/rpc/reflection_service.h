// ReflectionService: grpc.reflection.v1alpha.ServerReflection, for clients without the protos.
//
// Answers from the descriptors that are linked into the program, one answer for each request,
// in order. A request for an unknown name gets an error response, and the stream continues.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_RPC_REFLECTION_SERVICE_H_
#define RESIDENT_SERVER_RPC_REFLECTION_SERVICE_H_

#include <string>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/core/core.h"

namespace resident {

class ReflectionService final : public grpc::reflection::v1alpha::ServerReflection::
                                    WithRawCallbackMethod_ServerReflectionInfo<
                                        grpc::reflection::v1alpha::ServerReflection::Service> {
 public:
  // `services`: full names of the services of the daemon.
  ReflectionService(Core& core, std::vector<std::string> services);
  ~ReflectionService() override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override;

 private:
  Core& core_;
  const std::vector<std::string> services_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_REFLECTION_SERVICE_H_
