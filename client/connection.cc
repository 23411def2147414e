#include "client/connection.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "client/local_socket.h"
#include "google/rpc/error_details.pb.h"
#include "runtime/base/status_macros.h"

namespace resident::client {
namespace {

constexpr char kSessionKey[] = "resident-session";
constexpr char kTokenKey[] = "authorization";
constexpr char kUnreachablePayload[] = "residentd.unreachable";
// A google.rpc.ErrorInfo, by the usual key of a payload: its type's URL.
constexpr char kErrorInfoPayload[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kErrorDomain[] = "residentd";
constexpr uint64_t kUploadChunkBytes = 1u << 20;

absl::Status Unreachable(std::string_view message) {
  absl::Status status = absl::UnavailableError(absl::string_view(message.data(), message.size()));
  status.SetPayload(kUnreachablePayload, absl::Cord());
  return status;
}

// gRPC returns UNAVAILABLE both for a refusal by the server and for a broken connection;
// these are the messages of its transport.
bool IsTransportMessage(const std::string& message) {
  for (const char* text : {"failed to connect", "Failed to connect", "Socket closed",
                           "Connection reset", "connections to all backends failing",
                           "DNS resolution failed", "GOAWAY", "Broken pipe", "recvmsg"}) {
    if (message.find(text) != std::string::npos) return true;
  }
  return false;
}

// gRPC's message about a too large message contains neither the name nor the side of the limit.
bool IsMessageTooLarge(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
         status.error_message().find("message larger than max") != std::string::npos;
}

// The status with the daemon's ErrorInfo, if there is one in a serialized google.rpc.Status.
absl::Status CopyErrorInfo(const std::string& details, absl::Status status) {
  google::rpc::Status parsed;
  google::rpc::ErrorInfo info;
  if (status.ok() || details.empty() || !parsed.ParseFromString(details)) return status;
  for (const google::protobuf::Any& detail : parsed.details()) {
    if (detail.UnpackTo(&info) && info.domain() == kErrorDomain) {
      status.SetPayload(kErrorInfoPayload, absl::Cord(detail.value()));
    }
  }
  return status;
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (IsMessageTooLarge(status)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        status.error_message(),
        ". Fix: send less at once or put it into buffers; or raise the daemon's --max_message_mib, "
        "and a program's own Options::max_message_mib"));
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
      IsTransportMessage(status.error_message())) {
    return Unreachable(status.error_message());
  }
  return CopyErrorInfo(
      status.error_details(),
      absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
}

absl::Status FromRefusal(const v1::Refusal& refusal) {
  absl::Status status(static_cast<absl::StatusCode>(refusal.code()), refusal.message());
  if (refusal.reason().empty()) return status;
  google::rpc::ErrorInfo info;
  info.set_reason(refusal.reason());
  info.set_domain(kErrorDomain);
  info.mutable_metadata()->insert(refusal.metadata().begin(), refusal.metadata().end());
  status.SetPayload(kErrorInfoPayload, absl::Cord(info.SerializeAsString()));
  return status;
}

std::optional<ErrorInfo> FindErrorInfo(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrorInfoPayload);
  google::rpc::ErrorInfo info;
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) return std::nullopt;
  return ErrorInfo{info.reason(), {info.metadata().begin(), info.metadata().end()}};
}

bool IsUnreachable(const absl::Status& status) {
  return status.GetPayload(kUnreachablePayload).has_value();
}

Connection::Connection(std::string address, Options options)
    : address_(std::move(address)), options_(std::move(options)) {
  grpc::ChannelArguments arguments;
  const int max_bytes =
      static_cast<int>(std::min<uint64_t>(uint64_t{options_.max_message_mib} << 20, 0x7fffffff));
  arguments.SetMaxReceiveMessageSize(max_bytes);
  arguments.SetMaxSendMessageSize(max_bytes);
  // A daemon is in the same network, so an HTTP proxy for the web is not used.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Each client has its own connection, so that clients of one process are served round-robin.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const Credentials& credentials = options_.credentials;
  if (credentials.tls && !credentials.tls_server_name.empty()) {
    arguments.SetSslTargetNameOverride(credentials.tls_server_name);
  }
  channel_ = grpc::CreateCustomChannel(address_, MakeChannelCredentials(credentials), arguments);
  executor = v1::Executor::NewStub(channel_);
  buffers = v1::Buffers::NewStub(channel_);
  operators = v1::Operators::NewStub(channel_);
  graphs = v1::Graphs::NewStub(channel_);
  lanes = v1::Lanes::NewStub(channel_);
  admin = v1::Admin::NewStub(channel_);
  health = grpc::health::v1::Health::NewStub(channel_);
  sessions_ = v1::Sessions::NewStub(channel_);
}

Connection::~Connection() { EndSession(); }

absl::Status Connection::WaitForServer() {
  const auto deadline = absl::ToChronoTime(absl::Now() + options_.connect_timeout);
  grpc_connectivity_state state;
  while ((state = channel_->GetState(/*try_to_connect=*/true)) != GRPC_CHANNEL_READY) {
    const bool failed = state == GRPC_CHANNEL_TRANSIENT_FAILURE;
    if (failed && !options_.wait_for_server) return ProbeUnreachable();
    if (!channel_->WaitForStateChange(state, deadline)) {
      if (failed) return ProbeUnreachable();
      return Unreachable(absl::StrCat("no connection to ", address_, " within ",
                                      absl::FormatDuration(options_.connect_timeout)));
    }
  }
  return absl::OkStatus();
}

absl::Status Connection::Prepare(grpc::ClientContext& context, bool needs_session,
                                 absl::Duration timeout) {
  AddToken(context);
  if (timeout == absl::ZeroDuration()) timeout = options_.call_timeout;
  if (timeout != absl::InfiniteDuration()) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  }
  if (!needs_session || !options_.session) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::string id, SessionId());
  context.AddMetadata(kSessionKey, id);
  return absl::OkStatus();
}

void Connection::AddToken(grpc::ClientContext& context) const {
  const std::string& token = options_.credentials.token;
  if (!token.empty()) context.AddMetadata(kTokenKey, absl::StrCat("Bearer ", token));
}

absl::StatusOr<std::string> Connection::SessionId() {
  absl::MutexLock opening(&opening_);  // One thread opens the session, the others wait for it.
  {
    absl::MutexLock lock(&mutex_);
    if (session_state_ == SessionState::kOpen) return session_id_;
  }
  EndSession();
  {
    absl::MutexLock lock(&mutex_);
    session_state_ = SessionState::kOpening;
    session_context_ = std::make_unique<grpc::ClientContext>();
    AddToken(*session_context_);
  }
  session_thread_ = std::thread([this] { ReadSession(); });
  absl::MutexLock lock(&mutex_);
  const auto known = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return session_state_ != SessionState::kOpening;
  };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&known), options_.call_timeout)) {
    session_context_->TryCancel();
    return absl::DeadlineExceededError(absl::StrCat("the server opened no session within ",
                                                    absl::FormatDuration(options_.call_timeout)));
  }
  if (session_state_ == SessionState::kOpen) return session_id_;
  if (session_status_.ok()) {
    return absl::UnavailableError("the server ended the session immediately");
  }
  return session_status_;
}

bool Connection::IsCurrentSession(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  return session_state_ == SessionState::kOpen && session_id_ == id;
}

absl::StatusOr<std::string> Connection::PassDescriptor(int fd) {
  ASSIGN_OR_RETURN(const std::string session, SessionId());
  std::string path = options_.local_address;
  if (path.empty()) {
    absl::MutexLock lock(&mutex_);
    path = local_address_;
  }
  if (path.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the daemon at ", address_,
                     " has no local socket for descriptors of shared memory. Fix: start it with "
                     "--local_address, or upload"));
  }
  return SendDescriptor(path, session, fd, options_.call_timeout);
}

absl::Status Connection::Upload(uint64_t buffer, uint64_t offset, const char* data, uint64_t size) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(Prepare(context));
  v1::UploadResponse response;
  std::unique_ptr<grpc::ClientWriter<v1::UploadRequest>> writer =
      buffers->Upload(&context, &response);
  v1::UploadRequest request;
  request.set_buffer_id(buffer);
  request.set_offset(offset);
  uint64_t sent = 0;
  do {
    const uint64_t piece = std::min(size - sent, kUploadChunkBytes);
    request.set_data(data + sent, piece);
    if (!writer->Write(request)) break;  // Finish() returns the error.
    request.clear_buffer_id();
    request.clear_offset();
    sent += piece;
  } while (sent < size);
  writer->WritesDone();
  RETURN_IF_ERROR(FromGrpc(writer->Finish()));
  if (response.written_bytes() != size) {
    return absl::DataLossError(absl::StrCat("the server wrote ", response.written_bytes(), " of ",
                                            size, " bytes to buffer ", buffer));
  }
  return absl::OkStatus();
}

absl::Status Connection::Download(uint64_t buffer, uint64_t offset, uint64_t size,
                                  const std::function<bool(std::string_view)>& sink) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(Prepare(context));
  v1::DownloadRequest request;
  request.set_buffer_id(buffer);
  request.set_offset(offset);
  request.set_size_bytes(size);
  std::unique_ptr<grpc::ClientReader<v1::DownloadResponse>> reader =
      buffers->Download(&context, request);
  v1::DownloadResponse response;
  bool more = true;
  while (reader->Read(&response)) {
    if (!more) continue;
    more = sink(response.data());
    if (!more) context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  if (!more) return absl::CancelledError("the receiver stopped the download");
  return FromGrpc(status);
}

absl::Status Connection::Free(uint64_t buffer) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(Prepare(context));
  v1::FreeRequest request;
  request.set_buffer_id(buffer);
  v1::FreeResponse response;
  return FromGrpc(buffers->Free(&context, request, &response));
}

absl::Status Connection::ProbeUnreachable() {
  grpc::ClientContext context;
  AddToken(context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  v1::StatusResponse response;
  const grpc::Status status = admin->Status(&context, v1::StatusRequest(), &response);
  if (status.ok()) return absl::OkStatus();
  return Unreachable(absl::StrCat("cannot reach ", address_, ": ", status.error_message()));
}

void Connection::ReadSession() {
  v1::OpenSessionRequest request;
  request.set_client_name(options_.client_name);
  std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>> reader =
      sessions_->Open(session_context_.get(), request);
  v1::OpenSessionResponse response;
  while (reader->Read(&response)) {
    absl::MutexLock lock(&mutex_);
    session_id_ = response.session_id();
    local_address_ = response.local_address();
    session_state_ = SessionState::kOpen;
  }
  const absl::Status status = FromGrpc(reader->Finish());
  absl::MutexLock lock(&mutex_);
  session_status_ = status;
  session_state_ = SessionState::kEnded;
}

void Connection::EndSession() {
  if (!session_thread_.joinable()) return;
  session_context_->TryCancel();
  session_thread_.join();
}

}  // namespace resident::client
