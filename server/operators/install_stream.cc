#include "server/operators/install_stream.h"

#include <chrono>
#include <utility>

#include "absl/time/clock.h"
#include "resident/v1/operators.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/operators/errors.h"
#include "server/operators/operator_messages.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"

namespace resident {

void InstallStream::Open(const grpc::CallbackServerContext& context) {
  Register(MakeRecheck(context, core_, Role::kInstall, "resident.v1.Operators/Install"));
  identity_ = IdentifyCaller(context, core_);
  absl::MutexLock lock(&mu_);
  const absl::Status refused =
      core_.gate.draining() ? errors::Draining() : TakeSlot(context.peer());
  if (!refused.ok()) return Conclude(refused);
  const uint64_t upload_ms = core_.limits.max_install_upload_ms;
  const uint64_t header_ms = core_.limits.max_install_header_ms;
  EndIfNotSent(upload_alarm_, upload_ms, /*header=*/false);
  if (header_ms < upload_ms) EndIfNotSent(header_alarm_, header_ms, /*header=*/true);
  Read();
}

absl::Status InstallStream::TakeSlot(const std::string& peer) {
  RETURN_IF_ERROR(identity_.status());
  const Account& account = *(*identity_)->account();
  ASSIGN_OR_RETURN(
      auto slot, installs_.install_slots.Take(NameHolder(account, peer), account.install_quota()));
  slot_ = std::move(slot);
  return absl::OkStatus();
}

void InstallStream::EndIfNotSent(grpc::Alarm& alarm, uint64_t limit_ms, bool header) {
  CallAfter(alarm, std::chrono::milliseconds(limit_ms),
            [this, limit_ms, header]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
              if (installing_ || (header && has_header_)) return;
              Conclude(header ? errors::InstallHeaderNotSent(limit_ms)
                              : errors::InstallNotSent(limit_ms));
            });
}

absl::Status InstallStream::Accept(grpc::ByteBuffer& bytes) {
  v1::InstallRequest message;
  const MessageLimits limits = FindMessageLimits(core_, "/resident.v1.Operators/Install");
  RETURN_IF_ERROR(ParseMessage(bytes, limits, &message));
  RETURN_IF_ERROR(collector_.Add(message));
  if (!message.has_header()) return absl::OkStatus();
  return (*identity_)->account()->BeginInstall(collector_.name(), absl::Now());
}

void InstallStream::OnRequest(grpc::ByteBuffer& bytes) {
  core_.counters.Received(bytes.Length());
  const absl::Status added = Accept(bytes);
  absl::MutexLock lock(&mu_);
  if (ending()) return;
  if (!added.ok()) return Conclude(added);
  has_header_ = true;  // The first message that is accepted.
  Read();
}

void InstallStream::OnHalfClose() {
  header_alarm_.Cancel();
  upload_alarm_.Cancel();
  auto request = collector_.Finish();
  if (!request.ok()) return Conclude(request.status());
  absl::StatusOr<DrainGate::Entry> entry = core_.gate.Enter(1);
  if (!entry.ok()) return Conclude(entry.status());
  entry_ = *std::move(entry);
  request->actor = (*identity_)->name();
  installing_ = true;
  InstallProgress submitted;
  submitted.state = VersionState::kSubmitted;
  submitted.duration = Clock::now() - started_;
  Answer(submitted);
  core_.pools.installs.Post([self = Ref(this), request = *std::move(request)] {
    self->Install(request);
    self->entry_.Clear();
  });
}

void InstallStream::Install(const InstallRequest& request) {
  absl::Status done = core_.operators.Install(
      request,
      [this](const InstallProgress& progress) {
        absl::MutexLock lock(&mu_);
        Answer(progress);
      },
      [this] { return withdrawn_.load(std::memory_order_relaxed); });
  absl::MutexLock lock(&mu_);
  installing_ = false;
  // If the daemon withdrew the install, send the reason to the client.
  if (done.code() == absl::StatusCode::kCancelled && !withdrawn_why_.ok()) done = withdrawn_why_;
  Conclude(done);
}

void InstallStream::Answer(const InstallProgress& progress) {
  v1::InstallResponse response;
  FillProgress(progress, &response);
  grpc::ByteBuffer bytes = ToBytes(response);
  core_.counters.Sent(bytes.Length());
  Write(std::move(bytes));
}

void InstallStream::OnEnd(const absl::Status& status) {
  withdrawn_why_ = status;  // Before `withdrawn_`, which the install reads.
  withdrawn_ = true;
  if (!installing_) Conclude(status);
}

}  // namespace resident
