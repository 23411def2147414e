// WorkerPool: a few threads for work that must not run on the thread that posts it: answers that
// copy a lot (the dispatch loop must not wait), and calls that block.
//
// The queue is unbounded, because admission limits the work that is posted.
//
// Thread safety: Post may be called from any thread, Stop only from the owner's.
#ifndef RESIDENT_SERVER_CORE_WORKER_POOL_H_
#define RESIDENT_SERVER_CORE_WORKER_POOL_H_

#include <cassert>
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
  ~WorkerPool() { Stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Finishes the posted work, and ends the threads. REQUIRES: nothing is posted any more, except by
  // the work itself. Idempotent; called by one thread at a time.
  void Stop() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }

  void Post(std::function<void()> work) {
    absl::MutexLock lock(&mu_);
    assert(!ended_);  // No thread would run it.
    work_.push_back(std::move(work));
  }

 private:
  void Work() {
    while (true) {
      std::function<void()> work;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &WorkerPool::HasWorkOrStops));
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }
  bool HasWorkOrStops() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !work_.empty();
  }

  absl::Mutex mu_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // The threads have ended.
  std::vector<std::thread> threads_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_WORKER_POOL_H_
