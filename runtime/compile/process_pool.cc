#include "runtime/compile/process_pool.h"

#include <utility>

#include "runtime/base/status_macros.h"

namespace resident {

ProcessPool::ProcessPool(CompileProcessOptions options, size_t ahead)
    : options_(std::move(options)), ahead_(ahead), ends_returned_([this] { EndReturned(); }) {}

ProcessPool::~ProcessPool() {
  {
    absl::MutexLock lock(&mu_);
    stops_ = true;
  }
  ends_returned_.join();
}

void ProcessPool::Return(std::unique_ptr<CompileProcess> process) {
  absl::MutexLock lock(&mu_);
  returned_.push_back(std::move(process));
}

void ProcessPool::EndReturned() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stops_ || !returned_.empty();
  };
  while (true) {
    std::unique_ptr<CompileProcess> process;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (stops_) return;
      process = std::move(returned_.front());
      returned_.pop_front();
    }
    process.reset();
    Refill();
  }
}

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
