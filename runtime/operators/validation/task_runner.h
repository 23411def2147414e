// TaskRunner: runs tasks on an engine process one at a time and reports how each ended,
// including tasks that end the engine and tasks that time out.
//
// Do not use it for serving; use DeviceQueue (runtime/queue). After any result other than
// kCompleted the engine cannot be used again.
//
// Thread safety: one thread. Memory ordering: see HostRing.
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
  std::string cause = {};  // kEngineEnded: for messages.
  bool killed = false;     // kEngineEnded: as of IsKilled.
};

// Whether something else than the process itself ended it: the machine's administrator, or the
// system, which had no memory left. It says nothing about the version.
bool IsKilled(const ChildExit& exit);

class TaskRunner {
 public:
  // REQUIRES: the kernel runs. `process` must outlive the object.
  TaskRunner(EngineProcess* process, uint32_t workers)
      : process_(process), ring_(process->region(), workers) {}

  // `arguments`: empty for a task in compact form.
  TaskEnd Run(const TaskDescriptor& task, const std::vector<Argument>& arguments,
              std::chrono::nanoseconds timeout);

  // Requests the kernel to exit, without waiting for it. A GPU context without a running
  // kernel is destroyed ten times as fast when the process is killed.
  void Park();

 private:
  void RingDoorbell();
  std::string DescribeEnd(const ChildExit& exit) const;

  EngineProcess* const process_;
  HostRing ring_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_TASK_RUNNER_H_
