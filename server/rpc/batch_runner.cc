#include "server/rpc/batch_runner.h"

#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

// The batch that this thread lends itself to, if any.
thread_local const Batch* assisted = nullptr;

// The operator that a message asks for; FLUX programs without a name are flux.run's.
std::string OperatorOf(const v1::Batch& message) {
  if (message.has_tasks()) return message.tasks().operator_();
  const std::string& named = message.programs().operator_();
  return named.empty() ? kFluxRunOperator : named;
}

}  // namespace

absl::StatusOr<std::shared_ptr<RequestBatch>> BatchRunner::Prepare(
    const v1::Batch& message, const std::shared_ptr<Client>& client, Clock::time_point deadline,
    Answer answer, WindowWaiter* waiter, bool* waits, uint64_t* lacking) {
  if (gate_->draining()) return errors::Draining();
  const absl::Status may = client->account().MaySubmit(OperatorOf(message));
  if (!may.ok()) return may;
  const Caller caller{.id = client->id(),
                      .window_use = &client->window_use(),
                      .deadline = deadline,
                      .waiter = waiter,
                      .waits = waits,
                      .memory = batch_memory_,
                      .memory_use = client->batch_use(),
                      .lacking = lacking};
  ASSIGN_OR_RETURN(std::shared_ptr<RequestBatch> batch, translator_->Translate(message, caller));
  batch->done = [this, client, answer = std::move(answer)](Batch& finished) {
    auto held = static_cast<RequestBatch&>(finished).shared_from_this();
    const auto finish = [this, client, answer, held] {
      const uint64_t tasks = held->tasks.size();
      // Whoever has the answer may use the quota again.
      client->account().EndTasks(tasks);
      answer(*held);
      // What waits for the completion may be waiting for this memory.
      held->keep_alive.clear();
      held->shadow = nullptr;
      held->charge.Clear();
      client->Completed();
      gate_->Leave(tasks);
    };
    if (held->shadow != nullptr) {
      shadow_->Run(held, finish);
    } else if (assisted == &finished) {
      finish();
    } else {
      answers_->Post(finish);
    }
  };
  return batch;
}

absl::Status BatchRunner::Launch(const std::shared_ptr<RequestBatch>& batch, Client& client,
                                 std::chrono::nanoseconds assist) {
  const uint64_t tasks = batch->tasks.size();
  RETURN_IF_ERROR(client.account().BeginTasks(tasks));
  if (!gate_->Enter(tasks)) {
    client.account().EndTasks(tasks);
    return errors::Draining();
  }
  client.Begin();
  const Batch* const before = std::exchange(assisted, batch.get());
  const absl::Status taken = devices_[batch->device]->queue().Enqueue(client.id(), batch, assist);
  assisted = before;
  if (taken.ok()) return taken;
  client.account().EndTasks(tasks);
  client.Abandon();
  gate_->Leave(tasks);
  if (taken.code() == absl::StatusCode::kNotFound) {
    return errors::UnknownSession(client.session());
  }
  return taken;
}

void BatchRunner::Cancel(RequestBatch& batch) {
  batch.cancelled = true;
  devices_[batch.device]->queue().NoteCancelled();
}

}  // namespace resident
