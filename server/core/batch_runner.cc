#include "server/core/batch_runner.h"

#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

// The batch whose caller runs the dispatch loop on this thread, if any.
thread_local const Batch* inline_batch = nullptr;

}  // namespace

absl::StatusOr<std::unique_ptr<Workload>> BatchRunner::Plan(const v1::Batch& message,
                                                            const Client& client,
                                                            ClientId buffer_owner) {
  if (gate_.draining()) return errors::Draining();
  RETURN_IF_ERROR(client.account().MaySubmit(FindOperatorName(message)));
  return planner_.Plan(message, buffer_owner);
}

std::shared_ptr<RequestBatch> BatchRunner::Fill(const v1::Batch& message,
                                                const std::shared_ptr<Client>& client,
                                                Clock::time_point deadline,
                                                std::unique_ptr<Workload> work, Ticket ticket,
                                                Answer answer) {
  auto batch = Planner::Fill(message, deadline, std::move(work), std::move(ticket));
  SetDone(client, std::move(answer), *batch);
  return batch;
}

std::shared_ptr<RequestBatch> BatchRunner::Fill(const std::shared_ptr<Client>& client,
                                                Clock::time_point deadline,
                                                std::unique_ptr<Workload> work, Ticket ticket,
                                                Answer answer) {
  auto batch = Planner::Fill(deadline, std::move(work), std::move(ticket));
  SetDone(client, std::move(answer), *batch);
  return batch;
}

void BatchRunner::SetDone(const std::shared_ptr<Client>& client, Answer answer,
                          RequestBatch& batch) {
  // The client is kept until its batch is answered. This is called once: it moves its captures.
  batch.done = [this, client = client, answer = std::move(answer)](Batch& finished) mutable {
    auto held = static_cast<RequestBatch&>(finished).shared_from_this();
    auto finish = [client = std::move(client), answer = std::move(answer), held] {
      // Before the answer, so that a client that has it can use the queue and the quota again.
      held->ticket.EndTasks();
      answer(*held);
      // Before the ticket, because requests that wait for it may need this memory.
      held->keep_alive.clear();
      held->shadow = held->judged = nullptr;
      held->ticket.Release();
    };
    if (held->shadow != nullptr) {
      shadow_.Run(held, std::move(finish));
    } else if (inline_batch == &finished) {
      finish();
    } else {
      answers_.Post(std::move(finish));
    }
  };
}

absl::Status BatchRunner::Launch(const std::shared_ptr<RequestBatch>& batch, const Client& client,
                                 std::chrono::nanoseconds inline_time) {
  if (batch->shared != nullptr) {
    batch->shared->Join(batch);
    return absl::OkStatus();
  }
  const Batch* const before = std::exchange(inline_batch, batch.get());
  const absl::Status taken = Enqueue(batch, client, client.id(), inline_time);
  inline_batch = before;
  return taken;
}

absl::Status BatchRunner::LaunchPiece(const std::shared_ptr<RequestBatch>& batch,
                                      const Client& client) {
  return Enqueue(batch, client, client.transfer_id(),
                 /*inline_time=*/std::chrono::nanoseconds(0));
}

absl::Status BatchRunner::Enqueue(const std::shared_ptr<RequestBatch>& batch, const Client& client,
                                  ClientId queue, std::chrono::nanoseconds inline_time) {
  const absl::Status taken = devices_[batch->device]->queue().Enqueue(queue, batch, inline_time);
  if (taken.ok()) return taken;
  batch->ticket.Release();
  return taken.code() == absl::StatusCode::kNotFound ? errors::UnknownSession(client.session())
                                                     : taken;
}

void BatchRunner::Cancel(RequestBatch& batch) {
  batch.cancelled = true;
  devices_[batch.device]->queue().NoteCancelled();
}

}  // namespace resident
