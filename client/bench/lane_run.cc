#include "client/bench/lane_run.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/bench/measurements.h"
#include "client/lane.h"
#include "runtime/base/status_macros.h"

namespace resident::bench {
namespace {

using Clock = std::chrono::steady_clock;
using client::Varying;

// Sets of tensors over which the submissions go.
constexpr uint64_t kSets = 1024;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sets of x, y and out, and the prepared add.
struct Adds {
  std::vector<float> x, y;
  client::Buffer<float> x_buffer, y_buffer, out_buffer;
  std::optional<client::LaneCall> call;
  uint32_t x_index = 0, y_index = 0, out_index = 0;
  uint64_t bytes = 0;  // Of one tensor.

  // The words of the add of one set.
  void SetWords(uint64_t set, uint64_t (&words)[3]) const {
    words[0] = residentd_lane_place_at(x_index, set * bytes);
    words[1] = residentd_lane_place_at(y_index, set * bytes);
    words[2] = residentd_lane_place_at(out_index, set * bytes);
  }
};

absl::StatusOr<Adds> MakeAdds(client::Client& daemon, client::Lane& lane, uint32_t elements,
                              uint32_t device) {
  Adds adds;
  adds.bytes = elements * sizeof(float);
  const uint64_t total = kSets * elements;
  // Whole numbers: exact in float32, also when the device fuses multiply and add.
  adds.x.resize(total);
  adds.y.resize(total);
  for (uint64_t i = 0; i < total; ++i) {
    adds.x[i] = static_cast<float>(i % 65521);
    adds.y[i] = static_cast<float>(i % 251);
  }
  const client::BufferOptions on{.device = device};
  ASSIGN_OR_RETURN(adds.x_buffer, daemon.Upload(adds.x, on));
  ASSIGN_OR_RETURN(adds.y_buffer, daemon.Upload(adds.y, on));
  ASSIGN_OR_RETURN(adds.out_buffer, daemon.Upload(std::vector<float>(total, -1), on));
  client::TaskBatch batch("add");
  const client::View one{.shape = {elements}};
  batch.Use(adds.x_buffer, one).Use(adds.y_buffer, one).Use(adds.out_buffer, one).Scalar(kAlpha);
  ASSIGN_OR_RETURN(adds.call,
                   lane.Prepare(batch, {Varying::Place(0), Varying::Place(1), Varying::Place(2)}));
  ASSIGN_OR_RETURN(adds.x_index, lane.Bind(adds.x_buffer));
  ASSIGN_OR_RETURN(adds.y_index, lane.Bind(adds.y_buffer));
  ASSIGN_OR_RETURN(adds.out_index, lane.Bind(adds.out_buffer));
  return adds;
}

// Compares the first `sets` outputs with the CPU's results.
absl::Status Check(const Adds& adds, uint64_t sets, LaneRunReport& report) {
  ASSIGN_OR_RETURN(const std::vector<float> sums, adds.out_buffer.Download());
  const uint64_t count = std::min<uint64_t>(sets, kSets) * adds.bytes / sizeof(float);
  for (uint64_t i = 0; i < count; ++i) {
    const float expected = adds.x[i] + kAlpha * adds.y[i];
    if (sums[i] == expected) continue;
    if (report.wrong++ == 0) {
      report.first_difference =
          absl::StrCat("element ", i, " of a lane's adds: ", sums[i], " instead of ", expected);
    }
  }
  return absl::OkStatus();
}

absl::Status RunLone(client::Lane& lane, const Adds& adds, const LaneRunOptions& options,
                     LaneRunReport& report, const std::function<void(double)>& progress) {
  const double seconds = absl::ToDoubleSeconds(options.duration);
  Clock::time_point start = Clock::now();
  uint64_t calls = 0;
  double done = 0;
  for (; done < 1; ++calls) {
    if (calls == kWarmupCalls) start = Clock::now();
    uint64_t words[3];
    adds.SetWords(calls % kSets, words);
    residentd_lane_completion completion;
    const Clock::time_point begin = Clock::now();
    const int code =
        residentd_lane_call(lane.handle(), adds.call->number(), words, 3, -1, &completion);
    const double us = SecondsSince(begin) * 1e6;
    if (code != RESIDENTD_LANE_OK) return lane.FromCode(code);
    RETURN_IF_ERROR(lane.Ended(completion));
    if (calls < kWarmupCalls) continue;
    report.lone_us.push_back(us);
    done = options.lone_tasks > 0 ? static_cast<double>(report.lone_us.size()) /
                                        static_cast<double>(options.lone_tasks)
                                  : SecondsSince(start) / seconds;
    if (calls % 1024 == 0) progress(done);
  }
  return Check(adds, calls, report);
}

// Submits as long as there are slots, and waits for half of them when there are none.
absl::Status RunMany(client::Lane& lane, const Adds& adds, const LaneRunOptions& options,
                     LaneRunReport& report, const std::function<void(double)>& progress) {
  const double seconds = absl::ToDoubleSeconds(options.duration);
  residentd_lane* const handle = lane.handle();
  const uint32_t slots = residentd_lane_slots(handle);
  const Clock::time_point start = Clock::now();
  int64_t last = -1;
  double done = 0;
  while (done < 1) {
    uint64_t words[3];
    adds.SetWords(report.tasks % kSets, words);
    const int64_t sequence = residentd_lane_submit(handle, adds.call->number(), words, 3, 0);
    if (sequence >= 0) {
      last = sequence;
      ++report.tasks;
      if (options.tasks > 0 && report.tasks >= options.tasks) break;
      continue;
    }
    if (sequence != RESIDENTD_LANE_FULL) return lane.FromCode(sequence);
    RETURN_IF_ERROR(lane.Await(residentd_lane_next(handle) - slots / 2).status());
    if (options.tasks == 0) done = SecondsSince(start) / seconds;
    progress(options.tasks > 0
                 ? static_cast<double>(report.tasks) / static_cast<double>(options.tasks)
                 : done);
  }
  // All of them: their order is not that of their numbers.
  for (int64_t at = std::max<int64_t>(last - slots + 1, 0); at <= last; ++at) {
    ASSIGN_OR_RETURN(const residentd_lane_completion completion, lane.Await(at));
    RETURN_IF_ERROR(lane.Ended(completion));
  }
  report.seconds = SecondsSince(start);
  return Check(adds, report.tasks, report);
}

}  // namespace

absl::StatusOr<LaneRunReport> MeasureLane(client::Client& daemon, const LaneRunOptions& options,
                                          const std::function<void(double)>& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<client::Lane> lane,
                   daemon.OpenLane({.device = options.device, .slots = options.slots}));
  LaneRunReport report;
  ASSIGN_OR_RETURN(const Adds lone, MakeAdds(daemon, *lane, options.lone_elements, options.device));
  RETURN_IF_ERROR(RunLone(*lane, lone, options, report, [&](double part) { progress(part / 2); }));
  ASSIGN_OR_RETURN(const Adds many, MakeAdds(daemon, *lane, options.elements, options.device));
  RETURN_IF_ERROR(
      RunMany(*lane, many, options, report, [&](double part) { progress(0.5 + part / 2); }));
  progress(1);
  return report;
}

}  // namespace resident::bench
