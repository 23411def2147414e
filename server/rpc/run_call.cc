#include "server/rpc/run_call.h"

#include <algorithm>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/core/status.h"
#include "server/rpc/call.h"

namespace resident {
namespace {

// Answers up to this size are not charged once they are built.
constexpr uint64_t kSmallAnswerBytes = 64u << 10;

bool AllEnded(const RequestBatch& batch, TaskStatus status) {
  return std::all_of(batch.status.begin(), batch.status.end(),
                     [&](TaskStatus s) { return s == status; });
}

}  // namespace

// Owns itself until OnDone.
class RunCall::Reactor final : public grpc::ServerUnaryReactor {
 public:
  explicit Reactor(std::shared_ptr<RunCall> call) : call_(std::move(call)) {}
  void OnCancel() override { call_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<RunCall> call_;
};

grpc::ServerUnaryReactor* RunCall::Start(const std::shared_ptr<RunCall>& call,
                                         grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& request) {
  Core& core = call->core_;
  core.counters.CountBatch();
  core.counters.Received(request.Length());
  grpc::Status status;
  const absl::Status launched = call->Launch(context, request);
  if (launched.ok()) {
    if (Reactor* const reactor = call->HandOver()) return reactor;
    absl::MutexLock lock(&call->mu_);
    status = std::move(call->status_);
  } else {
    core.counters.CountRefused(launched.code());
    status = ToGrpc(call->Worded(launched));
  }
  grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
  reactor->Finish(std::move(status));
  return reactor;
}

absl::Status RunCall::Launch(const grpc::CallbackServerContext& context, grpc::ByteBuffer bytes) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Client> client, FindClient(context, core_));
  RETURN_IF_ERROR(Read(bytes));
  const Clock::time_point now = core_.time.Now();
  deadline_ = ReadDeadline(context, now);
  ASSIGN_OR_RETURN(auto work, core_.runner.Plan(message(), *client, FindBufferOwner(*client)));
  const Clock::time_point expires = BatchDeadline(message().options(), deadline_, now);
  const Needs needs = work->ResourcesNeeded();
  auto ticket = core_.admission.TryAcquire(client->accounts(), needs);
  if (!ticket.ok() && needs.lender != nullptr) {
    LaunchLater(std::move(work), needs, client, expires);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(ticket.status());
  return LaunchWith(std::move(work), *std::move(ticket), client, expires, kInlineTime);
}

absl::Status RunCall::LaunchWith(std::unique_ptr<Workload> work, Ticket ticket,
                                 const std::shared_ptr<Client>& client, Clock::time_point expires,
                                 std::chrono::nanoseconds inline_time) {
  RETURN_IF_ERROR(work->Prepare(ticket));
  const auto batch = core_.runner.Fill(
      message(), client, expires, std::move(work), std::move(ticket),
      [self = shared_from_this()](RequestBatch& finished) { self->Answer(finished); });
  {
    absl::MutexLock lock(&mu_);
    batch_ = batch;
  }
  const absl::Status taken = core_.runner.Launch(batch, *client, inline_time);
  DropMessage();
  if (!taken.ok()) {
    absl::MutexLock lock(&mu_);
    batch_.reset();  // The batch refers to this object.
  }
  return taken;
}

void RunCall::LaunchLater(std::unique_ptr<Workload> work, const Needs& needs,
                          const std::shared_ptr<Client>& client, Clock::time_point expires) {
  // A function object can be copied, and the work cannot.
  const auto held = std::make_shared<std::unique_ptr<Workload>>(std::move(work));
  core_.admission.Acquire(
      wait_, client->accounts(), needs, expires,
      [self = shared_from_this(), held, client, expires](absl::StatusOr<Ticket> ticket) {
        const absl::Status launched =
            ticket.ok() ? self->LaunchWith(std::move(*held), *std::move(ticket), client, expires,
                                           /*inline_time=*/std::chrono::nanoseconds(0))
                        : ticket.status();
        if (!launched.ok()) self->Refuse(launched);
      });
}

void RunCall::Refuse(const absl::Status& why) {
  core_.counters.CountRefused(why.code());
  Finish(ToGrpc(Worded(why)));
}

RunCall::Reactor* RunCall::HandOver() {
  absl::MutexLock lock(&mu_);
  if (answered_) {
    if (answer_charge_.amount() == 0) return nullptr;
    Reactor* const reactor = new Reactor(shared_from_this());
    reactor->Finish(std::move(status_));
    return reactor;
  }
  // gRPC reports an earlier cancellation to the reactor once the handler has returned it.
  reactor_ = new Reactor(shared_from_this());
  return reactor_;
}

absl::Status RunCall::FindEnd(const RequestBatch& batch) const {
  if (batch.failed < batch.count()) return absl::OkStatus();
  if (AllEnded(batch, TaskStatus::kCancelled)) return errors::Cancelled();
  const bool late = batch.deadline == deadline_ && AllEnded(batch, TaskStatus::kDeadlineExceeded);
  return late ? errors::DeadlineExceeded() : absl::OkStatus();
}

absl::Status RunCall::FillResponse(RequestBatch& batch) {
  const absl::Status end = FindEnd(batch);
  if (!end.ok()) {
    Discard(batch);
    return end;
  }
  RETURN_IF_ERROR(BuildAnswer(batch, response_));
  const uint64_t bytes = response_.Length();
  answer_charge_ = batch.ticket.TakeAnswer(bytes);
  // Released before a small answer is sent, so that the client can use all of its memory again.
  if (bytes <= kSmallAnswerBytes) answer_charge_.Clear();
  core_.counters.Sent(bytes);
  return absl::OkStatus();
}

void RunCall::Answer(RequestBatch& batch) { Finish(ToGrpc(Worded(FillResponse(batch)))); }

void RunCall::Finish(grpc::Status status) {
  Reactor* reactor = nullptr;
  {
    absl::MutexLock lock(&mu_);
    batch_.reset();
    answered_ = true;
    if (reactor_ == nullptr) {
      status_ = std::move(status);
      return;
    }
    reactor = reactor_;
  }
  reactor->Finish(std::move(status));
}

void RunCall::Cancel() {
  if (wait_.Cancel()) return Refuse(errors::Cancelled());
  std::shared_ptr<RequestBatch> batch;
  {
    absl::MutexLock lock(&mu_);
    batch = batch_;
  }
  if (batch != nullptr) core_.runner.Cancel(*batch);
}

}  // namespace resident
