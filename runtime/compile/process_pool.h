// ProcessPool: compile processes of one kind, started ahead, each for one job.
//
// Take() hands out one that is ready, or starts one; Refill() starts those that are
// missing. Refill after a job, not during it: a process that starts needs a processor too.
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

  // The compiler's name and version, as the first process says. Asked again after an
  // error.
  absl::StatusOr<std::string> compiler();

 private:
  const CompileProcessOptions options_;
  const size_t ahead_;
  absl::Mutex mu_;
  std::deque<std::unique_ptr<CompileProcess>> ready_ ABSL_GUARDED_BY(mu_);
  size_t starting_ ABSL_GUARDED_BY(mu_) = 0;  // By Refills that are under way.
  std::string compiler_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PROCESS_POOL_H_
