// InferenceService: inference.GRPCInferenceService, the Open Inference Protocol
// (proto/inference/open_inference.proto, docs/inference.md).
//
// It translates: models are operators, and every inference is a batch like those of Executor.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_INFERENCE_INFERENCE_SERVICE_H_
#define RESIDENT_SERVER_INFERENCE_INFERENCE_SERVICE_H_

#include <functional>

#include "inference/open_inference.grpc.pb.h"
#include "server/inference/inference_state.h"
#include "server/operators/removal_waits.h"

namespace resident {

// ModelInfer and ModelStreamInfer read bytes (message_bytes.h); for the other methods, see
// GRPCInferenceService::CallbackService.
using InferenceCallbacks = inference::GRPCInferenceService::WithRawCallbackMethod_ModelInfer<
    inference::GRPCInferenceService::WithRawCallbackMethod_ModelStreamInfer<inference::GRPCInferenceService::WithCallbackMethod_ServerLive<
        inference::GRPCInferenceService::WithCallbackMethod_ServerReady<inference::GRPCInferenceService::WithCallbackMethod_ModelReady<
            inference::GRPCInferenceService::WithCallbackMethod_ServerMetadata<inference::GRPCInferenceService::WithCallbackMethod_ModelMetadata<
                inference::GRPCInferenceService::WithCallbackMethod_ModelConfig<
                    inference::GRPCInferenceService::WithCallbackMethod_ModelStatistics<
                        inference::GRPCInferenceService::WithCallbackMethod_RepositoryIndex<
                            inference::GRPCInferenceService::WithCallbackMethod_RepositoryModelLoad<
                                inference::GRPCInferenceService::WithCallbackMethod_RepositoryModelUnload<
                                    inference::GRPCInferenceService::WithCallbackMethod_SystemSharedMemoryStatus<
                                        inference::GRPCInferenceService::WithCallbackMethod_SystemSharedMemoryRegister<
                                            inference::GRPCInferenceService::WithCallbackMethod_SystemSharedMemoryUnregister<
                                                inference::GRPCInferenceService::WithCallbackMethod_CudaSharedMemoryStatus<
                                                    inference::GRPCInferenceService::WithCallbackMethod_CudaSharedMemoryRegister<
                                                        inference::GRPCInferenceService::
                                                            WithCallbackMethod_CudaSharedMemoryUnregister<
                                                                inference::GRPCInferenceService::WithCallbackMethod_TraceSetting<
                                                                    inference::GRPCInferenceService::
                                                                        WithCallbackMethod_LogSettings<
                                                                            inference::GRPCInferenceService::
                                                                                Service>>>>>>>>>>>>>>>>>>>>;

class InferenceService final : public InferenceCallbacks {
 public:
  // `ready`: what ServerReady answers.
  InferenceService(Buffers& buffers, Installs& installs, const InferenceOptions& options,
                   std::function<bool()> ready);
  ~InferenceService() override;

  bool enabled() const { return state_.options.enabled; }

  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* context,
                                       const inference::ServerLiveRequest* request,
                                       inference::ServerLiveResponse* response) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* context,
                                        const inference::ServerReadyRequest* request,
                                        inference::ServerReadyResponse* response) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* context,
                                       const inference::ModelReadyRequest* request,
                                       inference::ModelReadyResponse* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* context,
                                           const inference::ServerMetadataRequest* request,
                                           inference::ServerMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const inference::ModelMetadataRequest* request,
                                          inference::ModelMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext* context,
                                        const inference::ModelConfigRequest* request,
                                        inference::ModelConfigResponse* response) override;
  grpc::ServerUnaryReactor* ModelStatistics(grpc::CallbackServerContext* context,
                                            const inference::ModelStatisticsRequest* request,
                                            inference::ModelStatisticsResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryIndex(grpc::CallbackServerContext* context,
                                            const inference::RepositoryIndexRequest* request,
                                            inference::RepositoryIndexResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryModelLoad(
      grpc::CallbackServerContext* context, const inference::RepositoryModelLoadRequest* request,
      inference::RepositoryModelLoadResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryModelUnload(
      grpc::CallbackServerContext* context, const inference::RepositoryModelUnloadRequest* request,
      inference::RepositoryModelUnloadResponse* response) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryStatus(
      grpc::CallbackServerContext* context,
      const inference::SystemSharedMemoryStatusRequest* request,
      inference::SystemSharedMemoryStatusResponse* response) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryRegister(
      grpc::CallbackServerContext* context,
      const inference::SystemSharedMemoryRegisterRequest* request,
      inference::SystemSharedMemoryRegisterResponse* response) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryUnregister(
      grpc::CallbackServerContext* context,
      const inference::SystemSharedMemoryUnregisterRequest* request,
      inference::SystemSharedMemoryUnregisterResponse* response) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryStatus(
      grpc::CallbackServerContext* context, const inference::CudaSharedMemoryStatusRequest* request,
      inference::CudaSharedMemoryStatusResponse* response) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryRegister(
      grpc::CallbackServerContext* context,
      const inference::CudaSharedMemoryRegisterRequest* request,
      inference::CudaSharedMemoryRegisterResponse* response) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryUnregister(
      grpc::CallbackServerContext* context,
      const inference::CudaSharedMemoryUnregisterRequest* request,
      inference::CudaSharedMemoryUnregisterResponse* response) override;
  grpc::ServerUnaryReactor* TraceSetting(grpc::CallbackServerContext* context,
                                         const inference::TraceSettingRequest* request,
                                         inference::TraceSettingResponse* response) override;
  grpc::ServerUnaryReactor* LogSettings(grpc::CallbackServerContext* context,
                                        const inference::LogSettingsRequest* request,
                                        inference::LogSettingsResponse* response) override;

 private:
  // For regions of both kinds.
  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context, RegionSpec spec);
  grpc::ServerUnaryReactor* Unregister(grpc::CallbackServerContext* context, RegionKind kind,
                                       const std::string& name);

  InferenceState state_;
  const std::function<bool()> ready_;
  RemovalWaits removals_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFERENCE_SERVICE_H_
