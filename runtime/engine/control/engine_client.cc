#include "runtime/engine/control/engine_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "resident/internal/engine.grpc.pb.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/control/descriptor_channel.h"
#include "runtime/engine/control/engine_messages.h"
#include "runtime/engine/control/generation_transfer.h"

namespace resident {
namespace {

// Pinning a large object takes 4 ms for each MiB at worst.
constexpr std::chrono::milliseconds kMapLimit{30'000};
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

}  // namespace

struct EngineClient::Stub {
  std::unique_ptr<internal::EngineControl::Stub> calls;
};

EngineClient::EngineClient(int control_socket, int descriptor_socket)
    : stub_(std::make_unique<Stub>(Stub{MakeStub(control_socket)})),
      descriptor_socket_(descriptor_socket) {}

EngineClient::~EngineClient() { close(descriptor_socket_); }

absl::StatusOr<EngineInfo> EngineClient::Start(bool cuda, const EngineOptions& options,
                                               std::chrono::milliseconds most) {
  internal::StartRequest request = ToMessage(cuda, options);
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

absl::Status EngineClient::AwaitPark(std::chrono::nanoseconds most) {
  grpc::ClientContext context;
  SetLimit(context, most + kAnswerLimit);
  internal::AwaitParkRequest request;
  request.set_most_ns(most.count());
  internal::AwaitParkResponse response;
  return FromControlStatus(stub_->calls->AwaitPark(&context, request, &response));
}

absl::Status EngineClient::Resume(std::chrono::milliseconds most) {
  grpc::ClientContext context;
  SetLimit(context, most);
  internal::ResumeResponse response;
  return FromControlStatus(stub_->calls->Resume(&context, internal::ResumeRequest(), &response));
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
  internal::SwitchRequest request;
  request.set_change(change);
  request.set_launch(launch);
  request.set_most_ns(most.count());
  internal::SwitchResponse response;
  const grpc::Status status = stub_->calls->Switch(&context, request, &response);
  if (!status.ok()) return FromControlStatus(status);
  return FromMessage(response);
}

absl::StatusOr<uint64_t> EngineClient::MapShared(int fd, uint64_t bytes) {
  absl::MutexLock lock(&map_mu_);
  internal::MapSharedRequest request;
  request.set_token(++last_token_);
  request.set_size_bytes(bytes);
  RETURN_IF_ERROR(SendDescriptor(descriptor_socket_, fd, request.token()));
  grpc::ClientContext context;
  SetLimit(context, kMapLimit);
  internal::MapSharedResponse response;
  const grpc::Status status = stub_->calls->MapShared(&context, request, &response);
  if (!status.ok()) return FromControlStatus(status);
  return response.address();
}

absl::Status EngineClient::UnmapShared(uint64_t address) {
  grpc::ClientContext context;
  SetLimit(context, kUnmapLimit);
  internal::UnmapSharedRequest request;
  request.set_address(address);
  internal::UnmapSharedResponse response;
  return FromControlStatus(stub_->calls->UnmapShared(&context, request, &response));
}

absl::Status EngineClient::Shutdown(std::chrono::milliseconds most) {
  grpc::ClientContext context;
  SetLimit(context, most);
  internal::ShutdownResponse response;
  return FromControlStatus(
      stub_->calls->Shutdown(&context, internal::ShutdownRequest(), &response));
}

}  // namespace resident
