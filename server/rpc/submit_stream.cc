#include "server/rpc/submit_stream.h"

#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

// If a stream has nothing else under way, the thread that read a small batch (at most kLoneTasks)
// runs the dispatch loop inline for this time.
constexpr std::chrono::nanoseconds kInlineTime = std::chrono::microseconds(50);
constexpr size_t kLoneTasks = 16;
// The memory of a larger request is released; that of a smaller one is reused for the next.
constexpr uint64_t kKeptRequestBytes = 1u << 20;

}  // namespace

void SubmitStream::Open(const grpc::CallbackServerContext& context) {
  Register(MakeRecheck(context, core_, Role::kSubmit, "resident.v1.Executor/Submit"));
  const absl::StatusOr<std::shared_ptr<Client>> client = FindClient(context, core_);
  absl::MutexLock lock(&mu_);
  if (!client.ok()) return Conclude(client.status());
  client_ = *client;
  deadline_ = ReadDeadline(context);
  ReadOn();
}

void SubmitStream::OnRequest(grpc::ByteBuffer& bytes) {
  core_.counters.CountBatch();
  core_.counters.Received(bytes.Length());
  const absl::Status parsed = ParseMessage(bytes, &request_);
  if (!parsed.ok()) {
    // The batch's id is unknown. Therefore the stream ends with this error, and nothing more is
    // read.
    core_.counters.CountRefused(parsed.code());
    return End(parsed);
  }
  request_space_ = request_.SpaceUsedLong();
  request_charge_ = core_.admission.host().Count(client_->accounts()->host(), request_space_);
  expires_ = BatchDeadline(request_.batch().options(), deadline_);
  auto work = core_.runner.Plan(request_.batch(), *client_);
  if (!work.ok()) return Admit(work.status());
  work_ = *std::move(work);
  const Needs needs = work_->ResourcesNeeded();
  auto ticket = core_.admission.TryAcquire(client_->accounts(), needs);
  if (ticket.ok()) return Admit(std::move(ticket));
  AwaitTicket(needs);
}

void SubmitStream::AwaitTicket(const Needs& needs) {
  const std::shared_ptr<SubmitStream> self = Ref(this);
  core_.admission.Acquire(
      this, client_->accounts(), needs, expires_,
      [self](absl::StatusOr<Ticket> ticket) { self->Admit(std::move(ticket)); });
  absl::MutexLock lock(&mu_);
  // If the stream was ended meanwhile, OnEnd could not cancel the wait yet: cancel it now.
  if (ending() && core_.admission.Cancel(this)) Refuse(DropRequest(), errors::Cancelled());
}

void SubmitStream::Admit(absl::StatusOr<Ticket> ticket) {
  const absl::Status status = ticket.ok() ? Launch(*std::move(ticket)) : ticket.status();
  const uint64_t id = DropRequest();
  absl::MutexLock lock(&mu_);
  if (!status.ok()) Refuse(id, status);
  ReadOn();
}

absl::Status SubmitStream::Launch(Ticket ticket) {
  const auto batch =
      core_.runner.Fill(request_.batch(), client_, expires_, std::move(work_), std::move(ticket),
                        [self = Ref(this)](RequestBatch& done) { self->Answer(done); });
  bool lone = false;
  {
    absl::MutexLock lock(&mu_);
    if (ending()) return errors::Cancelled();
    lone = running_.empty() && batch->tasks.size() <= kLoneTasks;
    running_[batch.get()] = batch;
    ++unanswered_;
  }
  const absl::Status taken =
      core_.runner.Launch(batch, *client_, lone ? kInlineTime : std::chrono::nanoseconds(0));
  if (!taken.ok()) {
    absl::MutexLock lock(&mu_);
    running_.erase(batch.get());
    --unanswered_;
  }
  return taken;
}

uint64_t SubmitStream::DropRequest() {
  const uint64_t id = request_.batch().id();
  work_ = nullptr;
  if (request_space_ > kKeptRequestBytes) request_ = v1::SubmitRequest();
  request_charge_.Clear();
  return id;
}

void SubmitStream::ReadOn() {
  if (ending()) return;
  paused_ = unanswered_ >= core_.limits.max_stream_batches || WaitToRead(client_->accounts());
  if (!paused_) Read();
}

void SubmitStream::OnMayRead() {
  if (paused_) ReadOn();
}

void SubmitStream::OnHalfClose() {
  half_closed_ = true;
  ConcludeIfAnswered();
}

void SubmitStream::OnWritten() {
  --unanswered_;
  if (paused_) ReadOn();
  ConcludeIfAnswered();
}

void SubmitStream::ConcludeIfAnswered() {
  if (half_closed_ && unanswered_ == 0) Conclude(absl::OkStatus());
}

void SubmitStream::Answer(RequestBatch& batch) {
  v1::SubmitResponse response;
  BuildResult(batch, response.mutable_result());
  grpc::ByteBuffer bytes = ToBytes(response);
  const uint64_t size = bytes.Length();
  Budget::Charge charge = batch.ticket.TakeAnswer(size);
  core_.counters.Sent(size);
  absl::MutexLock lock(&mu_);
  running_.erase(&batch);
  Write(std::move(bytes), std::move(charge));
}

void SubmitStream::Refuse(uint64_t id, const absl::Status& why) {
  if (cancelled()) return;
  const absl::Status& status = end().has_value() ? *end() : why;
  core_.counters.CountRefused(status.code());
  v1::SubmitResponse response;
  BuildRefusal(id, status, response.mutable_result());
  grpc::ByteBuffer bytes = ToBytes(response);
  const uint64_t size = bytes.Length();
  core_.counters.Sent(size);
  ++unanswered_;
  Write(std::move(bytes),
        core_.admission.host().Count(client_->accounts()->host(), size, Budget::Purpose::kAnswers));
}

void SubmitStream::OnEnd(const absl::Status& status) {
  // First refuse the batch that waits to be admitted.
  if (core_.admission.Cancel(this)) Refuse(DropRequest(), status);
  if (cancelled()) {
    for (const auto& [key, batch] : running_) core_.runner.Cancel(*batch);
  }
  Conclude(status);
}

}  // namespace resident
