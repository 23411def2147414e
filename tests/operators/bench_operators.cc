// Measures the cost of operator changes from a client of a real daemon:
//
//   bench_operators --out=FILE.json [--changes=200] [--operators=64]    (tests/gpu/run runs it)
//   bench_operators --out=FILE.json --native    FLUX programs as native code (bench_native.h)
//
//   installs      time to LOADED, compiled for the first time and from the cache, by step
//   pauses        the longest gap between the answers of a stream around each change of
//                 generation, with many operators installed, compared with the longest gap
//                 of intervals of the same length without a change
//   switches      Activate and Rollback, measured inside the daemon and by the caller
//   throughput    of a stream with one change of generation per second, compared with the
//                 throughput without changes
//
// Reads RESIDENTD and RESIDENT_TEST_DEVICES as the tests do. Exits with status 1 if an
// answer is wrong, but never because of low speed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/bench/measurements.h"
#include "client/operators.h"
#include "tests/daemon/daemon.h"
#include "tests/operators/bench_native.h"
#include "tests/support/bench_report.h"
#include "tests/support/temp_folder.h"

ABSL_FLAG(std::string, out, "bench_operators.json", "the file to write the figures to");
ABSL_FLAG(int, operators, 64, "operators installed");
ABSL_FLAG(int, changes, 200, "changes of generation whose pause is measured");
ABSL_FLAG(int, switches, 1000, "activations and rollbacks");
ABSL_FLAG(int, seconds, 10, "duration of each throughput run");
ABSL_FLAG(bool, native, false, "measure native code of FLUX programs instead");
ABSL_FLAG(std::string, gtest_output, "", "ignored: tests/gpu/run gives it to every check");

namespace resident::testing {
namespace {

using client::Installation;
using Clock = std::chrono::steady_clock;
using Micros = std::chrono::duration<double, std::micro>;

constexpr int kInstalls = 20;

// out = factor * x. `nonce` changes the content.
Installation Times(const std::string& name, int factor, int nonce) {
  const std::string source =
      absl::StrCat("// ", nonce, "\nRESIDENT_OPERATOR(", name,
                   ")(resident::Block& block, const resident::Args& args) {\n"
                   "  auto x = args.tensor<const float>(0);\n  auto out = args.tensor<float>(1);\n"
                   "  block.for_each(block.share(x.size()),\n"
                   "                 [&](resident::i64 i) { out[i] = ",
                   factor, ".0f * x[i]; });\n}\n");
  Installation installation = Installation::Source(name, "times.cc", {{"times.cc", source}});
  installation.Signature("x: in f32[*S], out: out f32[*S]");
  installation.Add(client::Example()
                       .Value(std::vector<float>{1, 2, 3})
                       .Value(std::vector<float>{1.0f * static_cast<float>(factor),
                                                 2.0f * static_cast<float>(factor),
                                                 3.0f * static_cast<float>(factor)}));
  return installation;
}

class Bench {
 public:
  Bench()
      // The staging is large enough for a spare engine to validate versions.
      : daemon_({"--park_after=0", "--max_installs=8", "--staging_mib=64",
                 "--state_dir=" + state_.path()}),
        client_(Must(client::Client::Connect(daemon_.address()), "connect")),
        operators_(*client_) {}

  int Run() {
    Installs();
    for (int i = 0; i < absl::GetFlag(FLAGS_operators); ++i) {
      Install(Times(absl::StrCat("op_", i), i % 7 + 1, 0), v1::VERSION_STATE_ACTIVE);
    }
    Pauses();
    Switches();
    Throughput();
    Write();
    return wrong_ == 0 ? 0 : 1;
  }

 private:
  // Returns the time until the version reached this state. Adds the durations of its steps
  // to `steps_us`.
  double Install(Installation installation, v1::VersionState until,
                 std::map<std::string, std::vector<double>>* steps_us = nullptr) {
    installation.WaitFor(until);
    const auto start = Clock::now();
    Must(operators_.Install(
             installation,
             [&](const v1::InstallResponse& progress) {
               if (steps_us == nullptr) return true;
               const std::string state = v1::VersionState_Name(progress.state());
               (*steps_us)[state].push_back(static_cast<double>(progress.duration_us()));
               for (const v1::StepDuration& step : progress.steps()) {
                 (*steps_us)["  " + step.step()].push_back(static_cast<double>(step.duration_us()));
               }
               return true;
             }),
         "install");
    return Micros(Clock::now() - start).count();
  }

  // In production, installs are usually minutes apart, so that a spare engine is ready for
  // each.
  void WaitForSpareEngine() {
    const auto until = Clock::now() + std::chrono::seconds(5);
    while (daemon_.Device().spare_engine_pid() == 0 && Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void Installs() {
    Install(Times("warm_up", 1, -1), v1::VERSION_STATE_LOADED);
    std::map<std::string, std::vector<double>> steps;
    std::vector<double> fresh_us, cached_us;
    for (int i = 0; i < kInstalls; ++i) {
      WaitForSpareEngine();
      fresh_us.push_back(
          Install(Times("installed", 3, 1000 + i), v1::VERSION_STATE_LOADED, &steps));
    }
    for (int i = 0; i < kInstalls; ++i) {
      cached_us.push_back(Install(Times("installed", 3, 1000 + i), v1::VERSION_STATE_LOADED));
    }
    report_.Add("install to LOADED, not cached, p50", Percentile(fresh_us, 0.5) / 1000, "ms");
    report_.Add("install to LOADED, not cached, slowest", Percentile(fresh_us, 1) / 1000, "ms");
    report_.Add("install to LOADED, cached, p50", Percentile(cached_us, 0.5) / 1000, "ms");
    report_.Add("install to LOADED, cached, slowest", Percentile(cached_us, 1) / 1000, "ms");
    for (const auto& [step, us] : steps) {
      report_.Add(absl::StrCat("install, not cached: ", step, ", p50"), Percentile(us, 0.5) / 1000,
                  "ms");
    }
  }

  // Sends batches of one task continuously, several in flight, and records the arrival time
  // of each answer.
  class Answers {
   public:
    explicit Answers(client::Client& client)
        : stream_(Must(client.OpenStream({.max_in_flight = 4}), "stream")),
          worker_([this, &client] {
            auto x = Must(client.Upload(std::vector<float>(256, 1.0f)), "upload");
            auto out = Must(client.Allocate<float>({256}), "allocate");
            client::TaskBatch batch("scale", 1);
            batch.Use(x).Use(out).Scalar(2.0);
            while (!stop_) {
              const absl::Status sent =
                  stream_->Send(batch, [this](absl::StatusOr<client::Result> result) {
                    if (!result.ok() || !result->ok()) Fail("a batch of the stream failed");
                    const std::lock_guard<std::mutex> lock(mutex_);
                    times_.push_back(Clock::now());
                  });
              if (!sent.ok()) Fail(sent.ToString());
            }
            if (!stream_->Finish().ok()) Fail("the stream failed");
          }) {}
    ~Answers() {
      stop_ = true;
      worker_.join();
    }

    // Returns the longest time without an answer that overlaps [from, to].
    double LongestGapUs(Clock::time_point from, Clock::time_point to) {
      const std::lock_guard<std::mutex> lock(mutex_);
      double longest = 0;
      const auto first = std::lower_bound(times_.begin(), times_.end(), from);
      for (auto at = first == times_.begin() ? first : first - 1;
           at != times_.end() && at + 1 != times_.end() && *at <= to; ++at) {
        longest = std::max(longest, Micros(at[1] - at[0]).count());
      }
      return longest;
    }

   private:
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::vector<Clock::time_point> times_;
    std::unique_ptr<client::Stream> stream_;
    std::thread worker_;
  };

  // The longest gaps between answers during installs, and during equally long intervals
  // without an install.
  struct Gaps {
    std::vector<double> with_us, without_us;
  };

  void InstallDuring(Answers& answers, const Installation& installation, Gaps* gaps) {
    const auto start = Clock::now();
    Install(installation, v1::VERSION_STATE_LOADED);
    const auto end = Clock::now();
    // Wait for the same duration without a change.
    std::this_thread::sleep_for(end - start + std::chrono::milliseconds(1));
    gaps->with_us.push_back(answers.LongestGapUs(start, end));
    gaps->without_us.push_back(answers.LongestGapUs(end, Clock::now()));
  }

  void Pauses() {
    Gaps cached, fresh;
    {
      Answers answers(*client_);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      // Alternate between two contents, both cached: each install is a change of
      // generation.
      Install(Times("paused", 2, 1), v1::VERSION_STATE_LOADED);
      Install(Times("paused", 2, 2), v1::VERSION_STATE_LOADED);
      for (int i = 0; i < absl::GetFlag(FLAGS_changes); ++i) {
        InstallDuring(answers, Times("paused", 2, i % 2 + 1), &cached);
      }
      // Compiled, and validated on the same device.
      for (int i = 0; i < kInstalls; ++i) {
        InstallDuring(answers, Times("paused", 2, 2000 + i), &fresh);
      }
    }
    const std::string operators = absl::StrCat(absl::GetFlag(FLAGS_operators), " operators");
    report_.Add(absl::StrCat("changes of generation, ", operators),
                static_cast<double>(cached.with_us.size()), "");
    for (const auto& [name, p] : {std::pair("p50", 0.5), std::pair("p99", 0.99)}) {
      report_.Add(absl::StrCat("longest gap between answers at a change, ", operators, ", ", name),
                  Percentile(cached.with_us, p) / 1000, "ms", "the same without a change",
                  Percentile(cached.without_us, p) / 1000);
    }
    report_.Add("longest gap between answers while a version is compiled and tried, p50",
                Percentile(fresh.with_us, 0.5) / 1000, "ms", "the same without an install",
                Percentile(fresh.without_us, 0.5) / 1000);
  }

  void Switches() {
    Install(Times("switched", 2, 1), v1::VERSION_STATE_ACTIVE);
    Install(Times("switched", 3, 2), v1::VERSION_STATE_ACTIVE);
    std::vector<double> inside_us, call_us, visible_us;
    client::TaskBatch batch("switched", 1);
    batch.Input(std::vector<float>{1}).Return<float>({1});
    for (int i = 0; i < absl::GetFlag(FLAGS_switches); ++i) {
      const bool back = i % 2 == 0;
      const auto start = Clock::now();
      const uint64_t switch_ns =
          back ? Must(operators_.Rollback("switched"), "rollback").switch_ns()
               : Must(operators_.Activate("switched"), "activate").switch_ns();
      call_us.push_back(Micros(Clock::now() - start).count());
      inside_us.push_back(static_cast<double>(switch_ns) / 1000);
      const auto answer = Must(client_->Run(batch), "run");
      if (answer.Output<float>()[0] != (back ? 2 : 3)) ++wrong_;
    }
    report_.Add("activate or rollback, inside the daemon, p50", Percentile(inside_us, 0.5), "us");
    report_.Add("activate or rollback, inside the daemon, p99", Percentile(inside_us, 0.99), "us");
    report_.Add("activate or rollback, the call, p50", Percentile(call_us, 0.5), "us");
    report_.Add("activate or rollback, the call, p99", Percentile(call_us, 0.99), "us");
    report_.Add("next requests that a switch was not visible to", wrong_, "");
  }

  double StreamRate() {
    bench::TaskStreamOptions options;
    options.duration = absl::Seconds(absl::GetFlag(FLAGS_seconds));
    const auto report = Must(bench::StreamTasks(*client_, options, [](double) {}), "stream");
    wrong_ += static_cast<int>(report.wrong);
    return static_cast<double>(report.tasks) / report.seconds / 1e6;
  }

  void Throughput() {
    double with = 0, without = 0;
    int changes = 0;
    for (int round = 0; round < 2; ++round) {  // Interleaved, to average out drift.
      without += StreamRate() / 2;
      std::atomic<bool> stop{false};
      std::thread changer([&] {
        for (int i = 0; !stop; ++i) {
          Install(Times("paused", 2, i % 2 + 1), v1::VERSION_STATE_LOADED);
          ++changes;
          for (int wait = 0; wait < 100 && !stop; ++wait) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
        }
      });
      with += StreamRate() / 2;
      stop = true;
      changer.join();
    }
    report_.Add("changes of generation during the throughput runs", changes, "");
    report_.Add("tasks of 64 elements, one change of generation a second", with, "M tasks/s",
                "the same without changes", without);
  }

  void Write() {
    const v1::DeviceStatus device = daemon_.Device();
    report_.Write(absl::GetFlag(FLAGS_out), {{"device", device.name()},
                                             {"engine", device.engine()},
                                             {"generation", device.generation()}});
  }

  const TempFolder state_{"bench_operators"};
  Daemon daemon_;
  std::unique_ptr<client::Client> client_;
  client::Operators operators_;
  BenchReport report_;
  int wrong_ = 0;
};

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::string out = absl::GetFlag(FLAGS_out);
  if (absl::GetFlag(FLAGS_native)) return resident::testing::BenchNative(out);
  return resident::testing::Bench().Run();
}
