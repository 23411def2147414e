#include "client/residentd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/connection.h"

namespace resident::client {
namespace {

absl::StatusCode CodeOf(v1::TaskStatus status) {
  switch (status) {
    case v1::TASK_STATUS_OK:
      return absl::StatusCode::kOk;
    case v1::TASK_STATUS_INVALID_ARGUMENT:
      return absl::StatusCode::kInvalidArgument;
    case v1::TASK_STATUS_DEADLINE_EXCEEDED:
      return absl::StatusCode::kDeadlineExceeded;
    case v1::TASK_STATUS_CANCELLED:
      return absl::StatusCode::kCancelled;
    case v1::TASK_STATUS_ABORTED:
      return absl::StatusCode::kAborted;
    case v1::TASK_STATUS_UNAVAILABLE:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

uint64_t ElementsOf(const Shape& shape) {
  uint64_t elements = 1;
  for (uint64_t dimension : shape) elements *= dimension;
  return elements;
}

uint32_t SizeOf(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F64:
    case v1::DTYPE_I64:
      return 8;
    case v1::DTYPE_F32:
    case v1::DTYPE_I32:
    case v1::DTYPE_U32:
      return 4;
    case v1::DTYPE_F16:
    case v1::DTYPE_BF16:
      return 2;
    case v1::DTYPE_U8:
    case v1::DTYPE_I8:
      return 1;
    default:
      return 0;
  }
}

// --- BufferHandle ----------------------------------------------------------------

BufferHandle::BufferHandle(std::shared_ptr<Connection> connection, std::string session,
                           v1::BufferInfo info)
    : connection_(std::move(connection)), session_(std::move(session)), info_(std::move(info)) {}

BufferHandle::BufferHandle(BufferHandle&& other) noexcept
    : connection_(std::move(other.connection_)),
      session_(std::move(other.session_)),
      info_(std::move(other.info_)) {}

BufferHandle& BufferHandle::operator=(BufferHandle&& other) noexcept {
  if (this != &other) {
    Free().IgnoreError();
    connection_ = std::move(other.connection_);
    session_ = std::move(other.session_);
    info_ = std::move(other.info_);
  }
  return *this;
}

BufferHandle::~BufferHandle() { Free().IgnoreError(); }

absl::Status BufferHandle::Free() {
  if (connection_ == nullptr) return absl::OkStatus();
  const std::shared_ptr<Connection> connection = std::move(connection_);
  connection_ = nullptr;
  // The daemon freed it with its session; the id may be somebody else's by now.
  if (!connection->IsCurrentSession(session_)) return absl::OkStatus();
  return connection->Free(info_.id());
}

void BufferHandle::Release() { connection_ = nullptr; }

absl::Status BufferHandle::UploadBytes(const void* data, uint64_t size_bytes,
                                       uint64_t offset_bytes) {
  if (connection_ == nullptr) return absl::FailedPreconditionError("the buffer was freed");
  return connection_->Upload(info_.id(), offset_bytes, static_cast<const char*>(data), size_bytes);
}

absl::Status BufferHandle::DownloadBytes(void* data, uint64_t size_bytes,
                                         uint64_t offset_bytes) const {
  if (connection_ == nullptr) return absl::FailedPreconditionError("the buffer was freed");
  if (size_bytes == 0) return absl::OkStatus();
  uint64_t received = 0;
  absl::Status status =
      connection_->Download(info_.id(), offset_bytes, size_bytes, [&](std::string_view piece) {
        if (piece.size() > size_bytes - received) return false;
        std::memcpy(static_cast<char*>(data) + received, piece.data(), piece.size());
        received += piece.size();
        return true;
      });
  if (status.ok() && received != size_bytes) {
    status = absl::DataLossError(absl::StrCat("the server sent ", received, " of ", size_bytes,
                                              " bytes of buffer ", info_.id()));
  }
  return status;
}

// --- Batches and results -----------------------------------------------------------

TaskBatch::TaskBatch(std::string_view operator_name, uint32_t count) {
  tasks().set_operator_(operator_name.data(), operator_name.size());
  tasks().set_count(count);
}

TaskBatch& TaskBatch::Version(uint32_t version) {
  tasks().set_version(version);
  return *this;
}

TaskBatch& TaskBatch::InputBytes(v1::DType dtype, const void* data, uint64_t size_bytes,
                                 Shape shape) {
  v1::InlineColumn& column = *tasks().add_arguments()->mutable_inline_();
  if (shape.empty()) shape = {size_bytes / SizeOf(dtype) / std::max(tasks().count(), 1u)};
  column.set_dtype(dtype);
  column.mutable_shape()->Add(shape.begin(), shape.end());
  column.set_data(data, size_bytes);
  return *this;
}

TaskBatch& TaskBatch::Use(const BufferHandle& buffer, const View& view) {
  v1::BufferColumn& column = *tasks().add_arguments()->mutable_buffer();
  column.add_buffer_ids(buffer.id());
  column.set_stride_bytes(view.stride * client::SizeOf(buffer.dtype()));
  column.mutable_shape()->Add(view.shape.begin(), view.shape.end());
  column.mutable_strides()->Add(view.strides.begin(), view.strides.end());
  return *this;
}

TaskBatch& TaskBatch::ReturnAs(v1::DType dtype, Shape shape) {
  v1::ReturnedColumn& column = *tasks().add_arguments()->mutable_returned();
  column.set_dtype(dtype);
  column.mutable_shape()->Add(shape.begin(), shape.end());
  return *this;
}

TaskBatch& TaskBatch::Scalars(std::span<const double> values) {
  tasks().add_arguments()->mutable_scalar()->mutable_f64()->Add(values.begin(), values.end());
  return *this;
}

TaskBatch& TaskBatch::Integers(std::span<const int64_t> values) {
  tasks().add_arguments()->mutable_scalar()->mutable_i64()->Add(values.begin(), values.end());
  return *this;
}

FluxBatch::FluxBatch() { programs().add_offsets(0); }

FluxBatch& FluxBatch::Program(std::span<const uint8_t> bytecode) {
  programs().mutable_bytecode()->append(reinterpret_cast<const char*>(bytecode.data()),
                                        bytecode.size());
  programs().add_offsets(static_cast<uint32_t>(programs().bytecode().size()));
  return *this;
}

FluxBatch& FluxBatch::Operator(std::string_view name, uint32_t version) {
  programs().set_operator_(name.data(), name.size());
  programs().set_version(version);
  programs().clear_offsets();
  return *this;
}

FluxBatch& FluxBatch::Inputs(std::span<const int32_t> registers, uint32_t width) {
  programs().set_initial(registers.data(), registers.size_bytes());
  programs().set_initial_width(width);
  if (programs().count() == 0 && programs().offsets_size() <= 2 && width > 0) {
    programs().set_count(static_cast<uint32_t>(registers.size() / width));
  }
  return *this;
}

FluxBatch& FluxBatch::Runs(uint32_t count) {
  programs().set_count(count);
  return *this;
}

FluxBatch& FluxBatch::ProgramOfRun(std::span<const uint32_t> program) {
  programs().mutable_program_index()->Assign(program.begin(), program.end());
  programs().set_count(static_cast<uint32_t>(program.size()));
  return *this;
}

FluxBatch& FluxBatch::Wanted(std::span<const uint32_t> registers) {
  programs().mutable_wanted()->Assign(registers.begin(), registers.end());
  return *this;
}

FluxBatch& FluxBatch::MaxCycles(uint64_t cycles) {
  programs().set_max_cycles(cycles);
  return *this;
}

FluxBatch& FluxBatch::UnknownOpcodeIsNop() {
  programs().set_unknown_opcode(v1::FluxPrograms::UNKNOWN_OPCODE_NOP);
  return *this;
}

absl::Status Result::status() const {
  if (ok()) return absl::OkStatus();
  if (message_.errors().empty()) return absl::InternalError("tasks failed without a reason");
  const v1::TaskError& error = message_.errors(0);
  return absl::Status(CodeOf(error.status()),
                      absl::StrCat("task ", error.index(), ": ", error.message()));
}

// --- Stream ------------------------------------------------------------------------

// One thread reads results and calls back; any thread writes, one at a time.
//
// Batches travel under ids of the stream's own, so that callers' need not be unique.
class Stream::Impl {
 public:
  Impl(std::shared_ptr<Connection> connection, StreamOptions options)
      : connection_(std::move(connection)), max_in_flight_(std::max(options.max_in_flight, 1u)) {}

  ~Impl() {
    if (!reader_.joinable()) return;
    context_.TryCancel();
    reader_.join();
  }

  absl::Status Open() {
    absl::Status status =
        connection_->Prepare(context_, /*needs_session=*/true, absl::InfiniteDuration());
    if (!status.ok()) return status;
    rpc_ = connection_->executor->Submit(&context_);
    reader_ = std::thread([this] { ReadResults(); });
    return absl::OkStatus();
  }

  absl::Status Send(Batch& batch, Callback done) {
    absl::MutexLock writing(&write_mutex_);
    const uint64_t wire_id = next_id_++;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ended_ || pending_.size() < max_in_flight_;
      };
      mutex_.Await(absl::Condition(&has_room));
      if (ended_) return EndedStatus();
      if (half_closed_) {
        return absl::FailedPreconditionError("Send after Finish. Fix: open another stream");
      }
      pending_.emplace(wire_id, Pending{std::move(done), batch.message().id()});
    }
    const uint64_t caller_id = batch.message().id();
    batch.set_id(wire_id);
    // Lent to the request for the write: nothing is copied.
    request_.unsafe_arena_set_allocated_batch(&batch.message());
    const bool written = rpc_->Write(request_);
    (void)request_.unsafe_arena_release_batch();
    batch.set_id(caller_id);
    if (written) return absl::OkStatus();
    // The stream has ended; the reader finds out why, and answers all that is pending.
    absl::MutexLock lock(&mutex_);
    if (!ended_ && pending_.erase(wire_id) == 1) {
      mutex_.Await(absl::Condition(&ended_));
      return EndedStatus();
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    {
      absl::MutexLock writing(&write_mutex_);
      bool close = false;
      {
        absl::MutexLock lock(&mutex_);
        close = !half_closed_;
        half_closed_ = true;
      }
      if (close) rpc_->WritesDone();
    }
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    return status_;
  }

  void Cancel() { context_.TryCancel(); }

 private:
  struct Pending {
    Callback done;
    uint64_t caller_id;
  };

  absl::Status EndedStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!status_.ok()) return status_;
    return absl::UnavailableError("the server ended the stream");
  }

  void ReadResults() {
    v1::SubmitResponse response;
    while (rpc_->Read(&response)) {
      v1::BatchResult& message = *response.mutable_result();
      Pending pending;
      {
        absl::MutexLock lock(&mutex_);
        auto found = pending_.find(message.id());
        if (found == pending_.end()) continue;  // Not ours: nothing to tell anybody.
        pending = std::move(found->second);
        pending_.erase(found);
      }
      message.set_id(pending.caller_id);
      if (message.has_refused()) {
        pending.done(absl::Status(static_cast<absl::StatusCode>(message.refused().code()),
                                  message.refused().message()));
      } else {
        pending.done(Result(std::move(message)));
      }
    }
    const absl::Status status = FromGrpc(rpc_->Finish());
    absl::flat_hash_map<uint64_t, Pending> unanswered;
    {
      absl::MutexLock lock(&mutex_);
      unanswered.swap(pending_);
      status_ = status;
    }
    const absl::Status why =
        status.ok() ? absl::InternalError("the server ended the stream without answering") : status;
    for (auto& [id, pending] : unanswered) pending.done(why);
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  const std::shared_ptr<Connection> connection_;
  const size_t max_in_flight_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SubmitRequest, v1::SubmitResponse>> rpc_;
  std::thread reader_;

  // Held while writing; taken before mutex_.
  absl::Mutex write_mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(write_mutex_) = 1;
  v1::SubmitRequest request_ ABSL_GUARDED_BY(write_mutex_);

  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  // The stream is over and everything pending has been answered.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::~Stream() = default;

absl::Status Stream::Send(Batch& batch, Callback done) {
  return impl_->Send(batch, std::move(done));
}

std::future<absl::StatusOr<Result>> Stream::Send(Batch& batch) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<Result>>>();
  std::future<absl::StatusOr<Result>> future = promise->get_future();
  absl::Status status = impl_->Send(
      batch, [promise](absl::StatusOr<Result> result) { promise->set_value(std::move(result)); });
  if (!status.ok()) promise->set_value(status);
  return future;
}

absl::Status Stream::Finish() { return impl_->Finish(); }
void Stream::Cancel() { impl_->Cancel(); }

// --- Client ------------------------------------------------------------------------

Client::Client(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        Options options) {
  if (absl::Status usable = CheckCredentials(options.credentials, address); !usable.ok()) {
    return usable;
  }
  auto connection = std::make_shared<Connection>(address, std::move(options));
  if (absl::Status status = connection->WaitForServer(); !status.ok()) return status;
  return std::unique_ptr<Client>(new Client(std::move(connection)));
}

absl::StatusOr<Result> Client::Run(Batch& batch) {
  grpc::ClientContext context;
  if (absl::Status status = connection_->Prepare(context); !status.ok()) return status;
  v1::RunRequest request;
  request.unsafe_arena_set_allocated_batch(&batch.message());  // Lent, as in Stream::Send.
  v1::RunResponse response;
  const grpc::Status status = connection_->executor->Run(&context, request, &response);
  (void)request.unsafe_arena_release_batch();
  if (!status.ok()) return FromGrpc(status);
  return Result(std::move(*response.mutable_result()));
}

absl::StatusOr<std::unique_ptr<Stream>> Client::OpenStream(StreamOptions options) {
  auto impl = std::make_unique<Stream::Impl>(connection_, options);
  if (absl::Status status = impl->Open(); !status.ok()) return status;
  return std::unique_ptr<Stream>(new Stream(std::move(impl)));
}

absl::StatusOr<BufferHandle> Client::AllocateAs(v1::DType dtype, const Shape& shape,
                                                const BufferOptions& options) {
  grpc::ClientContext context;
  if (absl::Status status = connection_->Prepare(context); !status.ok()) return status;
  v1::AllocateRequest request;
  request.set_dtype(dtype);
  request.mutable_shape()->Add(shape.begin(), shape.end());
  if (options.device.has_value()) request.set_device(*options.device);
  request.set_durable(options.durable);
  request.set_name(options.name);
  v1::AllocateResponse response;
  absl::Status status = FromGrpc(connection_->buffers->Allocate(&context, request, &response));
  if (!status.ok()) return status;
  absl::StatusOr<std::string> session = connection_->SessionId();
  if (!session.ok()) return session.status();
  return BufferHandle(connection_, *session, std::move(*response.mutable_buffer()));
}

absl::StatusOr<BufferHandle> Client::ImportSharedAs(const std::string& name, v1::DType dtype,
                                                    const Shape& shape,
                                                    const BufferOptions& options) {
  grpc::ClientContext context;
  if (absl::Status status = connection_->Prepare(context); !status.ok()) return status;
  v1::ImportSharedRequest request;
  request.set_name(name);
  request.set_dtype(dtype);
  request.mutable_shape()->Add(shape.begin(), shape.end());
  request.set_size_bytes(ElementsOf(shape) * SizeOf(dtype));
  if (options.device.has_value()) request.set_device(*options.device);
  v1::ImportSharedResponse response;
  absl::Status status = FromGrpc(connection_->buffers->ImportShared(&context, request, &response));
  if (!status.ok()) return status;
  absl::StatusOr<std::string> session = connection_->SessionId();
  if (!session.ok()) return session.status();
  return BufferHandle(connection_, *session, std::move(*response.mutable_buffer()));
}

absl::StatusOr<std::vector<v1::BufferInfo>> Client::ListBuffers() {
  grpc::ClientContext context;
  if (absl::Status status = connection_->Prepare(context); !status.ok()) return status;
  v1::ListBuffersResponse response;
  absl::Status status =
      FromGrpc(connection_->buffers->List(&context, v1::ListBuffersRequest(), &response));
  if (!status.ok()) return status;
  return std::vector<v1::BufferInfo>(response.buffers().begin(), response.buffers().end());
}

absl::Status Client::UploadBytes(uint64_t buffer, uint64_t offset_bytes, std::string_view data) {
  return connection_->Upload(buffer, offset_bytes, data.data(), data.size());
}

absl::Status Client::DownloadBytes(uint64_t buffer, uint64_t offset_bytes, uint64_t size_bytes,
                                   const std::function<bool(std::string_view)>& sink) {
  return connection_->Download(buffer, offset_bytes, size_bytes, sink);
}

absl::Status Client::Free(uint64_t buffer) { return connection_->Free(buffer); }

absl::Status Client::Persist(uint64_t buffer) {
  grpc::ClientContext context;
  if (absl::Status status = connection_->Prepare(context); !status.ok()) return status;
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

absl::Status Client::Park(uint32_t device) {
  grpc::ClientContext context;
  absl::Status status = connection_->Prepare(context, /*needs_session=*/false);
  if (!status.ok()) return status;
  v1::ParkRequest request;
  request.set_device(device);
  v1::ParkResponse response;
  return FromGrpc(connection_->admin->Park(&context, request, &response));
}

absl::Status Client::Resume(uint32_t device) {
  grpc::ClientContext context;
  absl::Status status = connection_->Prepare(context, /*needs_session=*/false);
  if (!status.ok()) return status;
  v1::ResumeRequest request;
  request.set_device(device);
  v1::ResumeResponse response;
  return FromGrpc(connection_->admin->Resume(&context, request, &response));
}

absl::StatusOr<uint64_t> Client::Drain(absl::Duration timeout) {
  grpc::ClientContext context;
  // The daemon answers at its own deadline; the call's comes after it. With the daemon's
  // default it is not known here, so the call waits as long as it takes.
  const absl::Duration call =
      timeout == absl::ZeroDuration() ? absl::InfiniteDuration() : timeout + absl::Seconds(5);
  absl::Status status = connection_->Prepare(context, /*needs_session=*/false, call);
  if (!status.ok()) return status;
  v1::DrainRequest request;
  request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
  v1::DrainResponse response;
  status = FromGrpc(connection_->admin->Drain(&context, request, &response));
  if (!status.ok()) return status;
  return response.remaining_tasks();
}

absl::StatusOr<std::string> Client::SessionId() { return connection_->SessionId(); }
const std::string& Client::address() const { return connection_->address(); }

}  // namespace resident::client
