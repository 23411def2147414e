#include "server/rpc/batch_stream.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/call.h"

namespace resident {
namespace {

constexpr size_t kLoneTasks = 16;
// The memory of a larger request is released; that of a smaller one is reused for the next.
constexpr uint64_t kKeptRequestBytes = 1u << 20;

}  // namespace

void BatchStream::Open(const grpc::CallbackServerContext& context) {
  Register(MakeRecheck(context, core_, Role::kSubmit, method_));
  const absl::StatusOr<std::shared_ptr<Client>> client = FindClient(context, core_);
  absl::MutexLock lock(&mu_);
  if (!client.ok()) return Conclude(client.status());
  client_ = *client;
  deadline_ = ReadDeadline(context, core_.time.Now());
  ReadOn();
}

void BatchStream::OnRequest(grpc::ByteBuffer& bytes) {
  core_.counters.Received(bytes.Length());
  const absl::Status parsed = Parse(bytes);
  core_.counters.CountBatch();
  if (!parsed.ok()) {
    // The ids of its batches are unknown. Therefore the stream ends with this error, and nothing
    // more is read. The client may take long to read the earlier answers: until then, the request
    // is not kept.
    Drop(/*release=*/true);
    bytes.Clear();
    core_.counters.CountRefused(parsed.code());
    return End(parsed);
  }
  ++unanswered_;
  request_space_ = RequestBytes(/*waits=*/false);
  request_charge_ = core_.admission.host().Count(client_->accounts()->host(), request_space_);
  arrived_ = core_.time.Now();
  first_batch_ = true;
  RunBatches();
}

void BatchStream::RunBatches() {
  for (;;) {
    std::optional<absl::StatusOr<Ticket>> ticket = AcquireTicket();
    if (!ticket.has_value() || !Admit(*std::move(ticket))) return;
  }
}

std::optional<absl::StatusOr<Ticket>> BatchStream::AcquireTicket() {
  const absl::Status planned = Plan();
  if (!planned.ok()) return planned;
  const Needs needs = work_->ResourcesNeeded();
  auto ticket = core_.admission.TryAcquire(client_->accounts(), needs);
  if (ticket.ok()) return ticket;
  request_space_ = std::max(request_space_, RequestBytes(/*waits=*/true));
  request_charge_.Become(Budget::Purpose::kRequests, request_space_);
  AwaitTicket(needs);
  return std::nullopt;
}

absl::Status BatchStream::Plan() {
  RETURN_IF_ERROR(Translate());
  expires_ = BatchDeadline(message().options(), deadline_, arrived_);
  ASSIGN_OR_RETURN(work_, core_.runner.Plan(message(), *client_, FindBufferOwner(*client_)));
  return absl::OkStatus();
}

void BatchStream::AwaitTicket(const Needs& needs) {
  const std::shared_ptr<BatchStream> self = Ref(this);
  core_.admission.Acquire(wait_, client_->accounts(), needs, expires_,
                          [self](absl::StatusOr<Ticket> ticket) {
                            if (!self->Admit(std::move(ticket))) return;
                            // The thread that calls this may serve all streams that wait.
                            self->core_.pools.fills.Post([self] { self->RunBatches(); });
                          });
}

bool BatchStream::Admit(absl::StatusOr<Ticket> ticket) {
  const absl::Status status = ticket.ok() ? Launch(*std::move(ticket)) : ticket.status();
  const RequestId id = request_id();
  const bool more = NextOrDrop();
  if (status.ok() && more) return true;
  absl::MutexLock lock(&mu_);
  if (!status.ok()) Refuse(id, status);
  if (more && ending()) {
    // The rest would be planned and admitted in vain.
    RefuseRequest(errors::Cancelled());
    return false;
  }
  if (!more) {
    --unanswered_;
    ReadOn();
    Advance();  // The end of the stream may have waited for the request.
  }
  return more;
}

absl::Status BatchStream::Launch(Ticket ticket) {
  RETURN_IF_ERROR(work_->Prepare(ticket));
  const auto batch =
      core_.runner.Fill(message(), client_, expires_, std::move(work_), std::move(ticket),
                        [self = Ref(this), context = TakeContext()](RequestBatch& done) {
                          self->Answer(done, context.get());
                        });
  bool lone = false;
  {
    absl::MutexLock lock(&batches_mu_);
    if (stopped_) return errors::Cancelled();
    lone = first_batch_ && running_.empty() && batch->count() <= kLoneTasks;
    ++unanswered_;
    running_[batch.get()] = batch;
  }
  const absl::Status taken =
      core_.runner.Launch(batch, *client_, lone ? kInlineTime : std::chrono::nanoseconds(0));
  if (!taken.ok()) {
    absl::MutexLock lock(&mu_);
    absl::MutexLock batches(&batches_mu_);
    running_.erase(batch.get());
    --unanswered_;
  }
  return taken;
}

std::vector<std::shared_ptr<RequestBatch>> BatchStream::Stop() {
  absl::MutexLock lock(&batches_mu_);
  stopped_ = true;
  std::vector<std::shared_ptr<RequestBatch>> running;
  for (const auto& [key, batch] : running_) running.push_back(batch);
  return running;
}

bool BatchStream::NextOrDrop() {
  work_ = nullptr;
  first_batch_ = false;
  if (NextBatch()) {
    core_.counters.CountBatch();
    return true;
  }
  Drop(/*release=*/request_space_ > kKeptRequestBytes);
  request_charge_.Clear();
  return false;
}

void BatchStream::RefuseRequest(const absl::Status& why) {
  for (bool more = true; more;) {
    const RequestId id = request_id();
    more = NextOrDrop();
    Refuse(id, why);
  }
  --unanswered_;
  Advance();
}

void BatchStream::ReadOn() {
  if (ending()) return;
  paused_ = unanswered_ >= core_.limits.max_stream_batches || WaitToRead(client_->accounts());
  if (!paused_) Read();
}

void BatchStream::OnMayRead() {
  if (paused_) ReadOn();
}

void BatchStream::OnHalfClose() {
  half_closed_ = true;
  ConcludeIfAnswered();
}

void BatchStream::OnWritten() {
  --unanswered_;
  if (paused_) ReadOn();
  ConcludeIfAnswered();
}

void BatchStream::ConcludeIfAnswered() {
  if (half_closed_ && unanswered_ == 0) Conclude(absl::OkStatus());
}

void BatchStream::Answer(RequestBatch& batch, Context* context) {
  grpc::ByteBuffer bytes;
  const absl::Status built = BuildAnswer(batch, context, bytes);
  const uint64_t size = bytes.Length();
  Budget::Charge charge = batch.ticket.TakeAnswer(size);
  core_.counters.Sent(size);
  {
    absl::MutexLock lock(&batches_mu_);
    running_.erase(&batch);
    Answered& answered = answered_.emplace_back(Answered{built, {}, std::move(charge)});
    answered.bytes.Swap(&bytes);
    if (std::exchange(writing_answers_, true)) return;
  }
  WriteAnswers();
}

void BatchStream::WriteAnswers() {
  std::vector<Answered> answered;
  for (;;) {
    answered.clear();
    {
      absl::MutexLock lock(&batches_mu_);
      answered.swap(answered_);
      if (answered.empty()) {
        writing_answers_ = false;
        return;
      }
    }
    absl::MutexLock lock(&mu_);
    for (Answered& one : answered) {
      if (one.built.ok()) {
        Write(std::move(one.bytes), std::move(one.charge));
        continue;
      }
      --unanswered_;
      one.charge.Clear();
      // The first end also refuses the requests that wait to be admitted.
      if (ending()) {
        Conclude(one.built);
      } else {
        OnEnd(one.built);
      }
    }
  }
}

void BatchStream::Refuse(const RequestId& id, const absl::Status& why) {
  if (cancelled()) return;
  const absl::Status& status = end().has_value() ? *end() : why;
  core_.counters.CountRefused(status.code());
  grpc::ByteBuffer bytes;
  const absl::Status built = BuildRefusal(id, status, bytes);
  if (!built.ok()) {
    Stop();
    return Conclude(built);
  }
  const uint64_t size = bytes.Length();
  core_.counters.Sent(size);
  ++unanswered_;
  Write(std::move(bytes),
        core_.admission.host().Count(client_->accounts()->host(), size, Budget::Purpose::kAnswers));
}

void BatchStream::OnEnd(const absl::Status& status) {
  // First refuse the batch that waits to be admitted, and those behind it in its request.
  if (wait_.Cancel()) RefuseRequest(status);
  const std::vector<std::shared_ptr<RequestBatch>> running = Stop();
  if (cancelled()) {
    for (const std::shared_ptr<RequestBatch>& batch : running) core_.runner.Cancel(*batch);
  }
  Conclude(status);
}

}  // namespace resident
