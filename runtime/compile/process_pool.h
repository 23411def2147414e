// ProcessPool: compile processes of one kind, started in advance, each for one job.
//
// Take() returns a process that is ready, or starts one; Refill() starts processes until `ahead`
// are ready. Call Refill after a job, not during it, because starting a process takes processor
// time.
//
// Thread safety: all members may be called from any thread.
//
//   ProcessPool pool(options, /*ahead=*/2);
//   absl::StatusOr<std::unique_ptr<CompileProcess>> process = pool.Take();
//   ... (*process)->Call(...); process->reset();
//   pool.Refill();
#ifndef RESIDENT_RUNTIME_COMPILE_PROCESS_POOL_H_
#define RESIDENT_RUNTIME_COMPILE_PROCESS_POOL_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/compile/compile_process.h"

namespace resident {

class ProcessPool {
 public:
  ProcessPool(CompileProcessOptions options, size_t ahead)
      : options_(std::move(options)), ahead_(ahead) {}

  absl::StatusOr<std::unique_ptr<CompileProcess>> Take();
  void Refill();

  // Returns the compiler's name and version, which the first process reports. After an error the
  // next call tries again.
  absl::StatusOr<std::string> compiler();

 private:
  const CompileProcessOptions options_;
  const size_t ahead_;
  absl::Mutex mu_;
  std::deque<std::unique_ptr<CompileProcess>> ready_ ABSL_GUARDED_BY(mu_);
  size_t starting_ ABSL_GUARDED_BY(mu_) = 0;  // Processes that a Refill is starting.
  std::string compiler_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PROCESS_POOL_H_
