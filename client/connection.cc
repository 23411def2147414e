#include "client/connection.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <random>
#include <span>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/local_socket.h"
#include "client/targets.h"
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
constexpr char kNodeLeft[] = "NODE_LEFT";
constexpr char kAffinityKey[] = "resident-affinity";
constexpr uint64_t kUploadChunkBytes = 1u << 20;

// Calls are spread over the nodes that serve, and DNS is asked at most this often.
constexpr char kBalanced[] =
    R"({"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}})";
constexpr int kResolveMs = 10'000;
// Of the text about nodes that could not be used.
constexpr size_t kMaxRefusedText = 512;

// Refusals of batches that did not run (runtime/base/errors/reason.h).
constexpr std::array<std::string_view, 9> kPassing = {
    "DRAINING",    "NO_DEVICE",  "DEVICE_UNAVAILABLE", "QUEUE_FULL",        "STAGING_FULL",
    "MEMORY_FULL", "TASK_QUOTA", "UNKNOWN_SESSION",    "SESSION_ELSEWHERE",
};
// Of calls to a node whose session has ended, or that is about to end it.
constexpr std::array<std::string_view, 3> kLeaving = {"DRAINING", "UNKNOWN_SESSION",
                                                      "SESSION_ELSEWHERE"};

bool IsOneOf(std::string_view reason, std::span<const std::string_view> reasons) {
  return std::ranges::find(reasons, reason) != reasons.end();
}

absl::Status Unreachable(std::string_view message) {
  absl::Status status = absl::UnavailableError(absl::string_view(message.data(), message.size()));
  status.SetPayload(kUnreachablePayload, absl::Cord());
  return status;
}

// gRPC returns UNAVAILABLE both for a refusal by the server and for a broken connection;
// these are the messages of its transport.
bool IsTransportMessage(const std::string& message) {
  for (const char* text :
       {"failed to connect", "Failed to connect", "Socket closed", "Connection reset",
        "connections to all backends failing", "DNS resolution failed", "GOAWAY", "Broken pipe",
        "recvmsg", "Transport closed"}) {
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

absl::Status NodeLeft(const std::string& node, std::string_view why) {
  google::rpc::ErrorInfo info;
  info.set_reason(kNodeLeft);
  info.set_domain(kErrorDomain);
  (*info.mutable_metadata())["node"] = node;
  absl::Status status = absl::UnavailableError(
      absl::StrCat("node ", node, " has left: ", absl::string_view(why.data(), why.size()),
                   ". Fix: upload again: the client then uses another node, but for one of Pin()"));
  status.SetPayload(kErrorInfoPayload, absl::Cord(info.SerializeAsString()));
  return status;
}

bool MaySendAgain(const absl::Status& status, Retry retry, bool repeatable) {
  if (retry == Retry::kNever || status.ok()) return false;
  const std::optional<ErrorInfo> info = FindErrorInfo(status);
  if (info.has_value() && info->reason == kNodeLeft) return false;
  if (info.has_value() && IsOneOf(info->reason, kPassing)) return true;
  if (!absl::IsUnavailable(status)) return false;
  // With these messages gRPC ends a call for which it found no connection.
  for (const char* text : {"failed to connect to all addresses",
                           "connections to all backends failing", "DNS resolution failed"}) {
    if (absl::StrContains(status.message(), text)) return true;
  }
  return retry == Retry::kMayRunTwice && repeatable;
}

bool MaySendAgain(const v1::BatchResult& result, Retry retry, bool repeatable) {
  if (retry == Retry::kNever || result.status().empty()) return false;
  // All tasks failed, and `errors` has each: otherwise one of them has run.
  if (result.errors_size() != result.status_size()) return false;
  bool may_have_run = false;
  for (const v1::TaskError& error : result.errors()) {
    if (error.status() != v1::TASK_STATUS_UNAVAILABLE) return false;
    may_have_run = may_have_run || absl::StrContains(error.message(), "may have run");
  }
  return !may_have_run || (retry == Retry::kMayRunTwice && repeatable);
}

Connection::Connection(std::string address, Options options, std::optional<Member> member)
    : address_(std::move(address)), options_(std::move(options)), member_(std::move(member)) {
  grpc::ChannelArguments arguments;
  const int max_bytes =
      static_cast<int>(std::min<uint64_t>(uint64_t{options_.max_message_mib} << 20, 0x7fffffff));
  arguments.SetMaxReceiveMessageSize(max_bytes);
  arguments.SetMaxSendMessageSize(max_bytes);
  // A daemon is in the same network, so an HTTP proxy for the web is not used.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Each client has its own connection, so that clients of one process are served round-robin.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (options_.balance) {
    arguments.SetServiceConfigJSON(kBalanced);
    arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kResolveMs);
  }
  if (member_.has_value() && !member_->authority.empty()) {
    arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, member_->authority);
  }
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
  models = v1::Models::NewStub(channel_);
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
  if (member_.has_value() && !member_->affinity.empty()) {
    context.AddMetadata(kAffinityKey, member_->affinity);
  }
  const std::string& token = options_.credentials.token;
  if (!token.empty()) context.AddMetadata(kTokenKey, absl::StrCat("Bearer ", token));
}

absl::StatusOr<std::string> Connection::SessionId() {
  absl::MutexLock opening(&opening_);  // One thread opens the session, the others wait for it.
  {
    absl::MutexLock lock(&mutex_);
    if (session_state_ == SessionState::kOpen) return session_id_;
    if (member_.has_value() && session_state_ != SessionState::kNone) {
      return NodeLeft(address_, "its session has ended");
    }
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

bool Connection::HasSession() {
  absl::MutexLock lock(&mutex_);
  return session_state_ == SessionState::kOpen;
}

absl::Status Connection::FromCall(const grpc::Status& status) {
  absl::Status made = FromGrpc(status);
  if (made.ok() || !member_.has_value()) return made;
  const std::optional<ErrorInfo> info = FindErrorInfo(made);
  absl::MutexLock lock(&mutex_);
  // A daemon that stops ends its calls.
  const bool ended = absl::IsCancelled(made) && session_state_ == SessionState::kEnded;
  // gRPC has many texts for a connection that was lost; the daemon's refusals say what to do.
  const bool lost =
      absl::IsUnavailable(made) && !info.has_value() && !absl::StrContains(made.message(), "Fix: ");
  if (!ended && !lost && !IsUnreachable(made) &&
      !(info.has_value() && IsOneOf(info->reason, kLeaving))) {
    return made;
  }
  if (session_state_ == SessionState::kOpen) {
    session_state_ = SessionState::kEnded;
    session_context_->TryCancel();
  }
  return NodeLeft(address_, std::string_view(made.message().data(), made.message().size()));
}

absl::StatusOr<std::shared_ptr<Connection>> Connection::Node() {
  if (!options_.balance) return shared_from_this();
  absl::MutexLock lock(&choosing_);
  if (node_ == nullptr || !node_->HasSession()) {
    ASSIGN_OR_RETURN(node_, ChooseNode());
  }
  return node_;
}

absl::StatusOr<std::shared_ptr<Connection>> Connection::ChooseNode() {
  if (!options_.balance) {
    return absl::FailedPreconditionError(
        "the client is one of a single daemon. Fix: connect with Options::balance");
  }
  ASSIGN_OR_RETURN(Targets targets, ResolveTargets(address_));
  std::vector<std::string>& addresses = targets.addresses;
  std::map<std::string, int> uses;
  {
    absl::MutexLock lock(&uses_mutex_);
    for (const std::string& address : addresses) uses[address] = uses_[address];
    uses_ = uses;
  }
  std::random_device random;
  std::shuffle(addresses.begin(), addresses.end(), random);
  std::ranges::stable_sort(addresses, {}, [&](const std::string& each) { return uses[each]; });
  Options options = options_;
  options.balance = false;
  options.session = true;
  options.wait_for_server = false;
  if (options.credentials.tls_server_name.empty()) {
    options.credentials.tls_server_name = targets.host;
  }
  const absl::Time end = absl::Now() + options_.call_timeout;
  std::string refused;
  for (const std::string& address : addresses) {
    // Behind a single address there may be a proxy, which sends all calls with it to one node.
    const auto node = std::make_shared<Connection>(
        address, options,
        Member{targets.name, addresses.size() == 1 ? absl::StrFormat("%08x%08x%08x%08x", random(),
                                                                     random(), random(), random())
                                                   : ""});
    const absl::Status status = node->Enter();
    if (status.ok()) {
      absl::MutexLock lock(&uses_mutex_);
      ++uses_[address];
      return node;
    }
    if (!absl::IsUnavailable(status) && !absl::IsResourceExhausted(status) &&
        !absl::IsDeadlineExceeded(status)) {
      return status;
    }
    if (refused.size() < kMaxRefusedText) {
      absl::StrAppend(&refused, "; ", address, ": ", status.message());
    }
    if (absl::Now() > end) break;
  }
  return absl::UnavailableError(
      absl::StrCat("no node of ", address_, " can be used", refused,
                   ". Fix: check that a node serves: residentctl status --targets ", address_));
}

absl::Status Connection::Enter() {
  RETURN_IF_ERROR(WaitForServer());
  grpc::ClientContext context;
  RETURN_IF_ERROR(Prepare(context, /*needs_session=*/false, options_.connect_timeout));
  grpc::health::v1::HealthCheckResponse response;
  RETURN_IF_ERROR(FromGrpc(health->Check(&context, {}, &response)));
  if (response.status() != grpc::health::v1::HealthCheckResponse::SERVING) {
    return absl::UnavailableError("it does not serve");
  }
  return SessionId().status();
}

bool Connection::IsCurrentSession(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  return session_state_ == SessionState::kOpen && session_id_ == id;
}

absl::StatusOr<std::string> Connection::PassDescriptor(std::string_view magic, int fd) {
  ASSIGN_OR_RETURN(const std::string session, SessionId());
  std::string path = options_.local_address;
  if (path.empty()) {
    absl::MutexLock lock(&mutex_);
    path = local_address_;
  }
  if (path.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the daemon at ", address_,
                     " has no local socket for descriptors of memory. Fix: start it with "
                     "--local_address, or upload"));
  }
  return SendDescriptor(path, magic, session, fd, options_.call_timeout);
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
  RETURN_IF_ERROR(FromCall(writer->Finish()));
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
  return FromCall(status);
}

absl::Status Connection::Free(uint64_t buffer) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(Prepare(context));
  v1::FreeRequest request;
  request.set_buffer_id(buffer);
  v1::FreeResponse response;
  return FromCall(buffers->Free(&context, request, &response));
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

bool UsesBuffers(const v1::Batch& batch) {
  return std::ranges::any_of(batch.tasks().arguments(),
                             [](const auto& column) { return column.has_buffer(); });
}

}  // namespace resident::client
