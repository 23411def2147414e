// The service inference.GRPCInferenceService, the Open Inference Protocol
// (proto/inference/open_inference.proto, docs/inference.md). It translates: models are operators,
// and every inference is a batch like those of Executor. gRPC makes its calls from any thread.
#ifndef RESIDENT_SERVER_INFERENCE_INFERENCE_SERVICE_H_
#define RESIDENT_SERVER_INFERENCE_INFERENCE_SERVICE_H_

#include <functional>
#include <memory>

#include "grpcpp/impl/service_type.h"
#include "server/inference/inference_state.h"

namespace resident {

// Null: the options do not enable it. `ready`: what ServerReady answers. `buffers` and `installs`
// outlive the service, and the service all of its calls.
std::unique_ptr<grpc::Service> MakeInferenceService(Buffers& buffers, Installs& installs,
                                                    Models& models, const InferenceOptions& options,
                                                    std::function<bool()> ready);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFERENCE_SERVICE_H_
