// LoadModelStream: one Models.Load (server/operators/upload_stream.h).
//
// Thread safety: see UploadStream.
#ifndef RESIDENT_SERVER_MODELS_LOAD_MODEL_STREAM_H_
#define RESIDENT_SERVER_MODELS_LOAD_MODEL_STREAM_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/models/model_loader.h"
#include "server/models/models.h"
#include "server/operators/upload_stream.h"

namespace resident {

class LoadModelStream final : public UploadStream {
 public:
  LoadModelStream(Transport& transport, Models& models)
      : UploadStream(transport, models.installs, "resident.v1.Models/Load"), models_(models) {}

 private:
  absl::Status Begin(const grpc::CallbackServerContext& context, const Caller& caller) override;
  absl::Status Add(grpc::ByteBuffer& bytes) override;
  absl::StatusOr<grpc::ByteBuffer> Finish() override;
  absl::Status Work() override;
  void Withdraw() override { loader_->Withdraw(); }

  Models& models_;
  std::optional<ModelLoader> loader_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_LOAD_MODEL_STREAM_H_
