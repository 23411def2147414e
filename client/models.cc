#include "client/models.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "client/connection.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/task_status_code.h"

namespace resident::client {
namespace {

// Size of the pieces of a weight or file.
constexpr uint64_t kPieceBytes = 1u << 20;

}  // namespace

Models::Models(const Client& client) : connection_(client.connection_) {}

absl::StatusOr<v1::LoadModelResponse> Models::Load(
    const v1::LoadModelHeader& header, const std::map<std::string, std::string_view>& parts) {
  std::map<std::string, uint64_t> sizes;
  for (const auto& [name, bytes] : parts) sizes[name] = bytes.size();
  return Load(header, sizes, [&](const std::string& name, uint64_t offset, std::string* to) {
    const std::string_view piece = parts.at(name).substr(offset, to->size());
    std::copy(piece.begin(), piece.end(), to->begin());
    return absl::OkStatus();
  });
}

absl::StatusOr<v1::LoadModelResponse> Models::Load(v1::LoadModelHeader header,
                                                   const std::map<std::string, uint64_t>& sizes,
                                                   const ReadPart& read) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context, /*needs_session=*/false, absl::InfiniteDuration()));
  const auto stream = connection->models->Load(&context);
  const bool files = header.has_onnx();
  if (files) {
    uint64_t bytes = 0;
    for (const auto& [name, size] : sizes) bytes += size;
    header.mutable_onnx()->set_file_bytes(bytes);
  }
  v1::LoadModelRequest request;
  request.mutable_header()->Swap(&header);
  bool open = stream->Write(request);  // If it fails, Finish() returns the error.
  absl::Status failed;
  for (const auto& [name, size] : sizes) {
    if (files) {
      request.mutable_file()->set_name(name);
    } else {
      request.mutable_weight()->set_tensor(name);
    }
    std::string& piece =
        files ? *request.mutable_file()->mutable_data() : *request.mutable_weight()->mutable_data();
    for (uint64_t sent = 0; open && sent < size; sent += piece.size()) {
      piece.resize(std::min(kPieceBytes, size - sent));
      failed = read(name, sent, &piece);
      if (!failed.ok()) {
        context.TryCancel();
        open = false;
        break;
      }
      open = stream->Write(request);
    }
  }
  stream->WritesDone();
  v1::LoadModelResponse last;
  v1::LoadModelResponse response;
  while (stream->Read(&response)) {
    if (response.report().findings_size() == 0 && last.has_report()) {
      *response.mutable_report() = last.report();
    }
    last = std::move(response);
  }
  const absl::Status ended = connection->FromCall(stream->Finish());
  RETURN_IF_ERROR(failed);
  RETURN_IF_ERROR(ended);
  return last;
}

absl::StatusOr<std::vector<v1::Model>> Models::List(const std::string& name) {
  v1::ListModelsRequest request;
  request.set_name(name);
  ASSIGN_OR_RETURN(const v1::ListModelsResponse response,
                   CallNode(connection_, &Connection::models, &v1::Models::Stub::List, request));
  return std::vector<v1::Model>(response.models().begin(), response.models().end());
}

absl::StatusOr<v1::ChangeModelResponse> Models::Activate(const std::string& name, uint32_t version,
                                                         std::optional<uint64_t> expected_revision,
                                                         const v1::BakeOptions& bake) {
  v1::ActivateModelRequest request;
  request.set_name(name);
  request.set_version(version);
  *request.mutable_bake() = bake;
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  return CallNode(connection_, &Connection::models, &v1::Models::Stub::Activate, request);
}

absl::StatusOr<v1::ChangeModelResponse> Models::Share(const std::string& name, uint32_t version,
                                                      double percent,
                                                      std::optional<uint64_t> expected_revision) {
  v1::ShareModelRequest request;
  request.set_name(name);
  request.set_version(version);
  request.set_percent(percent);
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  return CallNode(connection_, &Connection::models, &v1::Models::Stub::Share, request);
}

absl::StatusOr<v1::ChangeModelResponse> Models::Rollback(
    const std::string& name, std::optional<uint64_t> expected_revision) {
  v1::RollbackModelRequest request;
  request.set_name(name);
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  return CallNode(connection_, &Connection::models, &v1::Models::Stub::Rollback, request);
}

absl::StatusOr<v1::ChangeModelResponse> Models::Remove(const std::string& name, uint32_t version,
                                                       std::optional<uint64_t> expected_revision) {
  v1::RemoveModelRequest request;
  request.set_name(name);
  request.set_version(version);
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  return CallNode(connection_, &Connection::models, &v1::Models::Stub::Remove, request);
}

absl::StatusOr<v1::BatchResult> Models::Run(const v1::ModelCall& call, absl::Duration timeout) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context, /*needs_session=*/false));
  v1::RunRequest request;
  *request.mutable_batch()->mutable_model() = call;
  if (timeout > absl::ZeroDuration()) {
    request.mutable_batch()->mutable_options()->set_timeout_us(
        static_cast<uint64_t>(absl::ToInt64Microseconds(timeout)));
  }
  v1::RunResponse response;
  RETURN_IF_ERROR(connection_->FromCall(connection_->executor->Run(&context, request, &response)));
  v1::BatchResult& result = *response.mutable_result();
  if (result.errors_size() > 0) {
    return absl::Status(ToStatusCode(result.errors(0).status()), result.errors(0).message());
  }
  return std::move(result);
}

}  // namespace resident::client
