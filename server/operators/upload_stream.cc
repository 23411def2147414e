#include "server/operators/upload_stream.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/auth/method_roles.h"
#include "server/operators/errors.h"

namespace resident {

void UploadStream::Open(const grpc::CallbackServerContext& context) {
  Register(MakeRecheck(context, core_, FindMethodRule(absl::StrCat("/", method_)).roles, method_));
  absl::MutexLock lock(&mu_);
  const absl::Status entered = Enter(context);
  if (!entered.ok()) return Conclude(entered);
  const uint64_t upload_ms = core_.limits.max_install_upload_ms;
  const uint64_t header_ms = core_.limits.max_install_header_ms;
  EndIfNotSent(upload_alarm_, upload_ms, /*header=*/false);
  if (header_ms < upload_ms) EndIfNotSent(header_alarm_, header_ms, /*header=*/true);
  Read();
}

absl::Status UploadStream::Enter(const grpc::CallbackServerContext& context) {
  if (core_.gate.draining()) return errors::Draining();
  Caller caller;
  ASSIGN_OR_RETURN(caller.identity, IdentifyCaller(context, core_));
  const Account& account = *caller.identity->account();
  caller.holder = NameHolder(account, context.peer());
  ASSIGN_OR_RETURN(slot_, installs_.install_slots.Take(caller.holder, account.install_quota()));
  return Begin(context, caller);
}

void UploadStream::EndIfNotSent(grpc::Alarm& alarm, uint64_t limit_ms, bool header) {
  CallAfter(alarm, std::chrono::milliseconds(limit_ms),
            [this, limit_ms, header]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
              if (working_ || (header && has_header_)) return;
              Conclude(header ? errors::InstallHeaderNotSent(limit_ms)
                              : errors::InstallNotSent(limit_ms));
            });
}

void UploadStream::OnRequest(grpc::ByteBuffer& bytes) {
  core_.counters.Received(bytes.Length());
  const absl::Status added = Add(bytes);
  absl::MutexLock lock(&mu_);
  if (ending()) return;
  if (!added.ok()) return Conclude(added);
  has_header_ = true;  // The first message that is accepted.
  Read();
}

void UploadStream::OnHalfClose() {
  header_alarm_.Cancel();
  upload_alarm_.Cancel();
  absl::StatusOr<grpc::ByteBuffer> answer = Finish();
  if (!answer.ok()) return Conclude(answer.status());
  absl::StatusOr<DrainGate::Entry> entry = core_.gate.Enter(1);
  if (!entry.ok()) return Conclude(entry.status());
  entry_ = *std::move(entry);
  working_ = true;
  Send(*std::move(answer));
  core_.pools.installs.Post([self = Ref(this)] {
    self->RunWork();
    self->entry_.Clear();
  });
}

void UploadStream::RunWork() {
  absl::Status done = Work();
  absl::MutexLock lock(&mu_);
  working_ = false;
  // If the daemon withdrew the work, send the reason to the client.
  if (done.code() == absl::StatusCode::kCancelled && !withdrawn_why_.ok()) done = withdrawn_why_;
  Conclude(done);
}

void UploadStream::Send(grpc::ByteBuffer bytes) {
  const uint64_t size = bytes.Length();
  core_.counters.Sent(size);
  if (client_ == nullptr) return Write(std::move(bytes));
  Write(std::move(bytes),
        core_.admission.host().Count(client_->accounts()->host(), size, Budget::Purpose::kAnswers));
}

void UploadStream::OnEnd(const absl::Status& status) {
  withdrawn_why_ = status;  // Before Withdraw, which the work notices.
  if (!working_) return Conclude(status);
  Withdraw();
}

}  // namespace resident
