#include <chrono>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/bench/measurements.h"
#include "runtime/base/status_macros.h"

namespace resident::bench {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

uint64_t CountWrong(std::span<const float> sums, const std::vector<float>& x,
                    const std::vector<float>& y) {
  if (sums.size() != x.size()) return x.size();
  uint64_t wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) wrong += sums[i] != x[i] + kAlpha * y[i];
  return wrong;
}

}  // namespace

absl::StatusOr<LoneRunReport> MeasureLoneRun(client::Client& daemon, client::Client& echo,
                                             const LoneRunOptions& options,
                                             const std::function<void(double)>& progress) {
  // Whole numbers: exact in float32, also when the device fuses multiply and add.
  std::vector<float> x(options.elements), y(options.elements);
  for (uint32_t i = 0; i < options.elements; ++i) {
    x[i] = static_cast<float>(i % 1000);
    y[i] = static_cast<float>(i % 77);
  }
  client::Buffer<float> x_buffer, y_buffer, out_buffer;
  client::TaskBatch batch("add");
  if (options.send_data) {
    batch.Input(x).Input(y).Return<float>({options.elements});
  } else {
    client::BufferOptions on{.device = options.device};
    ASSIGN_OR_RETURN(client::Buffer<float> first, daemon.Upload(x, on));
    on.device = first.device();
    ASSIGN_OR_RETURN(client::Buffer<float> second, daemon.Upload(y, on));
    ASSIGN_OR_RETURN(client::Buffer<float> third, daemon.Allocate<float>({options.elements}, on));
    x_buffer = std::move(first);
    y_buffer = std::move(second);
    out_buffer = std::move(third);
    batch.Use(x_buffer).Use(y_buffer).Use(out_buffer);
  }
  batch.Scalar(kAlpha);
  if (options.device.has_value()) batch.set_device(*options.device);

  LoneRunReport report;
  const Clock::duration duration = absl::ToChronoNanoseconds(options.duration);
  client::Result last;
  Clock::time_point start = Clock::now();
  std::mt19937 random(std::random_device{}());
  std::uniform_real_distribution<double> pause_seconds(1, 2);
  const auto completed = [&](int calls) {
    if (options.paused_calls > 0) return static_cast<double>(calls) / options.paused_calls;
    return std::chrono::duration<double>(Clock::now() - start) /
           std::chrono::duration<double>(duration);
  };
  for (int call = -static_cast<int>(kWarmupCalls); call <= 0 || completed(call) < 1; ++call) {
    if (call == 0) start = Clock::now();
    if (call >= 0 && options.paused_calls > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause_seconds(random)));
    }
    const Clock::time_point echo_start = Clock::now();
    absl::StatusOr<client::Result> echoed = echo.Run(batch);
    const double echo_us = MicrosecondsSince(echo_start);
    if (!echoed.ok()) return echoed.status();
    const Clock::time_point run_start = Clock::now();
    absl::StatusOr<client::Result> result = daemon.Run(batch);
    const double run_us = MicrosecondsSince(run_start);
    if (!result.ok()) return result.status();
    if (!result->ok()) return result->status();
    last = *std::move(result);
    if (call < 0) continue;
    report.echo_us.push_back(echo_us);
    report.residentd_us.push_back(run_us);
    if (!last.device_ns().empty()) report.device_ns.push_back(last.device_ns()[0]);
    if (call % 64 == 0 || options.paused_calls > 0) progress(completed(call));
  }
  progress(1);
  if (options.send_data) {
    report.wrong = CountWrong(last.Output<float>(), x, y);
  } else {
    ASSIGN_OR_RETURN(std::vector<float> sums, out_buffer.Download());
    report.wrong = CountWrong(sums, x, y);
  }
  return report;
}

}  // namespace resident::bench
