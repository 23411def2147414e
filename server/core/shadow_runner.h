// ShadowRunner: runs the tasks of a batch once more, on the version that is on trial, and compares
// the outputs of both versions.
//
// A batch is sampled when it is translated (RequestBatch::shadow). After its tasks have ended and
// before it is answered, so that its inputs are unchanged, two batches run:
//
//   the twin        the same tasks, on the version on trial, with separate outputs
//   the comparison  one task of the operator `compare` for each output of each task
//
// A sample of the batches that run as native code of a FLUX program has a shadow too: flux.run, the
// interpreter (server/workload/flux_workload.h).
//
// The twin's outputs are never visible to clients. A batch that cannot have a twin (no memory for
// its outputs, an engine that has ended) is answered without one, and not counted.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_CORE_SHADOW_RUNNER_H_
#define RESIDENT_SERVER_CORE_SHADOW_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/worker_pool.h"
#include "server/workload/request_batch.h"

namespace resident {

class ShadowRunner {
 public:
  // Records a comparison: of `tasks` tasks that ended OK on the batch's version, `mismatches` had
  // other outputs on the shadow, or did not end OK there. `judged`: the version that it is about.
  using Record =
      std::function<void(const OperatorVersion& judged, uint64_t tasks, uint64_t mismatches)>;

  // `after`: threads for building the twin and for the work after its end.
  ShadowRunner(const Registry& registry, std::vector<Device*> devices, WorkerPool& after,
               Record record);

  // REQUIRES: batch->shadow. Does no work on the calling thread, which may be a queue's dispatch
  // loop. Calls `done` once, on one of the threads `after`.
  void Run(std::shared_ptr<RequestBatch> batch, std::function<void()> done);

 private:
  struct Trial;

  // Returns false if there is no twin to wait for.
  bool StartTwin(const std::shared_ptr<Trial>& trial);
  bool StartComparison(const std::shared_ptr<Trial>& trial);
  void Finish(const Trial& trial);
  // Enqueues `batch` on the device; calls `then` when it has ended.
  bool Enqueue(uint32_t device, const std::shared_ptr<Batch>& batch, std::function<void()> then);

  const Registry& registry_;
  const std::vector<Device*> devices_;
  WorkerPool& after_;
  const Record record_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_SHADOW_RUNNER_H_
