#include "runtime/engine/control/engine_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "resident/internal/engine.grpc.pb.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/control/descriptor_channel.h"
#include "runtime/engine/control/engine_messages.h"
#include "runtime/engine/control/generation_transfer.h"

namespace resident {
namespace {

constexpr std::chrono::milliseconds kStageLimit{30'000};
// Loading a generation takes far less than a millisecond for each operator.
constexpr std::chrono::milliseconds kLoadLimit{10'000};
constexpr std::chrono::milliseconds kUnmapLimit{5'000};
// The answer's way back, on top of the time that the engine itself was given.
constexpr std::chrono::milliseconds kAnswerLimit{5'000};

std::unique_ptr<internal::EngineControl::Stub> MakeStub(int control_socket) {
  grpc::ChannelArguments arguments;
  // A call fails when the engine does; the supervisor decides what happens next.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return internal::EngineControl::NewStub(
      grpc::CreateCustomInsecureChannelFromFd("engine", control_socket, arguments));
}

void SetLimit(grpc::ClientContext& context, std::chrono::nanoseconds most) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(most));
}

internal::SwitchRequest SwitchMessage(uint64_t change, bool launch, std::chrono::nanoseconds most) {
  internal::SwitchRequest request;
  request.set_change(change);
  request.set_launch(launch);
  request.set_most_ns(most.count());
  return request;
}

SwitchTimes TimesOf(const internal::SwitchResponse& response) { return FromMessage(response); }
template <typename Response>
SwitchTimes TimesOf(const Response&) {
  return {};
}

using Calls = internal::EngineControl::StubInterface::async_interface;

template <typename Request, typename Response>
class PendingCall final : public EngineCall {
 public:
  using Method = void (Calls::*)(grpc::ClientContext*, const Request*, Response*,
                                 std::function<void(grpc::Status)>);

  explicit PendingCall(std::chrono::nanoseconds most) { SetLimit(state_->context, most); }
  ~PendingCall() override { state_->context.TryCancel(); }

  Request& request() { return state_->request; }

  void Start(Calls* calls, Method method, EngineClient::OnAnswer on_answer) {
    // gRPC holds on to the state until it has called back, however long this object lives.
    (calls->*method)(&state_->context, &state_->request, &state_->response,
                     [state = state_, on_answer = std::move(on_answer)](grpc::Status status) {
                       if (status.ok()) {
                         state->answer = TimesOf(state->response);
                       } else {
                         state->answer = FromControlStatus(status);
                       }
                       state->answered.store(true, std::memory_order_release);
                       if (on_answer) on_answer();
                     });
  }

  bool answered() const override { return state_->answered.load(std::memory_order_acquire); }
  const absl::StatusOr<SwitchTimes>& answer() const override { return state_->answer; }

 private:
  struct State {
    grpc::ClientContext context;
    Request request;
    Response response;
    absl::StatusOr<SwitchTimes> answer;  // Written before `answered`.
    std::atomic<bool> answered{false};
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace

struct EngineClient::Stub {
  std::unique_ptr<internal::EngineControl::Stub> calls;
};

EngineClient::EngineClient(int control_socket, int descriptor_socket,
                           std::chrono::milliseconds map_limit)
    : stub_(std::make_unique<Stub>(Stub{MakeStub(control_socket)})),
      descriptor_socket_(descriptor_socket),
      map_limit_(map_limit) {}

EngineClient::~EngineClient() { close(descriptor_socket_); }

absl::StatusOr<std::vector<EnginePhase>> EngineClient::Prepare(int ordinal,
                                                               std::chrono::milliseconds most) {
  internal::PrepareRequest request;
  request.set_ordinal(ordinal);
  grpc::ClientContext context;
  SetLimit(context, most);
  internal::PrepareResponse response;
  const grpc::Status status = stub_->calls->Prepare(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(
        absl::StrCat("the engine did not bring its device up within ", most.count(), " ms"));
  }
  if (!status.ok()) return FromControlStatus(status);
  return FromMessage(response.phases());
}

absl::StatusOr<EngineInfo> EngineClient::Start(const EngineOptions& options,
                                               std::chrono::milliseconds most) {
  internal::StartRequest request = ToMessage(options);
  if (options.generation != nullptr) {
    RETURN_IF_ERROR(SendGeneration(*options.generation, request.mutable_generation()));
  }
  grpc::ClientContext context;
  SetLimit(context, most);
  internal::StartResponse response;
  const grpc::Status status = stub_->calls->Start(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(
        absl::StrCat("the engine did not start within ", most.count(), " ms"));
  }
  if (!status.ok()) return FromControlStatus(status);
  return FromMessage(response);
}

std::unique_ptr<EngineCall> EngineClient::StartAwaitPark(std::chrono::nanoseconds most,
                                                         OnAnswer on_answer) {
  using Call = PendingCall<internal::AwaitParkRequest, internal::AwaitParkResponse>;
  auto call = std::make_unique<Call>(most + kAnswerLimit);
  call->request().set_most_ns(most.count());
  call->Start(stub_->calls->async(), &Calls::AwaitPark, std::move(on_answer));
  return call;
}

std::unique_ptr<EngineCall> EngineClient::StartResume(std::chrono::milliseconds most,
                                                      OnAnswer on_answer) {
  using Call = PendingCall<internal::ResumeRequest, internal::ResumeResponse>;
  auto call = std::make_unique<Call>(most);
  call->Start(stub_->calls->async(), &Calls::Resume, std::move(on_answer));
  return call;
}

std::unique_ptr<EngineCall> EngineClient::StartSwitch(uint64_t change, bool launch,
                                                      std::chrono::nanoseconds most,
                                                      OnAnswer on_answer) {
  using Call = PendingCall<internal::SwitchRequest, internal::SwitchResponse>;
  auto call = std::make_unique<Call>(most + kLoadLimit);
  call->request() = SwitchMessage(change, launch, most);
  call->Start(stub_->calls->async(), &Calls::Switch, std::move(on_answer));
  return call;
}

void EngineClient::StartUnmapShared(uint64_t mapping) {
  struct Call {
    grpc::ClientContext context;
    internal::UnmapSharedRequest request;
    internal::UnmapSharedResponse response;
  };
  auto call = std::make_shared<Call>();
  SetLimit(call->context, kUnmapLimit);
  call->request.set_token(mapping);
  stub_->calls->async()->UnmapShared(&call->context, &call->request, &call->response,
                                     [call](const grpc::Status&) {});
}

absl::Status EngineClient::SendGeneration(const Generation& generation,
                                          internal::Generation* message) {
  ASSIGN_OR_RETURN(const int fd, PackGeneration(generation, message));
  if (fd < 0) return absl::OkStatus();
  message->set_token(++last_token_);
  absl::Status sent = SendDescriptor(descriptor_socket_, fd, message->token());
  close(fd);
  return sent;
}

absl::StatusOr<std::vector<OperatorResources>> EngineClient::Stage(const Generation& generation) {
  absl::MutexLock lock(&stage_mu_);
  internal::StageRequest request;
  RETURN_IF_ERROR(SendGeneration(generation, request.mutable_generation()));
  grpc::ClientContext context;
  SetLimit(context, kStageLimit);
  internal::StageResponse response;
  const grpc::Status status = stub_->calls->Stage(&context, request, &response);
  if (!status.ok()) return FromControlStatus(status);
  return FromMessage(response.operators());
}

absl::StatusOr<SwitchTimes> EngineClient::Switch(uint64_t change, bool launch,
                                                 std::chrono::nanoseconds most) {
  grpc::ClientContext context;
  SetLimit(context, most + kLoadLimit);
  internal::SwitchResponse response;
  const grpc::Status status =
      stub_->calls->Switch(&context, SwitchMessage(change, launch, most), &response);
  if (!status.ok()) return FromControlStatus(status);
  return FromMessage(response);
}

absl::StatusOr<SharedMapping> EngineClient::MapShared(int fd, uint64_t bytes) {
  absl::MutexLock lock(&map_mu_);
  internal::MapSharedRequest request;
  request.set_token(++last_token_);
  request.set_size_bytes(bytes);
  RETURN_IF_ERROR(SendDescriptor(descriptor_socket_, fd, request.token()));
  grpc::ClientContext context;
  SetLimit(context, map_limit_);
  internal::MapSharedResponse response;
  const grpc::Status status = stub_->calls->MapShared(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    // The engine may have answered, too late. One that is still at it sees that the call was
    // cancelled before it sees this one.
    StartUnmapShared(request.token());
  }
  if (!status.ok()) return FromControlStatus(status);
  return SharedMapping{request.token(), response.address()};
}

absl::Status EngineClient::Shutdown(std::chrono::milliseconds most) {
  grpc::ClientContext context;
  SetLimit(context, most);
  internal::ShutdownResponse response;
  return FromControlStatus(
      stub_->calls->Shutdown(&context, internal::ShutdownRequest(), &response));
}

}  // namespace resident
