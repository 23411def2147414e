// Latency of a lone Run, compared with the same call to a bare gRPC echo server.
#ifndef RESIDENT_CLIENT_BENCH_LONE_RUN_H_
#define RESIDENT_CLIENT_BENCH_LONE_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/residentd_client.h"

namespace resident::bench {

struct LoneRunOptions {
  // Elements of the add.
  uint32_t elements = 1024;
  // Send and return the tensors with the call, instead of keeping them in device buffers.
  bool send_data = false;
  absl::Duration duration = absl::Seconds(2);
  // Instead: this number of calls, each after a pause of 1 to 2 s.
  uint32_t paused_calls = 0;
  std::optional<uint32_t> device;
};

struct LoneRunReport {
  // One value for each call, microseconds; the i-th calls of both were made consecutively.
  std::vector<double> residentd_us;
  std::vector<double> echo_us;
  // Device time of each task, nanoseconds.
  std::vector<double> device_ns;
  // Elements that differ from the CPU's results.
  uint64_t wrong = 0;
};

// `progress` receives the completed fraction, 0 to 1.
absl::StatusOr<LoneRunReport> MeasureLoneRun(client::Client& daemon, client::Client& echo,
                                             const LoneRunOptions& options,
                                             const std::function<void(double)>& progress);

}  // namespace resident::bench

#endif  // RESIDENT_CLIENT_BENCH_LONE_RUN_H_
