#include "runtime/device/engine_reaper.h"

#include <signal.h>
#include <sys/prctl.h>

#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident {
namespace {

struct Waiting {
  std::unique_ptr<EngineProcess> process;
  EngineReaper::Reaped reaped;
};

class Worker {
 public:
  Worker() {
    std::thread([this] {
      prctl(PR_SET_NAME, "resident-reaper");
      while (true) {
        const Waiting next = Next();
        const std::optional<ChildExit> exit = next.process->child().Wait(ChildProcess::kReapLimit);
        if (next.reaped) next.reaped(exit);
      }
    }).detach();
  }

  void Add(Waiting waiting) {
    absl::MutexLock lock(&mu_);
    waiting_.push_back(std::move(waiting));
  }

 private:
  Waiting Next() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](std::deque<Waiting>* waiting) { return !waiting->empty(); }, &waiting_));
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    return next;
  }

  absl::Mutex mu_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

Worker& TheWorker() {
  static Worker* const worker = new Worker;
  return *worker;
}

}  // namespace

void EngineReaper::Start() { TheWorker(); }

void EngineReaper::Reap(std::unique_ptr<EngineProcess> process, Reaped reaped) {
  process->child().Kill(SIGKILL);
  TheWorker().Add({std::move(process), std::move(reaped)});
}

}  // namespace resident
