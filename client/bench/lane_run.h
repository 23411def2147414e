// Measures the speed of a local lane: one task at a time, and as many as the lane takes.
#ifndef RESIDENT_CLIENT_BENCH_LANE_RUN_H_
#define RESIDENT_CLIENT_BENCH_LANE_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/residentd_client.h"

namespace resident::bench {

struct LaneRunOptions {
  // Elements of the add that runs alone, and of those that are submitted without waiting.
  uint32_t lone_elements = 1024;
  uint32_t elements = 64;
  uint32_t slots = 8192;
  // The duration of each of the two parts.
  absl::Duration duration = absl::Seconds(2);
  // Instead of the duration, unless 0: this number of lone tasks, and of others.
  uint64_t lone_tasks = 0;
  uint64_t tasks = 0;
  uint32_t device = 0;
};

struct LaneRunReport {
  // From before the submission until its end is known; microseconds, one value for each lone task.
  std::vector<double> lone_us;
  uint64_t tasks = 0;
  double seconds = 0;
  // Elements that differ from the CPU's results, in all outputs.
  uint64_t wrong = 0;
  std::string first_difference;
};

// All tensors are in buffers on the device. `progress` receives the completed fraction, 0 to 1.
// FAILED_PRECONDITION: the daemon has no lanes.
absl::StatusOr<LaneRunReport> MeasureLane(client::Client& daemon, const LaneRunOptions& options,
                                          const std::function<void(double)>& progress);

}  // namespace resident::bench

#endif  // RESIDENT_CLIENT_BENCH_LANE_RUN_H_
