#include "server/rpc/install_stream.h"

#include <chrono>
#include <utility>

#include "absl/time/clock.h"
#include "resident/v1/operators.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/install_errors.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"
#include "server/rpc/operator_messages.h"
#include "server/rpc/status.h"

namespace resident {
namespace {

grpc::ByteBuffer BytesOf(const InstallProgress& progress) {
  v1::InstallResponse response;
  FillProgress(progress, &response);
  return ToBytes(response);
}

}  // namespace

InstallStream* InstallStream::Start(Core& core, const grpc::CallbackServerContext& context) {
  std::shared_ptr<InstallStream> stream(new InstallStream(core, context));
  stream->self_ = stream;
  stream->Open();
  return stream.get();  // gRPC destroys nothing before this handler has returned.
}

InstallStream::InstallStream(Core& core, const grpc::CallbackServerContext& context)
    : core_(core), context_(context), identity_(IdentityOf(context, core)) {}

InstallStream::~InstallStream() { core_.streams.Remove(this); }

void InstallStream::Open() {
  core_.streams.Add(shared_from_this(),
                    RecheckOf(context_, core_, Role::kInstall, "resident.v1.Operators/Install"));
  absl::MutexLock lock(&mu_);
  const absl::Status refused = core_.gate.draining() ? errors::Draining() : TakeSlot();
  if (!refused.ok()) {
    Conclude(refused);
    return;
  }
  const uint64_t upload_ms = core_.limits.max_install_upload_ms;
  const uint64_t header_ms = core_.limits.max_install_header_ms;
  EndIfNotSent(upload_alarm_, upload_ms, /*header=*/false);
  if (header_ms < upload_ms) EndIfNotSent(header_alarm_, header_ms, /*header=*/true);
  StartRead(&message_bytes_);
}

absl::Status InstallStream::TakeSlot() {
  if (!identity_.ok()) return identity_.status();
  const Account& account = *(*identity_)->account();
  ASSIGN_OR_RETURN(auto slot, core_.install_slots.Take(HolderOf(account, context_.peer()),
                                                       account.install_quota()));
  slot_ = std::move(slot);
  return absl::OkStatus();
}

void InstallStream::EndIfNotSent(grpc::Alarm& alarm, uint64_t limit_ms, bool header) {
  alarm.Set(std::chrono::system_clock::now() + std::chrono::milliseconds(limit_ms),
            [weak = weak_from_this(), limit_ms, header](bool passed) {
              const std::shared_ptr<InstallStream> self = weak.lock();
              if (!passed || self == nullptr) return;
              absl::MutexLock lock(&self->mu_);
              if (self->finished_ || self->installing_ || self->end_.has_value()) return;
              if (header && self->has_header_) return;
              self->Conclude(header ? errors::InstallHeaderNotSent(limit_ms)
                                    : errors::InstallNotSent(limit_ms));
            });
}

absl::Status InstallStream::Accept() {
  v1::InstallRequest message;
  absl::Status status = ParseMessage(message_bytes_, &message);
  if (status.ok()) status = collector_.Add(message);
  if (!status.ok() || !message.has_header()) return status;
  return (*identity_)->account()->BeginInstall(collector_.name(), absl::Now());
}

void InstallStream::OnReadDone(bool ok) {
  if (ok) {
    core_.counters.Received(message_bytes_.Length());
    const absl::Status added = Accept();
    absl::MutexLock lock(&mu_);
    if (finished_ || end_.has_value()) return;
    if (added.ok()) {
      has_header_ = true;  // The first message that is accepted.
      StartRead(&message_bytes_);
    } else {
      Conclude(added);
    }
    return;
  }
  absl::MutexLock lock(&mu_);
  if (finished_ || end_.has_value()) return;
  // A broken connection ends the reading just as a half-close does; what came then must
  // not be taken for all of it.
  if (context_.IsCancelled()) {
    Conclude(errors::Cancelled());
  } else {
    header_alarm_.Cancel();
    upload_alarm_.Cancel();
    Launch();
  }
}

void InstallStream::Launch() {
  auto request = collector_.Finish();
  if (!request.ok()) {
    Conclude(request.status());
    return;
  }
  if (!core_.gate.Enter(1)) {
    Conclude(errors::Draining());
    return;
  }
  request->actor = (*identity_)->name();
  installing_ = true;
  InstallProgress submitted;
  submitted.state = VersionState::kSubmitted;
  submitted.duration = Clock::now() - started_;
  responses_.push_back(BytesOf(submitted));
  core_.pools.installs.Post([self = shared_from_this(), request = *std::move(request)] {
    self->Install(request);
    self->core_.gate.Leave(1);
  });
  Advance();
}

void InstallStream::Install(const InstallRequest& request) {
  absl::Status done = core_.operators.Install(
      request, [this](const InstallProgress& progress) { Answer(progress); },
      [this] { return withdrawn_.load(std::memory_order_relaxed); });
  absl::MutexLock lock(&mu_);
  installing_ = false;
  // Withdrawn by the daemon itself: why is for the client.
  if (done.code() == absl::StatusCode::kCancelled && !withdrawn_why_.ok()) done = withdrawn_why_;
  Conclude(done);
}

void InstallStream::Answer(const InstallProgress& progress) {
  grpc::ByteBuffer response = BytesOf(progress);
  core_.counters.Sent(response.Length());
  absl::MutexLock lock(&mu_);
  responses_.push_back(std::move(response));
  Advance();
}

void InstallStream::Conclude(const absl::Status& status) {
  if (!end_.has_value()) end_ = status;
  Advance();
}

void InstallStream::Advance() {
  if (finished_ || writing_) return;
  if (!responses_.empty()) {
    writing_ = true;
    StartWrite(&responses_.front());
  } else if (end_.has_value() && !installing_) {
    finished_ = true;
    slot_.Release();  // Before the client knows, whose next install must find the slot.
    Finish(ToGrpc(*end_));
  }
}

void InstallStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  responses_.pop_front();
  if (!ok) responses_.clear();  // The client is gone; OnCancel follows or has come.
  Advance();
}

void InstallStream::OnCancel() {
  withdrawn_ = true;
  absl::MutexLock lock(&mu_);
  // A running install is waited for: the manager still calls back.
  if (!installing_) Conclude(errors::Cancelled());
}

void InstallStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (finished_) return;
  withdrawn_why_ = status;  // Before the install can see it.
  withdrawn_ = true;
  if (!installing_) Conclude(status);
}

}  // namespace resident
