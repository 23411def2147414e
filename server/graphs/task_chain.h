// TaskChain: executes a client's tasks, one after the other, and calls back when the last one has
// ended or one has failed. For work that prepares memory; a graph's run has its own scheduler
// (graph_run.h).
//
// Thread safety: Start is called once; the callback is called once, from any thread.
//
//   std::make_shared<TaskChain>(core, client, std::move(tasks), deadline, done)->Start();
#ifndef RESIDENT_SERVER_GRAPHS_TASK_CHAIN_H_
#define RESIDENT_SERVER_GRAPHS_TASK_CHAIN_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/core.h"
#include "server/workload/workload.h"

namespace resident {

class TaskChain : public std::enable_shared_from_this<TaskChain> {
 public:
  using Done = std::function<void(const absl::Status& status)>;

  // `tasks`: batches of one task that are not checked yet: each is when its turn comes.
  TaskChain(Core& core, std::shared_ptr<Client> client,
            std::vector<std::unique_ptr<Workload>> tasks, Clock::time_point deadline, Done done)
      : core_(core),
        client_(std::move(client)),
        tasks_(std::move(tasks)),
        deadline_(deadline),
        done_(std::move(done)),
        wait_(core.admission) {}

  void Start() { Next(); }

 private:
  void Next();
  void Admit(absl::StatusOr<Ticket> ticket);
  void Answer(RequestBatch& batch);
  void End(const absl::Status& status);

  Core& core_;
  const std::shared_ptr<Client> client_;
  std::vector<std::unique_ptr<Workload>> tasks_;  // Null: its turn has come.
  const Clock::time_point deadline_;
  Done done_;
  Admission::Wait wait_;
  size_t next_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_TASK_CHAIN_H_
