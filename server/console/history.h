// History: how much the daemon did in each interval of the last ten minutes, for the console's
// charts. A thread of its own reads the daemon's counters once for each interval.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_CONSOLE_HISTORY_H_
#define RESIDENT_SERVER_CONSOLE_HISTORY_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/time_source.h"

namespace resident {

class History {
 public:
  static constexpr std::chrono::seconds kInterval{2};
  static constexpr size_t kIntervals = 300;  // Ten minutes.

  // Counters since the daemon's start.
  struct Totals {
    uint64_t tasks = 0;
    uint64_t received_bytes = 0;
    uint64_t sent_bytes = 0;
    std::vector<std::chrono::nanoseconds> busy = {};  // By device.
  };

  // `read` is called from the thread until the object is destroyed.
  explicit History(std::function<Totals()> read, TimeSource& time = TimeSource::Steady());
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // The rates of each interval, oldest first, and the share of each in which a device was busy:
  // {"interval_s": 2, "tasks": [...], "received_bytes": [...], "sent_bytes": [...],
  //  "busy": [[...], ...]}.
  std::string Json() const;

 private:
  struct Rates {
    double tasks = 0;
    double received_bytes = 0;
    double sent_bytes = 0;
    std::vector<double> busy = {};
  };

  void Loop();

  const std::function<Totals()> read_;
  TimeSource& time_;
  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Rates> rates_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONSOLE_HISTORY_H_
