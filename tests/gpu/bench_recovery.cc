#include "tests/gpu/bench_recovery.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/device_control.h"
#include "runtime/device/device_harness.h"
#include "tests/support/bench_report.h"

ABSL_FLAG(int, kills, 10, "kills with a spare engine, and as many without");
ABSL_FLAG(int, stop_count, 10000, "tasks that are stopped");

namespace resident {
namespace {

using Millis = std::chrono::duration<double, std::milli>;
using testing::BenchReport;
using testing::Fail;
using testing::Percentile;

constexpr std::chrono::seconds kLimit{60};

// Runs one task; false if there is no engine or the engine ended.
bool RunLone(Device& device) {
  const auto session = device.session();
  if (session == nullptr) return false;
  const auto memory = session->AllocateStaging(sizeof(float));
  if (!memory.ok()) return false;
  volatile float* const value = reinterpret_cast<volatile float*>((*memory)->host);
  *value = 1;
  auto batch = std::make_shared<Batch>();
  batch->tasks = {DeviceHarness::Task("test.count", 1, {(*memory)->address})};
  batch->keep_alive = {*memory};
  batch->epoch = session->epoch();
  std::atomic<bool> done{false};
  batch->done = [&done](Batch&) { done = true; };
  if (!device.queue().Enqueue(DeviceHarness::kClient, batch, std::chrono::milliseconds(1)).ok()) {
    return false;
  }
  while (!done) std::this_thread::yield();
  if (batch->failed != 0) {
    if (*value != 1 && *value != 2) Fail(absl::StrCat("a failed task wrote ", *value));
    return false;
  }
  if (*value != 2) Fail(absl::StrCat("a wrong answer: ", *value));
  return true;
}

// Sends lone tasks until it is destroyed.
class LoneClient {
 public:
  explicit LoneClient(Device* device) : device_(*device), thread_([this] { RunUntilStopped(); }) {}
  ~LoneClient() {
    stop_ = true;
    thread_.join();
  }
  uint64_t answers() const { return answers_; }
  uint64_t failed() const { return failed_; }
  // The longest time between two answers.
  double LongestGapMs() const { return static_cast<double>(longest_ns_.load()) / 1e6; }
  void ForgetGaps() { longest_ns_ = 0; }
  // The times between answers from now on are kept; and those that were.
  void KeepTimes() { keeps_ = true; }
  std::vector<double> TakeTimesUs() {
    keeps_ = false;
    absl::MutexLock lock(&mu_);
    return std::move(times_us_);
  }

 private:
  void RunUntilStopped() {
    auto last = Clock::now();
    while (!stop_) {
      if (!RunLone(device_)) {
        ++failed_;
        std::this_thread::yield();
        continue;
      }
      const auto now = Clock::now();
      const int64_t gap = std::chrono::nanoseconds(now - std::exchange(last, now)).count();
      if (gap > longest_ns_) longest_ns_ = gap;
      if (keeps_) {
        absl::MutexLock lock(&mu_);
        times_us_.push_back(static_cast<double>(gap) / 1e3);
      }
      ++answers_;
    }
  }

  Device& device_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> answers_{0}, failed_{0};
  std::atomic<int64_t> longest_ns_{0};
  std::atomic<bool> keeps_{false};
  absl::Mutex mu_;
  std::vector<double> times_us_;
  std::thread thread_;  // Last: it uses the members above.
};

// How long this machine holds up a thread that only reads the clock: no host can do better.
class ClockReader {
 public:
  ClockReader() : thread_([this] { ReadUntilStopped(); }) {}
  // Ends the thread. Returns the longest time between two readings.
  double StopUs() {
    stop_ = true;
    thread_.join();
    return longest_us_;
  }

 private:
  void ReadUntilStopped() {
    for (auto last = Clock::now(); !stop_;) {
      const auto now = Clock::now();
      const std::chrono::duration<double, std::micro> gap = now - std::exchange(last, now);
      longest_us_ = std::max(longest_us_, gap.count());
    }
  }

  std::atomic<bool> stop_{false};
  double longest_us_ = 0;  // Of the thread, until it has ended.
  std::thread thread_;     // Last: it uses the members above.
};

template <typename Condition>
void Await(const char* what, const Condition& condition) {
  const auto until = Clock::now() + kLimit;
  while (!condition()) {
    if (Clock::now() > until) Fail(absl::StrCat("timed out waiting for ", what));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

struct Figures {
  std::vector<double> lone_us, sustained;
  std::vector<double> gap_ms, supervisor_ms;
  std::map<std::string, std::vector<double>> phase_ms;
  uint64_t failed = 0;
};

// The median duration of a lone task, as its client sees it, in microseconds.
double MeasureLoneUs(Device& device) {
  constexpr int kTasks = 3000;
  std::vector<double> us;
  for (int i = 0; i < kTasks; ++i) {
    const auto begin = Clock::now();
    if (!RunLone(device)) Fail("a task failed without a kill");
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  return Percentile(us, 0.5);
}

// The longest lone task of the first second. A GPU that was idle raises its clocks in this time,
// and holds up what runs meanwhile (docs/gpu_facts.md). In microseconds.
double LongestWhileClocksRise(Device& device) {
  double longest_us = 0;
  const auto start = Clock::now();
  for (auto begin = start; begin - start < std::chrono::seconds(1); begin = Clock::now()) {
    if (!RunLone(device)) Fail("a task failed");
    longest_us = std::max(longest_us,
                          std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  return longest_us;
}

// Tasks of one batch in a second.
double MeasureSustained(DeviceHarness& harness) {
  constexpr uint32_t kTasks = 2'000'000;
  const Floats counters = harness.MakeFloats(kTasks);
  const auto begin = Clock::now();
  harness.Run(harness.CountTasks(counters));
  return kTasks / std::chrono::duration<double>(Clock::now() - begin).count();
}

void KillOnce(bool spare, Figures* figures, EngineInfo* info) {
  DeviceOptions options = DeviceHarness::Options();
  options.limits = DeviceLimits();
  options.spare_engine = spare;
  DeviceHarness harness(options);
  Device& device = harness.device();
  *info = device.snapshot().info;
  if (spare) Await("a spare engine", [&] { return device.snapshot().spare_pid != 0; });
  figures->lone_us.push_back(MeasureLoneUs(device));
  figures->sustained.push_back(MeasureSustained(harness));
  LoneClient client(&device);
  Await("answers", [&] { return client.answers() > 1000; });
  client.ForgetGaps();
  const pid_t engine = harness.engine_pid();
  const uint64_t failed = client.failed();
  kill(engine, SIGKILL);
  Await("another engine", [&] {
    const Device::Snapshot snapshot = device.snapshot();
    return snapshot.engine_pid != 0 && snapshot.engine_pid != engine &&
           snapshot.last_restart.total.count() != 0;
  });
  const uint64_t answers = client.answers();
  Await("answers of the next engine", [&] { return client.answers() > answers + 100; });
  const Device::Restart restart = device.snapshot().last_restart;
  if (restart.spare != spare) Fail("the wrong engine took over");
  figures->gap_ms.push_back(client.LongestGapMs());
  figures->supervisor_ms.push_back(Millis(restart.total).count());
  figures->failed += client.failed() > failed;
  std::map<std::string, double> phases;
  for (const EnginePhase& phase : restart.phases) phases[phase.name] += Millis(phase.took).count();
  for (const auto& [name, ms] : phases) figures->phase_ms[name].push_back(ms);
}

// Starts a task that loops until it is stopped, and waits until it runs.
Submission StartHang(DeviceHarness& harness, const Floats& out) {
  out.host()[0] = 0;
  auto batch = harness.MakeBatch({DeviceHarness::Task("test.until_stopped", 1, {out.address()})});
  batch->keep_alive.push_back(out.memory);
  Submission hang = harness.Submit(std::move(batch));
  while (out.host()[0] == 0) {
  }
  return hang;
}

// From the cancellation until the task has ended, in microseconds.
double Cancel(DeviceHarness& harness, const Submission& hang) {
  const auto begin = Clock::now();
  hang.batch->cancelled = true;
  harness.device().queue().NoteCancelled();
  while (*hang.done == 0) {
  }
  const auto end = Clock::now();
  if (hang.batch->status[0] != TaskStatus::kCancelled) Fail("the task was not cancelled");
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

double CancelOnce(DeviceHarness& harness, const Floats& out) {
  return Cancel(harness, StartHang(harness, out));
}

}  // namespace

int BenchStops(const std::string& out_file) {
  constexpr std::chrono::milliseconds kLimitOfTasks{2};
  constexpr int kBeside = 1000;
  std::vector<double> cancel_us, limit_us, alone_us, long_us, beside_us;
  double rising_us = 0, held_up_us = 0;
  EngineInfo info;
  {
    DeviceHarness harness;
    info = harness.device().snapshot().info;
    const Floats out = harness.MakeFloats(1);
    const pid_t engine = harness.engine_pid();
    rising_us = LongestWhileClocksRise(harness.device());
    ClockReader clock;
    for (int i = 0; i < absl::GetFlag(FLAGS_stop_count); ++i) {
      cancel_us.push_back(CancelOnce(harness, out));
    }
    held_up_us = clock.StopUs();
    LoneClient client(&harness.device());
    const auto measure = [&](std::vector<double>* times, const auto& meanwhile) {
      client.KeepTimes();
      meanwhile();
      const std::vector<double> us = client.TakeTimesUs();
      times->insert(times->end(), us.begin(), us.end());
    };
    const auto await_answers = [&](uint64_t count) {
      Await("answers",
            [&, before = client.answers()] { return client.answers() > before + count; });
    };
    // In turn, so that all see the same machine.
    for (int round = 0; round < 10; ++round) {
      await_answers(1000);
      measure(&alone_us, [&] { await_answers(5000); });
      // A long task on the poller's block sends the client's tasks through the device ring: that is
      // not due to stops.
      const Submission hang = StartHang(harness, out);
      measure(&long_us, [&] { await_answers(5000); });
      Cancel(harness, hang);
      measure(&beside_us, [&] {
        for (int i = 0; i < kBeside / 10; ++i) CancelOnce(harness, out);
      });
    }
    if (client.failed() != 0) Fail("another client's task failed");
    if (harness.engine_pid() != engine) Fail("the engine was replaced");
  }
  {
    DeviceOptions options = DeviceHarness::Options();
    options.task_time_limit = kLimitOfTasks;
    DeviceHarness harness(options);
    const Floats out = harness.MakeFloats(1);
    const pid_t engine = harness.engine_pid();
    for (int i = 0; i < absl::GetFlag(FLAGS_stop_count) / 10; ++i) {
      const Submission hang = StartHang(harness, out);
      const auto begin = Clock::now();
      while (*hang.done == 0) {
      }
      if (hang.batch->status[0] != TaskStatus::kAborted) Fail("the task was not stopped");
      const std::chrono::duration<double, std::micro> ran = Clock::now() - begin;
      limit_us.push_back((ran - kLimitOfTasks).count());
    }
    if (harness.engine_pid() != engine) Fail("the engine was replaced");
  }
  std::printf("%s; %s\n", info.name.c_str(), info.detail.c_str());
  BenchReport report;
  report.AddPercentiles("from a cancellation to the end of the task", cancel_us);
  report.Add("the longest of these", Percentile(cancel_us, 1), "us",
             "a thread that only reads the clock is held up, longest", held_up_us);
  report.Add("a lone task in the first second of an idle GPU, longest", rising_us, "us");
  report.AddPercentiles("from the time limit of 2 ms to the end of the task", limit_us);
  for (const auto& [name, p] : {std::pair{"p50", 0.5}, std::pair{"p99", 0.99}}) {
    report.Add(absl::StrCat("another client's lone task during 1,000 stops, ", name),
               Percentile(beside_us, p), "us", "without stops", Percentile(alone_us, p));
    report.Add(absl::StrCat("the same, ", name), Percentile(beside_us, p), "us",
               "beside a long task that is not stopped", Percentile(long_us, p));
  }
  report.Write(out_file, {{"device", info.name}, {"detail", info.detail}});
  return 0;
}

int BenchRecovery(const std::string& out) {
  Figures with, without;
  EngineInfo info;
  for (int i = 0; i < absl::GetFlag(FLAGS_kills); ++i) {
    KillOnce(true, &with, &info);
    KillOnce(false, &without, &info);
  }
  std::printf("%s; %s\n", info.name.c_str(), info.detail.c_str());
  BenchReport report;
  report.Add("kills of the engine, each way", absl::GetFlag(FLAGS_kills), "kills");
  report.Add("lone task, median of the p50 before each kill", Percentile(with.lone_us, 0.5), "us",
             "without a spare engine", Percentile(without.lone_us, 0.5));
  report.Add("sustained tasks before each kill, p50", Percentile(with.sustained, 0.5) / 1e6,
             "M tasks/s", "without a spare engine", Percentile(without.sustained, 0.5) / 1e6);
  for (const auto& [name, p] : {std::pair{"p50", 0.5}, std::pair{"longest", 1.0}}) {
    report.Add(absl::StrCat("gap between answers around a kill, ", name),
               Percentile(with.gap_ms, p), "ms", "without a spare engine",
               Percentile(without.gap_ms, p));
  }
  report.Add("from the end to the next engine, p50", Percentile(with.supervisor_ms, 0.5), "ms",
             "without a spare engine", Percentile(without.supervisor_ms, 0.5));
  for (const auto& [figures, which] :
       {std::pair{&with, "spare"}, std::pair{&without, "no spare"}}) {
    for (const auto& [name, ms] : figures->phase_ms) {
      report.Add(absl::StrCat(which, ": ", name, ", p50"), Percentile(ms, 0.5), "ms");
    }
  }
  report.Write(out, {{"device", info.name}, {"detail", info.detail}});
  return 0;
}

}  // namespace resident
