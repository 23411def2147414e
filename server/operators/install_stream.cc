#include "server/operators/install_stream.h"

#include <utility>

#include "absl/time/clock.h"
#include "resident/v1/operators.pb.h"
#include "runtime/base/status_macros.h"
#include "server/operators/operator_messages.h"
#include "server/rpc/call.h"

namespace resident {

absl::Status InstallStream::Add(grpc::ByteBuffer& bytes) {
  v1::InstallRequest message;
  RETURN_IF_ERROR(Parse(bytes, &message));
  RETURN_IF_ERROR(collector_.Add(message));
  if (!message.has_header()) return absl::OkStatus();
  Account& account = *identity_->account();
  const RoleSet roles = IsGenerated(collector_.kind()) ? kInstallRoles : RoleSet(Role::kInstall);
  RETURN_IF_ERROR(account.BeginInstall(collector_.name(), absl::Now(), roles));
  return CheckOwnOperator(account, core_, collector_.name());
}

absl::StatusOr<grpc::ByteBuffer> InstallStream::Finish() {
  ASSIGN_OR_RETURN(request_, collector_.Finish());
  request_.actor = identity_->name();
  request_.context.authorize = CheckOwnOperatorAgain(identity_, core_, request_.name);
  InstallProgress submitted;
  submitted.state = VersionState::kSubmitted;
  submitted.duration = Clock::now() - started_;
  v1::InstallResponse response;
  FillProgress(submitted, &response);
  return ToBytes(response);
}

absl::Status InstallStream::Work() {
  return core_.operators.Install(
      request_,
      [this](const InstallProgress& progress) {
        v1::InstallResponse response;
        FillProgress(progress, &response);
        Answer(response);
      },
      [this] { return withdrawn_.load(std::memory_order_relaxed); });
}

}  // namespace resident
