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
  {
    absl::MutexLock lock(&mu_);
    refills_ = true;
    if (returned_.size() < ahead_) {
      returned_.push_back(std::move(process));
      return;
    }
  }
  process.reset();
}

void ProcessPool::EndReturned() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stops_ || refills_; };
  while (true) {
    std::deque<std::unique_ptr<CompileProcess>> ending;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (stops_) return;
      refills_ = false;
      ending.swap(returned_);
    }
    ending.clear();
    if (!StartOne()) continue;
    absl::MutexLock lock(&mu_);
    refills_ = true;
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

bool ProcessPool::StartOne() {
  {
    absl::MutexLock lock(&mu_);
    if (ready_.size() + starting_ >= ahead_) return false;
    ++starting_;
  }
  auto started = CompileProcess::Start(options_);
  absl::MutexLock lock(&mu_);
  --starting_;
  // The next Take() starts a process itself and returns its error.
  if (!started.ok()) return false;
  ready_.push_back(*std::move(started));
  return true;
}

void ProcessPool::Refill() {
  while (StartOne()) {
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
