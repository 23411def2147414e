#include "server/batch_runner.h"

#include <utility>

#include "runtime/errors.h"

namespace resident {
namespace {

// The batch that this thread lends itself to, if any.
thread_local const Batch* assisted = nullptr;

}  // namespace

absl::StatusOr<std::shared_ptr<RequestBatch>> BatchRunner::Prepare(
    const v1::Batch& message, const std::shared_ptr<Client>& client, Clock::time_point deadline,
    Answer answer) {
  if (gate_->draining()) return errors::Draining();
  const Caller caller{client->id(), &client->window_use(), deadline};
  absl::StatusOr<std::shared_ptr<RequestBatch>> batch = translator_->Translate(message, caller);
  if (!batch.ok()) return batch.status();
  (*batch)->done = [this, client, answer = std::move(answer)](Batch& finished) {
    auto held = static_cast<RequestBatch&>(finished).shared_from_this();
    const auto finish = [this, client, answer, held] {
      const uint64_t tasks = held->tasks.size();
      answer(*held);
      // What waits for the completion may be waiting for this memory.
      held->keep_alive.clear();
      client->Completed();
      gate_->Leave(tasks);
    };
    if (assisted == &finished) {
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
  if (!gate_->Enter(tasks)) return errors::Draining();
  client.Begin();
  const Batch* const before = std::exchange(assisted, batch.get());
  const absl::Status taken = devices_[batch->device]->queue().Enqueue(client.id(), batch, assist);
  assisted = before;
  if (taken.ok()) return taken;
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
