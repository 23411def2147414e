#include "server/models/load_model_stream.h"

#include <chrono>
#include <memory>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/operators/errors.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"

namespace resident {

void LoadModelStream::Open(const grpc::CallbackServerContext& context) {
  Register(MakeRecheck(context, core_, Role::kInstall, "resident.v1.Models/Load"));
  absl::MutexLock lock(&mu_);
  const absl::Status entered = Enter(context);
  if (!entered.ok()) return Conclude(entered);
  const uint64_t upload_ms = core_.limits.max_install_upload_ms;
  const uint64_t header_ms = core_.limits.max_install_header_ms;
  EndIfNotSent(upload_alarm_, upload_ms, /*header=*/false);
  if (header_ms < upload_ms) EndIfNotSent(header_alarm_, header_ms, /*header=*/true);
  Read();
}

absl::Status LoadModelStream::Enter(const grpc::CallbackServerContext& context) {
  if (core_.gate.draining()) return errors::Draining();
  ASSIGN_OR_RETURN(const std::shared_ptr<Identity> identity, IdentifyCaller(context, core_));
  ASSIGN_OR_RETURN(client_, FindClient(context, core_));
  const Account& account = *identity->account();
  std::string holder = NameHolder(account, context.peer());
  ASSIGN_OR_RETURN(slot_, models_.installs.install_slots.Take(holder, account.install_quota()));
  loader_.emplace(models_, identity, client_, std::move(holder));
  return absl::OkStatus();
}

void LoadModelStream::EndIfNotSent(grpc::Alarm& alarm, uint64_t limit_ms, bool header) {
  CallAfter(alarm, std::chrono::milliseconds(limit_ms),
            [this, limit_ms, header]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
              if (loading_ || (header && has_header_)) return;
              Conclude(header ? errors::InstallHeaderNotSent(limit_ms)
                              : errors::InstallNotSent(limit_ms));
            });
}

absl::Status LoadModelStream::Accept(grpc::ByteBuffer& bytes) {
  v1::LoadModelRequest message;
  const MessageLimits limits = FindMessageLimits(core_, "/resident.v1.Models/Load");
  RETURN_IF_ERROR(ParseMessage(bytes, limits, &message));
  return loader_->Add(message);
}

void LoadModelStream::OnRequest(grpc::ByteBuffer& bytes) {
  core_.counters.Received(bytes.Length());
  const absl::Status added = Accept(bytes);
  absl::MutexLock lock(&mu_);
  if (ending()) return;
  if (!added.ok()) return Conclude(added);
  has_header_ = true;  // The first message that is accepted.
  Read();
}

void LoadModelStream::OnHalfClose() {
  header_alarm_.Cancel();
  upload_alarm_.Cancel();
  const absl::Status complete = loader_->Finish();
  if (!complete.ok()) return Conclude(complete);
  absl::StatusOr<DrainGate::Entry> entry = core_.gate.Enter(1);
  if (!entry.ok()) return Conclude(entry.status());
  entry_ = *std::move(entry);
  loading_ = true;
  v1::LoadModelResponse received;
  received.set_state(v1::LoadModelResponse::STATE_RECEIVED);
  Answer(received);
  core_.pools.installs.Post([self = Ref(this)] {
    self->Load();
    self->entry_.Clear();
  });
}

void LoadModelStream::Load() {
  absl::Status done = loader_->Load([this](const v1::LoadModelResponse& response) {
    absl::MutexLock lock(&mu_);
    Answer(response);
  });
  absl::MutexLock lock(&mu_);
  loading_ = false;
  // If the daemon withdrew the load, send the reason to the client.
  if (done.code() == absl::StatusCode::kCancelled && !withdrawn_why_.ok()) done = withdrawn_why_;
  Conclude(done);
}

void LoadModelStream::Answer(const v1::LoadModelResponse& response) {
  grpc::ByteBuffer bytes = ToBytes(response);
  const uint64_t size = bytes.Length();
  core_.counters.Sent(size);
  Write(std::move(bytes),
        core_.admission.host().Count(client_->accounts()->host(), size, Budget::Purpose::kAnswers));
}

void LoadModelStream::OnEnd(const absl::Status& status) {
  withdrawn_why_ = status;
  if (!loading_) return Conclude(status);
  loader_->Withdraw();
}

}  // namespace resident
