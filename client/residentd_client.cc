// Client: the calls to one daemon. Batches, buffers and streams are in separate files.
#include "client/residentd_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/connection.h"
#include "runtime/base/host_port.h"
#include "runtime/base/nearest.h"
#include "runtime/base/status_macros.h"

namespace resident::client {

Client::Client(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        Options options) {
  if (!IsServerAddress(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address,
                     "' is not HOST:PORT. Fix: give a port from 1 to 65535, for example "
                     "127.0.0.1:50051, or unix:PATH"));
  }
  RETURN_IF_ERROR(CheckCredentials(options.credentials, address));
  auto connection = std::make_shared<Connection>(address, std::move(options));
  RETURN_IF_ERROR(connection->WaitForServer());
  return std::unique_ptr<Client>(new Client(std::move(connection)));
}

absl::StatusOr<Result> Client::Run(Batch& batch) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::RunRequest request;
  request.unsafe_arena_set_allocated_batch(&batch.message());  // Not copied; see Stream::Send.
  v1::RunResponse response;
  const grpc::Status status = connection_->executor->Run(&context, request, &response);
  (void)request.unsafe_arena_release_batch();
  if (!status.ok()) return FromGrpc(status);
  return Result(std::move(*response.mutable_result()));
}

absl::StatusOr<std::unique_ptr<Stream>> Client::OpenStream(StreamOptions options) {
  return Stream::Open(connection_, options);
}

absl::StatusOr<BufferHandle> Client::AllocateAs(v1::DType dtype, const Shape& shape,
                                                const BufferOptions& options) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::AllocateRequest request;
  request.set_dtype(dtype);
  request.mutable_shape()->Add(shape.begin(), shape.end());
  if (options.device.has_value()) request.set_device(*options.device);
  request.set_durable(options.durable);
  request.set_name(options.name);
  v1::AllocateResponse response;
  absl::Status status = FromGrpc(connection_->buffers->Allocate(&context, request, &response));
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(std::string session, connection_->SessionId());
  return BufferHandle(connection_, session, std::move(*response.mutable_buffer()));
}

absl::StatusOr<BufferHandle> Client::ImportSharedAs(int fd, v1::DType dtype, const Shape& shape,
                                                    const BufferOptions& options) {
  ASSIGN_OR_RETURN(std::string token, connection_->PassDescriptor(fd));
  v1::ImportSharedRequest request;
  request.set_descriptor_token(std::move(token));
  return Import(std::move(request), dtype, shape, options);
}

absl::StatusOr<BufferHandle> Client::ImportSharedAs(const std::string& name, v1::DType dtype,
                                                    const Shape& shape,
                                                    const BufferOptions& options) {
  v1::ImportSharedRequest request;
  request.set_name(name);
  return Import(std::move(request), dtype, shape, options);
}

absl::StatusOr<BufferHandle> Client::Import(v1::ImportSharedRequest request, v1::DType dtype,
                                            const Shape& shape, const BufferOptions& options) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  request.set_dtype(dtype);
  request.mutable_shape()->Add(shape.begin(), shape.end());
  request.set_size_bytes(CountElements(shape) * SizeOf(dtype));
  if (options.device.has_value()) request.set_device(*options.device);
  v1::ImportSharedResponse response;
  absl::Status status = FromGrpc(connection_->buffers->ImportShared(&context, request, &response));
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(std::string session, connection_->SessionId());
  return BufferHandle(connection_, session, std::move(*response.mutable_buffer()));
}

absl::StatusOr<std::vector<v1::BufferInfo>> Client::ListBuffers() {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::ListBuffersResponse response;
  RETURN_IF_ERROR(
      FromGrpc(connection_->buffers->List(&context, v1::ListBuffersRequest(), &response)));
  return std::vector<v1::BufferInfo>(response.buffers().begin(), response.buffers().end());
}

absl::StatusOr<v1::BufferInfo> Client::FindBuffer(const std::string& name) {
  ASSIGN_OR_RETURN(const std::vector<v1::BufferInfo> buffers, ListBuffers());
  std::vector<std::string_view> names;
  std::vector<const v1::BufferInfo*> found;
  for (const v1::BufferInfo& buffer : buffers) {
    names.push_back(buffer.name());
    if (buffer.name() == name) found.push_back(&buffer);
  }
  if (found.size() == 1) return *found[0];
  if (found.empty()) {
    const std::string nearest = Nearest(name, names);
    return absl::NotFoundError(
        absl::StrCat("no buffer has the name '", name, "'",
                     nearest.empty() ? "" : absl::StrCat(" (did you mean '", nearest, "'?)"),
                     ". Fix: give a name or an id from the list of buffers"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(found.size(), " buffers have the name '", name, "': ",
                   absl::StrJoin(found, ", ",
                                 [](std::string* out, const v1::BufferInfo* buffer) {
                                   absl::StrAppend(out, buffer->id());
                                 }),
                   ". Fix: give an id"));
}

absl::Status Client::UploadBytes(uint64_t buffer, uint64_t offset_bytes, std::string_view data) {
  return connection_->Upload(buffer, offset_bytes, data.data(), data.size());
}

absl::Status Client::DownloadBytes(uint64_t buffer, uint64_t offset_bytes, uint64_t size_bytes,
                                   const std::function<bool(std::string_view)>& sink) {
  return connection_->Download(buffer, offset_bytes, size_bytes, sink);
}

absl::StatusOr<std::vector<v1::BufferInfo>> Client::LoadFile(const std::string& path,
                                                             const LoadOptions& options) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::LoadFileRequest request;
  request.set_path(path);
  request.set_prefix(options.prefix);
  if (options.device.has_value()) request.set_device(*options.device);
  request.set_skip_unsupported(options.skip_unsupported);
  const auto stream = connection_->buffers->LoadFile(&context, request);
  std::vector<v1::BufferInfo> buffers;
  v1::LoadFileResponse response;
  while (stream->Read(&response)) {
    buffers.insert(buffers.end(), response.buffers().begin(), response.buffers().end());
    if (options.skipped != nullptr) {
      options.skipped->insert(options.skipped->end(), response.skipped().begin(),
                              response.skipped().end());
    }
    if (options.progress) options.progress(response.loaded_bytes(), response.total_bytes());
  }
  RETURN_IF_ERROR(FromGrpc(stream->Finish()));
  return buffers;
}

absl::Status Client::Free(uint64_t buffer) { return connection_->Free(buffer); }

absl::Status Client::Persist(uint64_t buffer) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::PersistRequest request;
  request.set_buffer_id(buffer);
  v1::PersistResponse response;
  return FromGrpc(connection_->buffers->Persist(&context, request, &response));
}

absl::StatusOr<std::vector<v1::Operator>> Client::ListOperators() {
  grpc::ClientContext context;
  absl::Status status = connection_->Prepare(context, /*needs_session=*/false);
  v1::ListOperatorsResponse response;
  if (status.ok()) {
    status =
        FromGrpc(connection_->operators->List(&context, v1::ListOperatorsRequest(), &response));
  }
  if (!status.ok()) return status;
  return std::vector<v1::Operator>(response.operators().begin(), response.operators().end());
}

absl::StatusOr<v1::Operator> Client::DescribeOperator(const std::string& name) {
  grpc::ClientContext context;
  absl::Status status = connection_->Prepare(context, /*needs_session=*/false);
  v1::DescribeOperatorRequest request;
  request.set_name(name);
  v1::DescribeOperatorResponse response;
  if (status.ok()) {
    status = FromGrpc(connection_->operators->Describe(&context, request, &response));
  }
  if (!status.ok()) return status;
  return std::move(*response.mutable_operator_());
}

absl::StatusOr<v1::GraphReport> Client::ValidateGraph(const v1::Graph& graph, bool dependencies) {
  grpc::ClientContext context;
  // The call needs no session. But the daemon closes connections that send much before it has
  // admitted a call, and a graph can be large: the session is opened first.
  absl::Status status = connection_->Prepare(context);
  v1::ValidateGraphRequest request;
  *request.mutable_graph() = graph;
  request.set_dependencies(dependencies);
  v1::ValidateGraphResponse response;
  if (status.ok()) status = FromGrpc(connection_->graphs->Validate(&context, request, &response));
  if (!status.ok()) return status;
  return std::move(*response.mutable_report());
}

absl::StatusOr<v1::RenderGraphResponse> Client::RenderGraph(const v1::RenderGraphRequest& request) {
  grpc::ClientContext context;
  // As for ValidateGraph: a graph can be large.
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::RenderGraphResponse response;
  RETURN_IF_ERROR(FromGrpc(connection_->graphs->Render(&context, request, &response)));
  return response;
}

absl::StatusOr<v1::GraphResult> Client::RunGraph(
    const v1::RunGraphRequest& request,
    const std::function<void(const v1::GraphStep& step)>& on_step,
    const std::function<void(const v1::GraphTrace& trace)>& on_trace) {
  return connection_->RunGraph(request, on_step, on_trace);
}

absl::StatusOr<v1::StatusResponse> Client::Status() {
  grpc::ClientContext context;
  absl::Status status = connection_->Prepare(context, /*needs_session=*/false);
  v1::StatusResponse response;
  if (status.ok()) {
    status = FromGrpc(connection_->admin->Status(&context, v1::StatusRequest(), &response));
  }
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<bool> Client::IsServing(const std::string& service) {
  grpc::ClientContext context;
  absl::Status status = connection_->Prepare(context, /*needs_session=*/false);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  if (status.ok()) status = FromGrpc(connection_->health->Check(&context, request, &response));
  if (absl::IsNotFound(status)) {
    return absl::NotFoundError(absl::StrCat("the daemon has no service '", service,
                                            "'. Fix: give a full name, such as "
                                            "resident.v1.Executor, resident.device/N for device "
                                            "N, or no name for all of them"));
  }
  if (!status.ok()) return status;
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

absl::Status Client::Park(uint32_t device) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context, /*needs_session=*/false));
  v1::ParkRequest request;
  request.set_device(device);
  v1::ParkResponse response;
  return FromGrpc(connection_->admin->Park(&context, request, &response));
}

absl::Status Client::Resume(uint32_t device) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context, /*needs_session=*/false));
  v1::ResumeRequest request;
  request.set_device(device);
  v1::ResumeResponse response;
  return FromGrpc(connection_->admin->Resume(&context, request, &response));
}

absl::StatusOr<uint64_t> Client::Drain(absl::Duration timeout) {
  grpc::ClientContext context;
  // The daemon answers at its own deadline; the call's deadline is later. The client does not
  // have the daemon's default deadline, so the call then has none.
  const absl::Duration call =
      timeout == absl::ZeroDuration() ? absl::InfiniteDuration() : timeout + absl::Seconds(5);
  RETURN_IF_ERROR(connection_->Prepare(context, /*needs_session=*/false, call));
  v1::DrainRequest request;
  request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
  v1::DrainResponse response;
  RETURN_IF_ERROR(FromGrpc(connection_->admin->Drain(&context, request, &response)));
  return response.remaining_tasks();
}

absl::StatusOr<std::string> Client::SessionId() { return connection_->SessionId(); }
const std::string& Client::address() const { return connection_->address(); }

}  // namespace resident::client
