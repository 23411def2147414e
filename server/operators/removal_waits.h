// RemovalWaits: Operators.Remove calls whose operator is removed and whose last tasks still run. A
// single thread waits for all of them, because tasks of a parked device stay until it is resumed,
// and its Resume must not wait behind these calls.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_OPERATORS_REMOVAL_WAITS_H_
#define RESIDENT_SERVER_OPERATORS_REMOVAL_WAITS_H_

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
    // Whether the caller has gone. Called repeatedly until `done`.
    std::function<bool()> cancelled;
    // Called once, on the thread of this object. DEADLINE_EXCEEDED: the operator's tasks still run.
    // CANCELLED: the caller has gone. UNAVAILABLE: the daemon stops.
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

#endif  // RESIDENT_SERVER_OPERATORS_REMOVAL_WAITS_H_
