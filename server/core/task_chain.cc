#include "server/core/task_chain.h"

#include <chrono>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/task_status_code.h"
#include "server/workload/result_builder.h"

namespace resident {

void TaskChain::Continue() {
  work_ = next_();
  if (work_ == nullptr) return End(absl::OkStatus());
  const absl::Status checked = work_->Check();
  if (!checked.ok()) return End(checked);
  core_.admission.Acquire(wait_, client_->accounts(), work_->ResourcesNeeded(), deadline_,
                          [self = shared_from_this()](absl::StatusOr<Ticket> ticket) {
                            self->Admit(std::move(ticket));
                          });
}

void TaskChain::Admit(absl::StatusOr<Ticket> ticket) {
  if (!ticket.ok()) return End(ticket.status());
  const std::shared_ptr<RequestBatch> batch =
      core_.runner.Fill(client_, deadline_, std::move(work_), *std::move(ticket),
                        [self = shared_from_this()](RequestBatch& ended) { self->Answer(ended); });
  bool cancelled = false;
  {
    absl::MutexLock lock(&mu_);
    cancelled = cancelled_;
    if (!cancelled) batch_ = batch;
  }
  if (cancelled) return End(errors::Cancelled());
  const absl::Status taken =
      core_.runner.Launch(batch, *client_, /*inline_time=*/std::chrono::nanoseconds(0));
  if (taken.ok()) return;
  {
    absl::MutexLock lock(&mu_);
    batch_ = nullptr;  // The batch refers to this object.
  }
  End(taken);
}

void TaskChain::Cancel() {
  std::shared_ptr<RequestBatch> batch;
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    batch = batch_;
  }
  if (wait_.Cancel()) {
    End(errors::Cancelled());
  } else if (batch != nullptr) {
    core_.runner.Cancel(*batch);
  }
}

void TaskChain::Answer(RequestBatch& batch) {
  v1::BatchResult result;
  BuildResult(batch, &result);
  batch.keep_alive.clear();
  {
    absl::MutexLock lock(&mu_);
    batch_ = nullptr;
  }
  if (batch.failed > 0) {
    return End(absl::Status(ToStatusCode(result.status(0)),
                            result.errors_size() > 0 ? result.errors(0).message() : batch.cause));
  }
  // On another thread, so that a long chain does not nest calls.
  core_.runner.Post([self = shared_from_this()] { self->Continue(); });
}

void TaskChain::End(const absl::Status& status) {
  work_ = nullptr;
  next_ = nullptr;
  std::exchange(done_, nullptr)(status);
}

}  // namespace resident
