// RemovalWaits: Operators.Remove calls whose operator is gone and whose last tasks still
// run. One thread waits for all of them, however many there are: tasks of a parked device
// stay for as long as it is parked, and its Resume must not queue behind who waits for that.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_RPC_REMOVAL_WAITS_H_
#define RESIDENT_SERVER_RPC_REMOVAL_WAITS_H_

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "runtime/queue/batch.h"

namespace resident {

class RemovalWaits {
 public:
  struct Waiting {
    std::string name;
    std::vector<std::shared_ptr<absl::Notification>> drained;
    Clock::time_point deadline;
    // Whether the caller has gone. Asked until `done`.
    std::function<bool()> cancelled;
    // Called once, on a thread of this object. DEADLINE_EXCEEDED: tasks of it still run.
    // CANCELLED. UNAVAILABLE: the daemon stops.
    std::function<void(const absl::Status&)> done;
  };

  RemovalWaits();
  ~RemovalWaits();

  void Add(Waiting waiting);

 private:
  void Work();

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::thread worker_;  // Last: it uses the others.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_REMOVAL_WAITS_H_
