// Client: the calls to one daemon. Batches, buffers and streams are in separate files.
#include "client/residentd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/connection.h"
#include "client/local_socket.h"
#include "runtime/base/host_port.h"
#include "runtime/base/nearest.h"
#include "runtime/base/status_macros.h"

namespace resident::client {

namespace {

// Between two attempts of Run.
constexpr absl::Duration kFirstDelay = absl::Milliseconds(50);
constexpr absl::Duration kLastDelay = absl::Seconds(2);

}  // namespace

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

absl::StatusOr<std::unique_ptr<Client>> Client::Pin() {
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> node, connection_->ChooseNode());
  return std::unique_ptr<Client>(new Client(std::move(node)));
}

absl::StatusOr<Result> Client::Run(Batch& batch) {
  const Options& options = connection_->options();
  if (options.retry == Retry::kNever) return RunOnce(batch, options.call_timeout);
  const bool repeatable = !UsesBuffers(batch.message());
  const absl::Time end = absl::Now() + options.call_timeout;
  absl::BitGen random;
  for (absl::Duration delay = kFirstDelay;; delay = std::min(2 * delay, kLastDelay)) {
    absl::StatusOr<Result> result = RunOnce(batch, end - absl::Now());
    const bool again = result.ok() ? MaySendAgain(result->message(), options.retry, repeatable)
                                   : MaySendAgain(result.status(), options.retry, repeatable);
    // With a random part, so that clients which were refused together do not come back together.
    const absl::Duration wait = delay * absl::Uniform(random, 0.5, 1.0);
    if (!again || absl::Now() + wait >= end) return result;
    absl::SleepFor(wait);
  }
}

absl::StatusOr<Result> Client::RunOnce(Batch& batch, absl::Duration timeout) {
  std::shared_ptr<Connection> connection = connection_;
  const bool balance = connection_->options().balance;
  if (balance && UsesBuffers(batch.message())) {
    if (batch.mixed_) {
      return absl::InvalidArgumentError(
          "the batch uses buffers of several sessions. Fix: upload those again whose node has "
          "left, "
          "and make a new batch");
    }
    connection = batch.node_.lock();
    if (connection == nullptr) {  // Its buffers were named by their ids, or they are freed.
      ASSIGN_OR_RETURN(connection, connection_->Node());
    } else if (!connection->IsCurrentSession(batch.session_)) {
      return NodeLeft(connection->address(), "buffers of the batch belonged to its session");
    }
  }
  grpc::ClientContext context;
  RETURN_IF_ERROR(
      connection->Prepare(context, /*needs_session=*/!connection->options().balance, timeout));
  v1::RunRequest request;
  request.unsafe_arena_set_allocated_batch(&batch.message());  // Not copied; see Stream::Send.
  v1::RunResponse response;
  const grpc::Status status = connection->executor->Run(&context, request, &response);
  (void)request.unsafe_arena_release_batch();
  if (!status.ok()) return connection->FromCall(status);
  return Result(std::move(*response.mutable_result()));
}

absl::StatusOr<std::unique_ptr<Stream>> Client::OpenStream(StreamOptions options) {
  if (options.max_age != absl::InfiniteDuration()) return Stream::Open(connection_, options);
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, connection_->Node());
  return Stream::Open(std::move(connection), options);
}

absl::StatusOr<BufferHandle> Client::AllocateAs(v1::DType dtype, const Shape& shape,
                                                const BufferOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context));
  v1::AllocateRequest request;
  request.set_dtype(dtype);
  request.mutable_shape()->Add(shape.begin(), shape.end());
  if (options.device.has_value()) request.set_device(*options.device);
  request.set_durable(options.durable);
  request.set_name(options.name);
  v1::AllocateResponse response;
  absl::Status status =
      connection->FromCall(connection->buffers->Allocate(&context, request, &response));
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(std::string session, connection->SessionId());
  return BufferHandle(connection, session, std::move(*response.mutable_buffer()));
}

absl::StatusOr<BufferHandle> Client::ImportSharedAs(int fd, v1::DType dtype, const Shape& shape,
                                                    const BufferOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, connection_->Node());
  ASSIGN_OR_RETURN(std::string token, connection->PassDescriptor(kSharedMemoryMagic, fd));
  v1::ImportSharedRequest request;
  request.set_descriptor_token(std::move(token));
  return Import(std::move(connection), std::move(request), dtype, shape, options);
}

absl::StatusOr<BufferHandle> Client::ImportSharedAs(const std::string& name, v1::DType dtype,
                                                    const Shape& shape,
                                                    const BufferOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, connection_->Node());
  v1::ImportSharedRequest request;
  request.set_name(name);
  return Import(std::move(connection), std::move(request), dtype, shape, options);
}

absl::StatusOr<BufferHandle> Client::Import(std::shared_ptr<Connection> connection,
                                            v1::ImportSharedRequest request, v1::DType dtype,
                                            const Shape& shape, const BufferOptions& options) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context));
  request.set_dtype(dtype);
  request.mutable_shape()->Add(shape.begin(), shape.end());
  request.set_size_bytes(CountElements(shape) * SizeOf(dtype));
  if (options.device.has_value()) request.set_device(*options.device);
  v1::ImportSharedResponse response;
  absl::Status status =
      connection->FromCall(connection->buffers->ImportShared(&context, request, &response));
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(std::string session, connection->SessionId());
  return BufferHandle(std::move(connection), session, std::move(*response.mutable_buffer()));
}

absl::StatusOr<BufferHandle> Client::ImportCudaAs(int fd, uint64_t allocation_bytes,
                                                  const std::string& device_uuid, v1::DType dtype,
                                                  const Shape& shape) {
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, connection_->Node());
  v1::ImportCudaRequest request;
  ASSIGN_OR_RETURN(*request.mutable_descriptor_token(),
                   connection->PassDescriptor(kDeviceMemoryMagic, fd));
  request.set_allocation_bytes(allocation_bytes);
  request.set_device_uuid(device_uuid);
  request.set_dtype(dtype);
  request.mutable_shape()->Add(shape.begin(), shape.end());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context));
  v1::ImportCudaResponse response;
  absl::Status status =
      connection->FromCall(connection->buffers->ImportCuda(&context, request, &response));
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(std::string session, connection->SessionId());
  return BufferHandle(std::move(connection), session, std::move(*response.mutable_buffer()));
}

absl::StatusOr<std::vector<v1::BufferInfo>> Client::ListBuffers() {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context));
  v1::ListBuffersResponse response;
  RETURN_IF_ERROR(connection->FromCall(
      connection->buffers->List(&context, v1::ListBuffersRequest(), &response)));
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
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  return connection->Upload(buffer, offset_bytes, data.data(), data.size());
}

absl::Status Client::DownloadBytes(uint64_t buffer, uint64_t offset_bytes, uint64_t size_bytes,
                                   const std::function<bool(std::string_view)>& sink) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  return connection->Download(buffer, offset_bytes, size_bytes, sink);
}

absl::StatusOr<std::vector<v1::BufferInfo>> Client::LoadFile(const std::string& path,
                                                             const LoadOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context));
  v1::LoadFileRequest request;
  request.set_path(path);
  request.set_prefix(options.prefix);
  if (options.device.has_value()) request.set_device(*options.device);
  request.set_skip_unsupported(options.skip_unsupported);
  const auto stream = connection->buffers->LoadFile(&context, request);
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
  RETURN_IF_ERROR(connection->FromCall(stream->Finish()));
  return buffers;
}

absl::Status Client::Free(uint64_t buffer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  return connection->Free(buffer);
}

absl::Status Client::Persist(uint64_t buffer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context));
  v1::PersistRequest request;
  request.set_buffer_id(buffer);
  v1::PersistResponse response;
  return connection->FromCall(connection->buffers->Persist(&context, request, &response));
}

absl::StatusOr<std::vector<v1::Operator>> Client::ListOperators() {
  grpc::ClientContext context;
  absl::Status status = connection_->Prepare(context, /*needs_session=*/false);
  v1::ListOperatorsResponse response;
  if (status.ok()) {
    status = connection_->FromCall(
        connection_->operators->List(&context, v1::ListOperatorsRequest(), &response));
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
    status = connection_->FromCall(connection_->operators->Describe(&context, request, &response));
  }
  if (!status.ok()) return status;
  return std::move(*response.mutable_operator_());
}

absl::StatusOr<v1::GraphReport> Client::ValidateGraph(const v1::Graph& graph, bool dependencies) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  // The call needs no session. But the daemon closes connections that send much before it has
  // admitted a call, and a graph can be large: the session is opened first.
  absl::Status status = connection->Prepare(context);
  v1::ValidateGraphRequest request;
  *request.mutable_graph() = graph;
  request.set_dependencies(dependencies);
  v1::ValidateGraphResponse response;
  if (status.ok())
    status = connection->FromCall(connection->graphs->Validate(&context, request, &response));
  if (!status.ok()) return status;
  return std::move(*response.mutable_report());
}

absl::StatusOr<v1::RenderGraphResponse> Client::RenderGraph(const v1::RenderGraphRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  // As for ValidateGraph: a graph can be large.
  RETURN_IF_ERROR(connection->Prepare(context));
  v1::RenderGraphResponse response;
  RETURN_IF_ERROR(connection->FromCall(connection->graphs->Render(&context, request, &response)));
  return response;
}

absl::StatusOr<v1::GraphResult> Client::RunGraph(
    const v1::RunGraphRequest& request,
    const std::function<void(const v1::GraphStep& step)>& on_step,
    const std::function<void(const v1::GraphTrace& trace)>& on_trace) {
  const bool any_node = !request.has_graph() && request.graph_session().empty() &&
                        std::ranges::none_of(request.bindings(), [](const v1::GraphBinding& each) {
                          return each.memory_case() == v1::GraphBinding::kBufferId;
                        });
  if (any_node) return connection_->RunGraph(request, on_step, on_trace);
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  return connection->RunGraph(request, on_step, on_trace);
}

absl::StatusOr<v1::StatusResponse> Client::Status() {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  absl::Status status = connection->Prepare(context, /*needs_session=*/false);
  v1::StatusResponse response;
  if (status.ok()) {
    status =
        connection->FromCall(connection->admin->Status(&context, v1::StatusRequest(), &response));
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
  if (status.ok())
    status = connection_->FromCall(connection_->health->Check(&context, request, &response));
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
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context, /*needs_session=*/false));
  v1::ParkRequest request;
  request.set_device(device);
  v1::ParkResponse response;
  return connection->FromCall(connection->admin->Park(&context, request, &response));
}

absl::Status Client::Resume(uint32_t device) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context, /*needs_session=*/false));
  v1::ResumeRequest request;
  request.set_device(device);
  v1::ResumeResponse response;
  return connection->FromCall(connection->admin->Resume(&context, request, &response));
}

absl::StatusOr<uint64_t> Client::Drain(absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  // The daemon answers at its own deadline; the call's deadline is later. The client does not
  // have the daemon's default deadline, so the call then has none.
  const absl::Duration call =
      timeout == absl::ZeroDuration() ? absl::InfiniteDuration() : timeout + absl::Seconds(5);
  RETURN_IF_ERROR(connection->Prepare(context, /*needs_session=*/false, call));
  v1::DrainRequest request;
  request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
  v1::DrainResponse response;
  RETURN_IF_ERROR(connection->FromCall(connection->admin->Drain(&context, request, &response)));
  return response.remaining_tasks();
}

absl::StatusOr<std::string> Client::SessionId() {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  return connection->SessionId();
}
const std::string& Client::address() const { return connection_->address(); }

}  // namespace resident::client
