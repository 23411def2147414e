// TaskRunner: runs tasks on an engine process one at a time and says how each ended,
// also when the engine ends with it or it does not end at all.
//
// Not for serving: that is DeviceQueue (runtime/queue). After anything but kCompleted
// the engine is of no more use.
//
// Thread safety: one thread. Memory ordering: as HostRing.
//
//   TaskRunner runner(process.get(), info.workers);
//   TaskEnd end = runner.Run(task, arguments, std::chrono::seconds(1));
//   if (end.how == TaskEnd::kCompleted) ... end.completion
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_TASK_RUNNER_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_TASK_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/layout/task.h"
#include "runtime/device/engine_process.h"
#include "runtime/ring/host_ring.h"

namespace resident {

struct TaskEnd {
  enum How { kCompleted, kTimedOut, kEngineEnded };
  How how = kCompleted;
  TaskCompletion completion = {};
  std::string cause = {};  // kEngineEnded: for people.
};

class TaskRunner {
 public:
  // REQUIRES: the kernel runs. `process` must outlive the object.
  TaskRunner(EngineProcess* process, uint32_t workers)
      : process_(process), ring_(process->region(), workers) {}

  // `arguments`: none for a task in compact form.
  TaskEnd Run(const TaskDescriptor& task, const std::vector<Argument>& arguments,
              std::chrono::nanoseconds most);

  // Has the kernel leave, without waiting for it. A GPU's context whose kernel has left is taken
  // down ten times as fast when the process is killed.
  void Park();

 private:
  void RingDoorbell();
  std::string CauseOfEnd(const ChildExit& exit) const;

  EngineProcess* const process_;
  HostRing ring_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_TASK_RUNNER_H_
