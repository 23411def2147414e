// BatchRunner: takes a client's batch from the message to a device's queue, and calls back when it
// can be answered. Used by Run and Submit, and, without messages, by graphs and transfers.
//
//   message ──Plan──▶ work ──(admission.h)──▶ ticket ──Fill──▶ batch ──Launch──▶ queue ──▶ answer
//
// The callback runs on the caller's own thread if it runs the dispatch loop inline (Launch's
// `inline_time`), otherwise on a thread of the runner's pool. It never runs on the queue's
// dispatcher, which serves all clients.
//
// Thread safety: all members may be called from any thread.
//
//   ASSIGN_OR_RETURN(auto work, runner.Plan(message, *client, client->id()));
//   const Needs needs = work->ResourcesNeeded();
//   ASSIGN_OR_RETURN(auto ticket, admission.TryAcquire(client->accounts(), needs));
//   auto batch = runner.Fill(message, client, deadline, std::move(work), std::move(ticket),
//                            /*answer=*/[](RequestBatch& ended) {...});
//   ... remember `batch`, to cancel it ...
//   RETURN_IF_ERROR(runner.Launch(batch, *client, inline_time));   // `answer` follows if OK.
#ifndef RESIDENT_SERVER_CORE_BATCH_RUNNER_H_
#define RESIDENT_SERVER_CORE_BATCH_RUNNER_H_

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/v1/executor.pb.h"
#include "server/admission/admission.h"
#include "server/admission/drain_gate.h"
#include "server/core/client_table.h"
#include "server/core/shadow_runner.h"
#include "server/core/worker_pool.h"
#include "server/workload/planner.h"

namespace resident {

// How long a handler's thread runs the dispatch loop inline for its own small batch: several times
// the duration of a small task, and short enough that a slow task does not delay other calls.
inline constexpr std::chrono::nanoseconds kInlineTime = std::chrono::microseconds(50);

class BatchRunner {
 public:
  // After it returns, nothing may use the batch's memory.
  using Answer = std::function<void(RequestBatch& batch)>;

  BatchRunner(const Planner& planner, std::vector<Device*> devices, const DrainGate& gate,
              WorkerPool& answers, ShadowRunner& shadow)
      : planner_(planner),
        devices_(std::move(devices)),
        gate_(gate),
        answers_(answers),
        shadow_(shadow) {}

  // `buffer_owner`: the owner of the buffers that the message may name, normally the client.
  // Errors: see Executor.Run. The message must stay valid and unchanged until Fill.
  absl::StatusOr<std::unique_ptr<Workload>> Plan(const v1::Batch& message, const Client& client,
                                                 ClientId buffer_owner);

  std::shared_ptr<RequestBatch> Fill(const v1::Batch& message,
                                     const std::shared_ptr<Client>& client,
                                     Clock::time_point deadline, std::unique_ptr<Workload> work,
                                     Ticket ticket, Answer answer);

  // The same for work of the daemon, which has no message.
  std::shared_ptr<RequestBatch> Fill(const std::shared_ptr<Client>& client,
                                     Clock::time_point deadline, std::unique_ptr<Workload> work,
                                     Ticket ticket, Answer answer);

  // Errors: UNAVAILABLE, UNAUTHENTICATED (the session has ended). Then `answer` is not called.
  absl::Status Launch(const std::shared_ptr<RequestBatch>& batch, const Client& client,
                      std::chrono::nanoseconds inline_time);

  // Launches a piece of a transfer, a batch of CopyWorkload, in the client's queue for transfers.
  // Errors: see Launch, and RESOURCE_EXHAUSTED (that queue is full). Then `batch->done` is not
  // called.
  absl::Status LaunchPiece(const std::shared_ptr<RequestBatch>& batch, const Client& client);

  // Runs `work` on a thread of the pool for answers.
  void Post(std::function<void()> work) { answers_.Post(std::move(work)); }

  // Cancels the batch's tasks that are not yet in the ring.
  void Cancel(RequestBatch& batch);

 private:
  // Sets `done` of a batch whose answer is `answer`.
  void SetDone(const std::shared_ptr<Client>& client, Answer answer, RequestBatch& batch);
  absl::Status Enqueue(const std::shared_ptr<RequestBatch>& batch, const Client& client,
                       ClientId queue, std::chrono::nanoseconds inline_time);

  const Planner& planner_;
  const std::vector<Device*> devices_;
  const DrainGate& gate_;
  WorkerPool& answers_;
  ShadowRunner& shadow_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_BATCH_RUNNER_H_
