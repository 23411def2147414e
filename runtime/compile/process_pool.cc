#include "runtime/compile/process_pool.h"

#include "runtime/base/status_macros.h"

namespace resident {

absl::StatusOr<std::unique_ptr<CompileProcess>> ProcessPool::Take() {
  {
    absl::MutexLock lock(&mu_);
    while (!ready_.empty()) {
      auto process = std::move(ready_.front());
      ready_.pop_front();
      // A process may have been killed while it waited; that is not an error of this job.
      if (!process->ended()) return process;
    }
  }
  return CompileProcess::Start(options_);
}

void ProcessPool::Refill() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (ready_.size() + starting_ >= ahead_) return;
      ++starting_;
    }
    auto started = CompileProcess::Start(options_);
    absl::MutexLock lock(&mu_);
    --starting_;
    // The next Take() starts a process itself and returns its error.
    if (!started.ok()) return;
    ready_.push_back(*std::move(started));
  }
}

absl::StatusOr<std::string> ProcessPool::compiler() {
  {
    absl::MutexLock lock(&mu_);
    if (!compiler_.empty()) return compiler_;
  }
  ASSIGN_OR_RETURN(auto process, Take());
  ASSIGN_OR_RETURN(const auto hello, process->Hello());
  absl::MutexLock lock(&mu_);
  compiler_ = hello;
  ready_.push_front(std::move(process));
  return compiler_;
}

}  // namespace resident
