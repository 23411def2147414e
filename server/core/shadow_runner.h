// ShadowRunner: runs the tasks of a batch once more, on the version that is on trial, and compares
// the outputs of both versions.
//
// A batch is sampled when it is translated (RequestBatch::shadow). After its tasks have ended and
// before it is answered, so that its client has not been told yet that it may change the inputs,
// two batches run:
//
//   the twin        those of the tasks that ended OK, on the version on trial, with separate
//                   outputs
//   the comparison  one task of the operator `compare` for each output of each task
//
// Clients can change buffers all the same: with another batch, or with tasks whose outputs are
// their inputs. Tasks of buffers that differ therefore run a third time, on the batch's own
// version. If that does not reproduce the batch's outputs, they are no evidence, and are not
// counted.
//
// A sample of the batches that run as native code of a FLUX program has a shadow too: flux.run, the
// interpreter (server/workload/flux_workload.h).
//
// The twin's outputs are never visible to clients. All twins of a device use at most
// kMaxShadowBytes for them at one time. A batch that cannot have a twin (no memory for its outputs,
// an engine that has ended, a deadline that has passed) is answered without one, and not counted.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_CORE_SHADOW_RUNNER_H_
#define RESIDENT_SERVER_CORE_SHADOW_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/worker_pool.h"
#include "server/workload/workload.h"

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

  // Allocates the outputs of the twin of all tasks that ended OK. Returns false if there is no
  // memory, or nothing to compare.
  bool TakeMemory(Trial& trial);
  // Runs trial->tasks on this version; null: on the batch's own, without counting them. Returns
  // false if there is no twin to wait for.
  bool StartTwin(const std::shared_ptr<Trial>& trial, const OperatorVersion* version);
  bool StartComparison(const std::shared_ptr<Trial>& trial);
  // Returns false unless another twin has been started.
  bool Judge(const std::shared_ptr<Trial>& trial);
  // Enqueues `batch` on the device; calls `then` when it has ended.
  bool Enqueue(uint32_t device, const std::shared_ptr<Batch>& batch, std::function<void()> then);

  const Registry& registry_;
  const std::vector<Device*> devices_;
  WorkerPool& after_;
  const Record record_;
  // By device: bytes of the outputs of all twins.
  const std::shared_ptr<std::vector<std::atomic<uint64_t>>> twin_bytes_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_SHADOW_RUNNER_H_
