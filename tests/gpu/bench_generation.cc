#include "tests/gpu/bench_generation.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "runtime/device/device_control.h"
#include "runtime/device/device_harness.h"
#include "tests/support/bench_report.h"
#include "tests/units/versions.h"

ABSL_FLAG(int, changes, 300, "changes of generation to measure");
ABSL_FLAG(int, operators, 64, "operators to install, at most 64");

namespace resident {
namespace {

using Micros = std::chrono::duration<double, std::micro>;
using testing::BenchReport;
using testing::Fail;
using testing::kFirstFreeSlot;
using testing::kVersions;
using testing::VersionAnswer;
using testing::VersionsGeneration;

constexpr std::chrono::seconds kParkDeadline{10};
constexpr uint32_t kBatchTasks = 256;
constexpr int kBatchesInFlight = 8;
constexpr ClientId kLone = 10, kStream = 11;

// The longest time without an answer since the last TakeMicros().
class Gaps {
 public:
  void Answer() {
    const int64_t now = Now();
    const int64_t gap = now - last_.exchange(now);
    int64_t longest = longest_.load();
    while (gap > longest && !longest_.compare_exchange_weak(longest, gap)) {
    }
    ++answers_;
  }
  double TakeMicros() { return static_cast<double>(longest_.exchange(0)) / 1e3; }
  uint64_t answers() const { return answers_.load(); }

 private:
  static int64_t Now() { return Clock::now().time_since_epoch().count(); }
  std::atomic<int64_t> last_{Now()};
  std::atomic<int64_t> longest_{0};
  std::atomic<uint64_t> answers_{0};
};

class Traffic {
 public:
  explicit Traffic(DeviceHarness* harness) : harness_(*harness) {
    harness_.device().queue().AddClient(kLone);
    harness_.device().queue().AddClient(kStream);
    threads_.emplace_back([this] { RunOneByOne(); });
    threads_.emplace_back([this] { Stream(); });
  }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Gaps& lone() { return lone_; }
  Gaps& any() { return any_; }
  uint64_t streamed() const { return streamed_.load(); }

 private:
  TaskDescriptor Task(uint64_t out, uint32_t slot) const {
    TaskDescriptor task{};
    task.operator_slot = static_cast<uint16_t>(slot);
    task.flags = kTaskCompact;
    task.set_elements(1);
    task.set_compact_argument(0, out);
    return task;
  }
  static void Check(float answer) {
    const int version = static_cast<int>(answer);
    if (version < 10 || version > 87 || version % 10 > 7) {
      Fail(absl::StrCat("a wrong answer: ", answer));
    }
  }

  void RunOneByOne() {
    const Floats out = harness_.MakeFloats(1);
    while (!stop_) {
      out.host()[0] = 0;
      auto batch = harness_.MakeBatch({Task(out.address(), kFirstFreeSlot)});
      std::atomic<bool> done{false};
      batch->done = [&done](Batch&) { done = true; };
      if (!harness_.device().queue().Enqueue(kLone, batch, std::chrono::milliseconds(1)).ok()) {
        Fail("a task was refused");
      }
      while (!done) std::this_thread::yield();
      if (batch->failed != 0) Fail("a task failed: " + batch->cause);
      Check(out.host()[0]);
      lone_.Answer();
      any_.Answer();
    }
  }

  void Stream() {
    const uint32_t slots = static_cast<uint32_t>(absl::GetFlag(FLAGS_operators));
    struct Slot {
      Floats out;
      std::shared_ptr<Batch> batch;
      std::atomic<bool> done{true};
    };
    std::vector<Slot> ring(kBatchesInFlight);
    for (Slot& slot : ring) slot.out = harness_.MakeFloats(kBatchTasks);
    for (size_t i = 0; !stop_; i = (i + 1) % ring.size()) {
      Slot& slot = ring[i];
      while (!slot.done) std::this_thread::yield();
      if (slot.batch != nullptr) {
        if (slot.batch->failed != 0) Fail("a task failed: " + slot.batch->cause);
        for (uint32_t t = 0; t < kBatchTasks; ++t) Check(slot.out.host()[t]);
      }
      std::vector<TaskDescriptor> tasks;
      for (uint32_t t = 0; t < kBatchTasks; ++t) {
        slot.out.host()[t] = 0;
        tasks.push_back(Task(slot.out.address(t), kFirstFreeSlot + 2 * (t % slots)));
      }
      slot.batch = harness_.MakeBatch(std::move(tasks));
      slot.done = false;
      slot.batch->done = [this, &slot](Batch& batch) {
        streamed_ += batch.tasks.size();
        any_.Answer();
        slot.done = true;
      };
      if (!harness_.device().queue().Enqueue(kStream, slot.batch).ok()) Fail("refused");
    }
    for (Slot& slot : ring) {
      while (!slot.done) std::this_thread::yield();
    }
  }

  DeviceHarness& harness_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> streamed_{0};
  Gaps lone_, any_;
  std::vector<std::thread> threads_;
};

class Bench {
 public:
  Bench(DeviceHarness* harness, BenchReport* report) : harness_(*harness), report_(*report) {
    for (int i = 0; i < absl::GetFlag(FLAGS_operators); ++i) {
      versions_[kFirstFreeSlot + 2 * i] = i % kVersions;
    }
    Load(Next());
  }

  void Run() {
    Traffic traffic(&harness_);
    Pauses(&traffic);
    Rates(&traffic);
    traffic.Stop();
    const Device::Snapshot snapshot = harness_.device().snapshot();
    if (!snapshot.restarts_by_reason.empty()) Fail("an engine was lost");
    report_.Add("changes that failed", static_cast<double>(snapshot.failed_generation_changes),
                "changes");
  }

 private:
  std::shared_ptr<const Generation> Next() {
    const EngineInfo info = harness_.device().snapshot().info;
    auto& changed = versions_[kFirstFreeSlot + 2 * (info.generation % versions_.size())];
    changed = (changed + 1) % kVersions;
    return VersionsGeneration(info.generation + 1, info.traits.compile_target, versions_);
  }

  void Load(const std::shared_ptr<const Generation>& next) {
    const absl::Status loaded = harness_.device().LoadGeneration(next, kParkDeadline);
    if (!loaded.ok()) Fail(loaded.ToString());
  }

  void Pauses(Traffic* traffic) {
    std::vector<double> between_any, between_lone, pause, whole, park, load, launch, unchanged;
    for (int i = 0; i < absl::GetFlag(FLAGS_changes); ++i) {
      const auto next = Next();
      // For comparison, the gap in 5 ms without a change.
      traffic->any().TakeMicros();
      traffic->lone().TakeMicros();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      unchanged.push_back(traffic->lone().TakeMicros());
      traffic->any().TakeMicros();
      const auto start = Clock::now();
      Load(next);
      whole.push_back(Micros(Clock::now() - start).count());
      const uint64_t answers = traffic->lone().answers();
      while (traffic->lone().answers() < answers + 2) std::this_thread::yield();
      between_any.push_back(traffic->any().TakeMicros());
      between_lone.push_back(traffic->lone().TakeMicros());
      const Device::Snapshot snapshot = harness_.device().snapshot();
      pause.push_back(Micros(snapshot.last_generation_pause).count());
      park.push_back(Micros(snapshot.last_switch.park).count());
      load.push_back(Micros(snapshot.last_switch.load).count());
      launch.push_back(Micros(snapshot.last_switch.launch).count());
    }
    report_.Add("operators installed", absl::GetFlag(FLAGS_operators), "operators");
    report_.Add("changes of generation", absl::GetFlag(FLAGS_changes), "changes");
    report_.AddPercentiles("longest gap between answers, a client of lone tasks", between_lone);
    report_.AddPercentiles("longest gap between answers of any client", between_any);
    report_.AddPercentiles("the same client, 5 ms without a change", unchanged);
    report_.AddPercentiles("nothing is submitted", pause);
    report_.AddPercentiles("engine: from the hold until the kernel has left", park);
    report_.AddPercentiles("engine: load", load);
    report_.AddPercentiles("engine: launch", launch);
    report_.AddPercentiles("LoadGeneration, preloading included", whole);
  }

  void Rates(Traffic* traffic) {
    const auto rate = [&](bool change) {
      const uint64_t before = traffic->streamed();
      const auto start = Clock::now();
      for (int second = 1; second <= 5; ++second) {
        if (change) Load(Next());
        std::this_thread::sleep_until(start + std::chrono::seconds(second));
      }
      return static_cast<double>(traffic->streamed() - before) /
             std::chrono::duration<double>(Clock::now() - start).count();
    };
    const double without = rate(false);
    const double with = rate(true);
    report_.Add("tasks streamed, no changes", without, "tasks/s");
    report_.Add("tasks streamed, a change a second", with, "tasks/s");
    report_.Add("their ratio", with / without, "");
  }

  DeviceHarness& harness_;
  BenchReport& report_;
  std::map<uint32_t, uint32_t> versions_;  // By slot.
};

}  // namespace

int BenchGeneration(const std::string& out) {
  DeviceHarness harness;
  const EngineInfo info = harness.device().snapshot().info;
  std::printf("%s; %s\n", info.name.c_str(), info.detail.c_str());
  BenchReport report;
  Bench(&harness, &report).Run();
  report.Write(out, {{"device", info.name}, {"detail", info.detail}});
  return 0;
}

}  // namespace resident
