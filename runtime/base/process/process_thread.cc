#include "runtime/base/process/process_thread.h"

#include <sys/prctl.h>

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident {
namespace {

class ProcessThread {
 public:
  ProcessThread() {
    std::thread([this] { Loop(); }).detach();
  }

  void Run(const std::function<void()>& work) {
    absl::MutexLock one_at_a_time(&callers_mu_);
    absl::MutexLock lock(&mu_);
    work_ = &work;
    const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return work_ == nullptr; };
    mu_.Await(absl::Condition(&done));
  }

 private:
  void Loop() {
    prctl(PR_SET_NAME, "resident-spawn");
    const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return work_ != nullptr; };
    while (true) {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      (*work_)();
      work_ = nullptr;
    }
  }

  absl::Mutex callers_mu_;
  absl::Mutex mu_ ABSL_ACQUIRED_AFTER(callers_mu_);
  const std::function<void()>* work_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace

void RunOnProcessThread(const std::function<void()>& work) {
  static ProcessThread* const thread = new ProcessThread;  // Never deleted.
  thread->Run(work);
}

}  // namespace resident
