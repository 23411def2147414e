// WorkerPool: a few threads for what must not run where it arises: answers that copy
// a lot (the dispatch loop must not wait), and calls that block.
//
// Unbounded, as what is posted is bounded by what was admitted.
//
// Thread safety: Post may be called from any thread.
#ifndef RESIDENT_SERVER_RPC_WORKER_POOL_H_
#define RESIDENT_SERVER_RPC_WORKER_POOL_H_

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident {

class WorkerPool {
 public:
  explicit WorkerPool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  // Finishes what was posted.
  ~WorkerPool() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Post(std::function<void()> work) {
    absl::MutexLock lock(&mu_);
    work_.push_back(std::move(work));
  }

 private:
  void Work() {
    while (true) {
      std::function<void()> work;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &WorkerPool::HasNews));
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }
  bool HasNews() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !work_.empty(); }

  absl::Mutex mu_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_WORKER_POOL_H_
