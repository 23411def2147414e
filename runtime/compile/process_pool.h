// ProcessPool: compile processes of one kind, started in advance, each for one job.
//
// Take() returns a process that is ready, or starts one; Refill() starts processes until `ahead`
// are ready. Return() ends a process that has done its job, and refills, in the background: to end
// a process that has loaded a compiler takes milliseconds, for which a result need not wait.
// Starting a process takes processor time, so it is not done during a job.
//
// Thread safety: all members may be called from any thread.
//
//   ProcessPool pool(options, /*ahead=*/2);
//   absl::StatusOr<std::unique_ptr<CompileProcess>> process = pool.Take();
//   ... (*process)->Call(...);
//   pool.Return(*std::move(process));
#ifndef RESIDENT_RUNTIME_COMPILE_PROCESS_POOL_H_
#define RESIDENT_RUNTIME_COMPILE_PROCESS_POOL_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/compile/compile_process.h"

namespace resident {

class ProcessPool {
 public:
  ProcessPool(CompileProcessOptions options, size_t ahead);
  // Waits until processes that were returned have ended.
  ~ProcessPool();

  absl::StatusOr<std::unique_ptr<CompileProcess>> Take();
  void Refill();
  // Null, if no process could be started: only refills. If as many processes as are started ahead
  // wait for their end, the caller ends its own: their number stays limited.
  void Return(std::unique_ptr<CompileProcess> process);

  // Returns the compiler's name and version, which the first process reports. After an error the
  // next call tries again.
  absl::StatusOr<std::string> compiler();

 private:
  // Ends processes that were returned, and starts others, until the pool is destroyed.
  void EndReturned();
  // Whether a process was started: false if enough are ready, or it failed.
  bool StartOne();

  const CompileProcessOptions options_;
  const size_t ahead_;
  absl::Mutex mu_;
  std::deque<std::unique_ptr<CompileProcess>> ready_ ABSL_GUARDED_BY(mu_);
  size_t starting_ ABSL_GUARDED_BY(mu_) = 0;  // Processes that a Refill is starting.
  std::string compiler_ ABSL_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<CompileProcess>> returned_ ABSL_GUARDED_BY(mu_);
  bool refills_ ABSL_GUARDED_BY(mu_) = false;  // Processes may be missing.
  bool stops_ ABSL_GUARDED_BY(mu_) = false;
  std::thread ends_returned_;  // Started last, when all other members exist.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PROCESS_POOL_H_
