#include "server/rpc/submit_stream.h"

#include <utility>
#include <vector>

#include "runtime/base/errors/daemon_errors.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"
#include "server/rpc/status.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

// A small batch on a stream with nothing else under way is somebody's lone task: the thread that
// read it runs the dispatch loop inline for so long.
constexpr std::chrono::nanoseconds kInlineTime = std::chrono::microseconds(50);
constexpr size_t kLoneTasks = 16;
// A larger request gives its memory back; a smaller one's serves the next.
constexpr uint64_t kKeptRequestBytes = 1u << 20;

}  // namespace

SubmitStream* SubmitStream::Start(Core& core, const grpc::CallbackServerContext& context) {
  std::shared_ptr<SubmitStream> stream(new SubmitStream(core));
  stream->self_ = stream;
  stream->Open(context);
  return stream.get();  // gRPC destroys nothing before this handler has returned.
}

SubmitStream::~SubmitStream() {
  core_.admission.Cancel(&paused_);
  core_.streams.Remove(this);
}

void SubmitStream::Open(const grpc::CallbackServerContext& context) {
  const absl::StatusOr<std::shared_ptr<Client>> client = ClientOf(context, core_);
  core_.streams.Add(shared_from_this(),
                    RecheckOf(context, core_, Role::kSubmit, "resident.v1.Executor/Submit"));
  absl::MutexLock lock(&mu_);
  if (!client.ok()) {
    finished_ = true;
    Finish(ToGrpc(client.status()));
    return;
  }
  client_ = *client;
  deadline_ = DeadlineOf(context);
  ReadOn();
}

void SubmitStream::OnReadDone(bool ok) {
  if (!ok) {
    absl::MutexLock lock(&mu_);
    reads_ended_ = true;
    Advance();
    return;
  }
  core_.counters.CountBatch();
  core_.counters.Received(request_bytes_.Length());
  const absl::Status parsed = ParseMessage(request_bytes_, &request_);
  if (!parsed.ok()) {
    // Which batch it was is unknown: the stream ends with this, and is not read any more.
    core_.counters.CountRefused(parsed.code());
    End(parsed);
    return;
  }
  request_space_ = request_.SpaceUsedLong();
  request_charge_ = core_.admission.host().Count(client_->accounts()->host(), request_space_);
  expires_ = BatchDeadline(request_.batch().options(), deadline_);
  auto work = core_.runner.Plan(request_.batch(), *client_);
  if (!work.ok()) {
    Admit(work.status());
    return;
  }
  work_ = *std::move(work);
  Acquire();
}

void SubmitStream::Acquire() {
  const std::shared_ptr<SubmitStream> self = shared_from_this();
  core_.admission.Acquire(
      this, client_->accounts(), work_->ResourcesNeeded(), expires_,
      [self](absl::StatusOr<Ticket> ticket) { self->Admit(std::move(ticket)); });
  bool ends = false;
  {
    absl::MutexLock lock(&mu_);
    ends = cancelled_ || finished_ || !end_.ok();
  }
  // What ended the stream meanwhile did not find it waiting.
  if (ends) StopWaiting();
}

void SubmitStream::StopWaiting() {
  if (core_.admission.Cancel(this)) Admit(errors::Cancelled());
}

void SubmitStream::Admit(absl::StatusOr<Ticket> ticket) {
  absl::Status end;
  bool cancelled = false;
  {
    absl::MutexLock lock(&mu_);
    cancelled = cancelled_ || finished_;
    end = end_;
  }
  absl::Status status = !end.ok() ? end : ticket.status();
  if (status.ok() && !cancelled) status = Launch(*std::move(ticket));
  const uint64_t id = DropRequest();
  if (cancelled) return;
  if (!status.ok()) Refuse(id, status);
  if (!end.ok()) return;  // Nothing more is read.
  absl::MutexLock lock(&mu_);
  ReadOn();
}

absl::Status SubmitStream::Launch(Ticket ticket) {
  const std::shared_ptr<SubmitStream> self = shared_from_this();
  const auto batch =
      core_.runner.Fill(request_.batch(), client_, expires_, std::move(work_), std::move(ticket),
                        [self](RequestBatch& done) { self->Answer(done); });
  bool lone = false;
  {
    absl::MutexLock lock(&mu_);
    lone = running_.empty() && batch->tasks.size() <= kLoneTasks;
    running_[batch.get()] = batch;
    ++unanswered_;
    if (cancelled_) batch->cancelled = true;
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
  if (finished_) return;
  paused_ = unanswered_ >= core_.limits.max_stream_batches ||
            core_.admission.WaitToRead(&paused_, client_->accounts(), [weak = weak_from_this()] {
              const std::shared_ptr<SubmitStream> self = weak.lock();
              if (self == nullptr) return;
              absl::MutexLock lock(&self->mu_);
              if (self->paused_) self->ReadOn();
            });
  if (!paused_) StartRead(&request_bytes_);
}

void SubmitStream::Answer(RequestBatch& batch) {
  v1::SubmitResponse response;
  BuildResult(batch, response.mutable_result());
  {
    absl::MutexLock lock(&mu_);
    running_.erase(&batch);
  }
  grpc::ByteBuffer bytes = ToBytes(response);
  Budget::Charge charge = batch.ticket.TakeAnswer(bytes.Length());
  Write(std::move(bytes), std::move(charge));
}

void SubmitStream::Refuse(uint64_t id, const absl::Status& why) {
  core_.counters.CountRefused(why.code());
  v1::SubmitResponse response;
  BuildRefusal(id, why, response.mutable_result());
  {
    absl::MutexLock lock(&mu_);
    ++unanswered_;
  }
  grpc::ByteBuffer bytes = ToBytes(response);
  Budget::Charge charge = core_.admission.host().Count(client_->accounts()->host(), bytes.Length(),
                                                       Budget::Purpose::kAnswers);
  Write(std::move(bytes), std::move(charge));
}

void SubmitStream::Write(grpc::ByteBuffer response, Budget::Charge charge) {
  core_.counters.Sent(response.Length());
  absl::MutexLock lock(&mu_);
  if (finished_) return;
  responses_.push_back({std::move(response), std::move(charge)});
  Advance();
}

void SubmitStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  responses_.pop_front();
  --unanswered_;
  if (!ok) cancelled_ = true;  // The client is gone; OnCancel follows or has come.
  if (paused_) ReadOn();
  Advance();
}

// Writes what is ready; finishes when there is nothing left to come.
void SubmitStream::Advance() {
  if (finished_) return;
  if (cancelled_) {
    if (writing_) return;
    // The batches still under way keep the object, not the call.
    finished_ = true;
    responses_.clear();
    Finish(ToGrpc(errors::Cancelled()));
    return;
  }
  if (!responses_.empty()) {
    if (!writing_) {
      writing_ = true;
      StartWrite(&responses_.front().response);
    }
    return;
  }
  if (unanswered_ == 0 && (reads_ended_ || !end_.ok())) {
    finished_ = true;
    Finish(ToGrpc(end_));
  }
}

void SubmitStream::CancelRunning() {
  std::vector<std::shared_ptr<RequestBatch>> running;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [key, batch] : running_) running.push_back(batch);
  }
  for (const auto& batch : running) core_.runner.Cancel(*batch);
}

void SubmitStream::OnCancel() {
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    Advance();
  }
  StopWaiting();
  CancelRunning();
}

void SubmitStream::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (finished_ || !end_.ok()) return;
    end_ = status;
  }
  // What waits to be admitted is refused first.
  StopWaiting();
  absl::MutexLock lock(&mu_);
  Advance();
}

}  // namespace resident
