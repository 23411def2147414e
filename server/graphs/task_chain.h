// TaskChain: executes a client's batches of one task, one after the other, and calls back when the
// last one has ended or one has failed. For work that prepares memory; a graph's run has its own
// scheduler (graph_run.h).
//
// Thread safety: Start is called once; the callback is called once, from any thread.
//
//   std::make_shared<TaskChain>(core, client, std::move(batches), deadline, done)->Start();
#ifndef RESIDENT_SERVER_GRAPHS_TASK_CHAIN_H_
#define RESIDENT_SERVER_GRAPHS_TASK_CHAIN_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/v1/executor.pb.h"
#include "server/core/core.h"

namespace resident {

class TaskChain : public std::enable_shared_from_this<TaskChain> {
 public:
  using Done = std::function<void(const absl::Status& status)>;

  TaskChain(Core& core, std::shared_ptr<Client> client, std::vector<v1::Batch> batches,
            Clock::time_point deadline, Done done)
      : core_(core),
        client_(std::move(client)),
        batches_(std::move(batches)),
        deadline_(deadline),
        done_(std::move(done)) {}

  void Start() { Next(); }

 private:
  void Next();
  void Admit(absl::StatusOr<Ticket> ticket);
  void Answer(RequestBatch& batch);
  void End(const absl::Status& status);

  Core& core_;
  const std::shared_ptr<Client> client_;
  std::vector<v1::Batch> batches_;
  const Clock::time_point deadline_;
  Done done_;
  size_t next_ = 0;
  std::unique_ptr<Workload> work_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_TASK_CHAIN_H_
