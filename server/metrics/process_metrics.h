// ReadProcess: reads the figures of a process from /proc, in the units of Prometheus' metrics of
// the same names (process_cpu_seconds_total and so on).
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_SERVER_METRICS_PROCESS_METRICS_H_
#define RESIDENT_SERVER_METRICS_PROCESS_METRICS_H_

#include <cstdint>
#include <optional>

namespace resident {

struct ProcessMetrics {
  double cpu_seconds = 0;         // User and system, of all threads, including ended ones.
  double start_time_seconds = 0;  // Since the epoch.
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  uint64_t threads = 0;
  uint64_t open_fds = 0;
  uint64_t max_fds = 0;  // The soft limit; 0: unknown.
};

// Empty if there is no such process, or if it belongs to another user.
std::optional<ProcessMetrics> ReadProcess(int64_t pid);

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_PROCESS_METRICS_H_
