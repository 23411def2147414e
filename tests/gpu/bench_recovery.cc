#include "tests/gpu/bench_recovery.h"

#include <signal.h>

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
#include "runtime/device/device_control.h"
#include "runtime/device/device_harness.h"
#include "tests/support/bench_report.h"

ABSL_FLAG(int, kills, 10, "kills with a spare engine, and as many without");

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
      ++answers_;
    }
  }

  Device& device_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> answers_{0}, failed_{0};
  std::atomic<int64_t> longest_ns_{0};
  std::thread thread_;  // Last: it uses the members above.
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

}  // namespace

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
