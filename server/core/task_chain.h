// TaskChain: executes a client's tasks, one after the other, and calls back when the last one has
// ended or one has failed. For work that prepares memory; a graph's run has its own scheduler
// (server/graphs/graph_run.h).
//
// Thread safety: Start is called once; the callbacks are called one after the other, from any
// thread. Cancel may be called by any thread, with locks that `done` does not need.
//
//   std::make_shared<TaskChain>(core, client, [self] { return self->Next(); }, deadline, done)
//       ->Start();
#ifndef RESIDENT_SERVER_CORE_TASK_CHAIN_H_
#define RESIDENT_SERVER_CORE_TASK_CHAIN_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/core/core.h"
#include "server/workload/workload.h"

namespace resident {

class TaskChain : public std::enable_shared_from_this<TaskChain> {
 public:
  // A batch of one task that is not checked yet; null: the chain has ended.
  using Next = std::function<std::unique_ptr<Workload>()>;
  // Called once.
  using Done = std::function<void(const absl::Status& status)>;

  TaskChain(Core& core, std::shared_ptr<Client> client, Next next, Clock::time_point deadline,
            Done done)
      : core_(core),
        client_(std::move(client)),
        next_(std::move(next)),
        deadline_(deadline),
        done_(std::move(done)),
        wait_(core.admission) {}

  void Start() { Continue(); }
  // Ends the chain with CANCELLED, once the task that is in the ring, if there is one, has ended.
  // No effect on one that has ended.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Continue();
  void Admit(absl::StatusOr<Ticket> ticket);
  void Answer(RequestBatch& batch);
  void End(const absl::Status& status);

  Core& core_;
  const std::shared_ptr<Client> client_;
  Next next_;
  const Clock::time_point deadline_;
  Done done_;
  Admission::Wait wait_;
  std::unique_ptr<Workload> work_;  // The task whose turn it is, until it is admitted.
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<RequestBatch> batch_ ABSL_GUARDED_BY(mu_);  // Until it is answered.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_TASK_CHAIN_H_
