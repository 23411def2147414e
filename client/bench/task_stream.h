// Throughput of streamed batches of small tasks, checked against the CPU.
//
// Each task adds two rows of buffers on the device into its own output row. The options
// set the number of batches in flight. Each batch has its own output buffer; a buffer is
// reused when its batch has been answered.
#ifndef RESIDENT_CLIENT_BENCH_TASK_STREAM_H_
#define RESIDENT_CLIENT_BENCH_TASK_STREAM_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/residentd_client.h"

namespace resident::bench {

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
  // Of the echo.
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

}  // namespace resident::bench

#endif  // RESIDENT_CLIENT_BENCH_TASK_STREAM_H_
