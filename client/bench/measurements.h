// The measurements of `residentctl bench` and `residentctl demo`. Each checks its results.
#ifndef RESIDENT_CLIENT_BENCH_MEASUREMENTS_H_
#define RESIDENT_CLIENT_BENCH_MEASUREMENTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/residentd_client.h"

namespace resident::bench {

// The factor of the adds, and the lone calls before the measurement.
inline constexpr float kAlpha = 3;
inline constexpr uint32_t kWarmupCalls = 200;

// Throughput of streamed batches of small tasks, checked against the CPU.
//
// Each task adds two rows of buffers on the device into its own output row. The options
// set the number of batches in flight. Each batch has its own output buffer; a buffer is
// reused when its batch has been answered.
struct TaskStreamOptions {
  // Tasks in a batch, and elements of each task.
  uint32_t batch = 1024;
  uint32_t elements = 64;
  uint32_t in_flight = 32;
  // Ends after `duration`, or after `batches` if that is not 0.
  absl::Duration duration = absl::Seconds(2);
  uint64_t batches = 0;
  std::optional<uint32_t> device;
  // If not null, a client of a bare gRPC echo (client/bench/echo_server.h), to which the same
  // batches are sent afterwards.
  client::Client* echo = nullptr;
};

struct TaskStreamReport {
  uint64_t batches = 0;
  uint64_t tasks = 0;
  double seconds = 0;
  // From Send to the result, for each batch.
  std::vector<double> batch_us;
  // The same of the echo.
  uint64_t echo_batches = 0;
  double echo_seconds = 0;
  // Elements that differ from the CPU's results; a description of the first.
  uint64_t wrong = 0;
  std::string first_difference;
};

// Fails if a batch is refused or a task fails. `progress` receives the completed fraction.
absl::StatusOr<TaskStreamReport> StreamTasks(client::Client& client,
                                             const TaskStreamOptions& options,
                                             const std::function<void(double)>& progress);

// Throughput of streamed FLUX batches with a known answer: one program, which sums the
// squares from 1 to n, for many values of n. Registers and cycle counts are checked against
// n (n + 1) (2n + 1) / 6 and 3n + 3.

// The program as assembly.
extern const char kSumOfSquaresSource[];

struct FluxStreamOptions {
  // Runs in a batch; run i sums to n = 1 + i % largest.
  uint32_t runs = 65536;
  uint32_t largest = 1000;
  uint32_t in_flight = 4;
  // Ends after `duration`, or after `batches` if that is not 0.
  absl::Duration duration = absl::Seconds(2);
  uint64_t batches = 0;
  std::optional<uint32_t> device;
};

struct FluxStreamReport {
  uint64_t batches = 0;
  uint64_t runs = 0;
  uint64_t instructions = 0;
  double seconds = 0;
  // Runs with an unexpected register, error or cycle count; a description of the first.
  uint64_t wrong = 0;
  std::string first_difference;
};

// Fails if a batch is refused or fails as a whole. `progress` receives the completed fraction.
absl::StatusOr<FluxStreamReport> StreamFlux(client::Client& client,
                                            const FluxStreamOptions& options,
                                            const std::function<void(double)>& progress);

// Latency of a lone Run, compared with the same call to a bare gRPC echo server.
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

#endif  // RESIDENT_CLIENT_BENCH_MEASUREMENTS_H_
