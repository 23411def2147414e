// ShadowRunner: runs the tasks of a batch once more, on the version that is on trial, and
// compares what the two wrote.
//
// A batch is sampled when it is translated (RequestBatch::shadow). Once its tasks have
// ended, and before it is answered, so that its inputs are still what they were:
//
//   the twin      the same tasks, on the other version, with outputs of their own
//   the comparison  one task of the operator `compare` for each output of each task
//
// What the twin writes nobody sees. A batch that cannot have a twin (no memory for its
// outputs, an engine that has ended) is answered without, and not counted.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_RPC_SHADOW_RUNNER_H_
#define RESIDENT_SERVER_RPC_SHADOW_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/operators/registry/registry.h"
#include "server/rpc/worker_pool.h"
#include "server/workload/request_batch.h"

namespace resident {

class ShadowRunner {
 public:
  // What a comparison found: of `tasks` that ended OK on the version that serves,
  // `mismatches` gave something else on `shadow`, or did not end OK.
  using Record =
      std::function<void(const OperatorVersion& shadow, uint64_t tasks, uint64_t mismatches)>;

  // `after`: threads for making the twin and for what follows its end.
  ShadowRunner(const Registry& registry, std::vector<Device*> devices, WorkerPool& after,
               Record record);

  // REQUIRES: batch->shadow. Does no work on the calling thread, which may be a queue's dispatch
  // loop. Calls `done` once, on one of the threads `after`.
  void Run(std::shared_ptr<RequestBatch> batch, std::function<void()> done);

 private:
  struct Trial;

  // False: there is no twin to wait for.
  bool StartTwin(const std::shared_ptr<Trial>& trial);
  bool StartComparison(const std::shared_ptr<Trial>& trial);
  void Finish(const Trial& trial);
  // Gives `batch` to the device's queue; `then` is called when it has ended.
  bool Enqueue(uint32_t device, const std::shared_ptr<Batch>& batch, std::function<void()> then);

  const Registry& registry_;
  const std::vector<Device*> devices_;
  WorkerPool& after_;
  const Record record_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_SHADOW_RUNNER_H_
