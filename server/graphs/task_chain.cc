#include "server/graphs/task_chain.h"

#include <chrono>

#include "runtime/base/task_status_code.h"
#include "server/workload/result_builder.h"

namespace resident {

void TaskChain::Next() {
  if (next_ == batches_.size()) return End(absl::OkStatus());
  absl::StatusOr<std::unique_ptr<Workload>> work =
      core_.planner.Plan(batches_[next_], client_->id());
  if (!work.ok()) return End(work.status());
  work_ = *std::move(work);
  core_.admission.Acquire(this, client_->accounts(), work_->ResourcesNeeded(), deadline_,
                          [self = shared_from_this()](absl::StatusOr<Ticket> ticket) {
                            self->Admit(std::move(ticket));
                          });
}

void TaskChain::Admit(absl::StatusOr<Ticket> ticket) {
  if (!ticket.ok()) return End(ticket.status());
  const std::shared_ptr<RequestBatch> batch =
      core_.runner.Fill(batches_[next_], client_, deadline_, std::move(work_), *std::move(ticket),
                        [self = shared_from_this()](RequestBatch& ended) { self->Answer(ended); });
  const absl::Status taken =
      core_.runner.Launch(batch, *client_, /*inline_time=*/std::chrono::nanoseconds(0));
  if (!taken.ok()) End(taken);
}

void TaskChain::Answer(RequestBatch& batch) {
  v1::BatchResult result;
  BuildResult(batch, &result);
  batch.keep_alive.clear();
  if (batch.failed > 0) {
    return End(absl::Status(ToStatusCode(result.status(0)),
                            result.errors_size() > 0 ? result.errors(0).message() : batch.cause));
  }
  batches_[next_++].Clear();
  // On another thread, so that a long chain does not nest calls.
  core_.runner.Post([self = shared_from_this()] { self->Next(); });
}

void TaskChain::End(const absl::Status& status) {
  batches_.clear();
  std::exchange(done_, nullptr)(status);
}

}  // namespace resident
