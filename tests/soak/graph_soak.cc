// The graph soak. Clients decode with one graph in graph sessions: they cancel runs at random
// moments and fork sessions. Meanwhile an operator of the graph is activated and rolled back every
// 50 ms, other clients run small tasks at full speed, and the engine is killed now and then, with
// which the sessions are lost. The soak checks every record and every state (decoder.h), that every
// small task ran once, and that the daemon finally has no session, no buffer and no memory of
// clients.
//
//   RESIDENTD=bazel-bin/server/residentd bazel-bin/tests/soak/graph_soak --seconds=10
//   ... --seconds=600 --small_tasks=10000000      ten minutes, and as many small tasks
//   ... --attacks=tests/soak/attacks.py           beside hostile clients
//   RESIDENT_TEST_DEVICES=0 ...                   on a GPU
//
// The hostile clients are another program, which attacks until the others stop. The daemon must
// then return to the memory that it used before within a minute.
//
// Prints the counts, then `0 violations` with exit status 0, or the violations.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/operators.h"
#include "gtest/gtest.h"
#include "runtime/base/process/child_process.h"
#include "tests/daemon/nothing_left.h"
#include "tests/soak/changes.h"
#include "tests/soak/decoder.h"
#include "tests/soak/exact_model.h"
#include "tests/soak/report.h"
#include "tests/soak/small_tasks.h"
#include "tests/soak/usage.h"

ABSL_FLAG(double, seconds, 10, "duration");
ABSL_FLAG(uint64_t, small_tasks, 0, "continue until so many small tasks have ended");
ABSL_FLAG(int, decoders, 2, "clients that decode");
ABSL_FLAG(int, small_task_clients, 2, "clients that run small tasks");
ABSL_FLAG(double, kill_seconds, 20, "mean time between two kills of the engine");
ABSL_FLAG(std::string, attacks, "", "program of hostile clients (attacks.py); empty: none");
ABSL_FLAG(uint64_t, seed, 1, "seed of all random choices");
ABSL_FLAG(std::string, out, "", "file for the summary, as JSON");

namespace resident::soak {
namespace {

constexpr absl::Duration kSwitchInterval = absl::Milliseconds(50);
constexpr absl::Duration kReportInterval = absl::Seconds(30);
constexpr double kWarmUpSeconds = 3;
// Version numbers of the operator, and operator of the timeline.
constexpr uint32_t kFirst = 1;
constexpr uint32_t kSecond = 2;
constexpr int kMix = 0;

class Soak {
 public:
  explicit Soak(const testing::Daemon& daemon)
      : daemon_(daemon), model_(absl::GetFlag(FLAGS_seed)) {}

  // Installs the operator's two versions, loads the weights and the graph.
  bool Begin() {
    const auto client = Connect();
    client::Operators operators(*client);
    for (const uint32_t version : {kFirst, kSecond}) {
      client::Installation installation = ExactModel::MakeOperator(version);
      installation.WaitFor(version == kFirst ? v1::VERSION_STATE_ACTIVE : v1::VERSION_STATE_LOADED);
      const auto installed = operators.Install(installation);
      if (!installed.ok()) return Failed("an install", installed.status());
    }
    for (const ExactModel::Weight& weight : model_.Weights()) {
      client::BufferOptions options;
      options.durable = true;
      options.name = weight.name;
      auto buffer = client->Upload(weight.values, options);
      if (!buffer.ok()) return Failed("an upload", buffer.status());
      weights_.push_back(buffer->id());
      buffer->Release();  // It is freed by its id.
    }
    const auto loaded = client->LoadGraph(model_.MakeGraph());
    if (!loaded.ok()) return Failed("loading the graph", loaded.status());
    if (!loaded->report().accepted()) {
      return Failed("the graph", absl::InternalError(loaded->report().DebugString()));
    }
    graph_id_ = loaded->graph_id();
    return true;
  }

  void Run(double seconds, uint64_t small_tasks) {
    Timeline timeline;
    timeline.MayServe(kMix, kFirst);
    std::vector<std::unique_ptr<Decoder>> decoders;
    std::vector<std::unique_ptr<SmallTasks>> clients;
    for (int i = 0; i < absl::GetFlag(FLAGS_decoders); ++i) {
      decoders.push_back(std::make_unique<Decoder>(
          Decoder::World{&daemon_, &model_, graph_id_, &timeline, &findings}, NextSeed()));
    }
    for (int i = 0; i < absl::GetFlag(FLAGS_small_task_clients); ++i) {
      clients.push_back(std::make_unique<SmallTasks>(
          SmallTasks::World{&daemon_, &timeline, &findings}, NextSeed()));
    }
    slowest_lone_task_ = {};
    absl::Notification stop;
    std::thread switcher([&] { SwitchUntil(stop, timeline); });
    std::thread killer([&, seed = NextSeed()] { KillUntil(stop, timeline, seconds, seed); });
    const auto done = [&] {
      uint64_t total = 0;
      for (const auto& client : clients) total += client->done();
      return total;
    };
    const absl::Time begin = absl::Now();
    while (absl::Now() - begin < absl::Seconds(seconds) || done() < small_tasks) {
      absl::SleepFor(std::min(kReportInterval, absl::Seconds(seconds) / 4));
      const auto counts = findings.counts();
      const auto steps = counts.find("steps");
      std::printf("%s: %llu steps, %llu small tasks, %llu violations\n",
                  absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Seconds(1))).c_str(),
                  static_cast<unsigned long long>(steps == counts.end() ? 0 : steps->second),
                  static_cast<unsigned long long>(done()),
                  static_cast<unsigned long long>(findings.violations()));
      std::fflush(stdout);
    }
    stop.Notify();
    killer.join();
    switcher.join();
    for (const auto& decoder : decoders) decoder->Finish();
    for (const auto& client : clients) {
      client->Finish();
      slowest_lone_task_ = std::max(slowest_lone_task_, client->slowest_lone_task());
    }
  }

  // Of the last Run.
  std::chrono::milliseconds slowest_lone_task() const { return slowest_lone_task_; }

  void End() {
    const auto client = Connect();
    client::Operators operators(*client);
    const auto unloaded = client->UnloadGraph(graph_id_);
    if (!unloaded.ok()) Failed("unloading the graph", unloaded.status());
    const auto removed = operators.Remove(ExactModel::kOperator);
    if (!removed.ok()) Failed("removing the operator", removed.status());
    for (const uint64_t weight : weights_) {
      const absl::Status freed = client->Free(weight);
      if (!freed.ok()) Failed("freeing a weight", freed);
    }
  }

  void CheckNothingIsUsed() {
    for (const std::string figure :
         {"resident_graph_sessions", "resident_graph_session_bytes", "resident_graphs",
          "resident_graph_bytes", "resident_host_memory_used_bytes{purpose=\"requests\"}",
          "resident_host_memory_used_bytes{purpose=\"batches\"}",
          "resident_host_memory_used_bytes{purpose=\"answers\"}",
          "resident_host_memory_used_bytes{purpose=\"downloads\"}",
          "resident_host_memory_used_bytes{purpose=\"durable_copies\"}"}) {
      if (!testing::Eventually([&] { return daemon_.Figure(figure) == 0; })) {
        findings.Violation(absl::StrCat(figure, " is ", daemon_.Figure(figure), " at the end"));
      }
    }
    const v1::DeviceStatus device = daemon_.Device();
    if (device.buffers() != 0 || device.memory_used_bytes() != 0) {
      findings.Violation(absl::StrCat("at the end the device has ", device.buffers(),
                                      " buffers and uses ", device.memory_used_bytes(), " bytes"));
    }
  }

  Findings findings;

 private:
  std::unique_ptr<client::Client> Connect() const {
    client::Options options;
    options.client_name = "graph soak";
    options.call_timeout = absl::Minutes(5);
    return *client::Client::Connect(daemon_.address(), options);
  }
  uint64_t NextSeed() { return absl::GetFlag(FLAGS_seed) * 1'000'003 + ++seeds_; }
  bool Failed(const std::string& what, const absl::Status& status) {
    findings.Violation(absl::StrCat(what, " failed: ", status.ToString()));
    return false;
  }

  // Activates the second version and rolls it back, in turns; ends with the first one.
  void SwitchUntil(const absl::Notification& stop, Timeline& timeline) {
    const auto client = Connect();
    client::Operators operators(*client);
    client::ChangeOptions second;
    second.version = kSecond;
    second.bake.set_action(v1::BakeOptions::ACTION_OFF);
    uint32_t active = kFirst;
    while (!stop.WaitForNotificationWithTimeout(kSwitchInterval) || active != kFirst) {
      const uint32_t next = active == kFirst ? kSecond : kFirst;
      timeline.MayServe(kMix, next);
      absl::Status status;
      if (next == kSecond) {
        status = operators.Activate(ExactModel::kOperator, second).status();
        findings.Count("activations");
      } else {
        status = operators.Rollback(ExactModel::kOperator).status();
        findings.Count("rollbacks");
      }
      if (!status.ok()) {
        Failed("a switch", status);
        return;
      }
      timeline.NoLongerServes(kMix, active);
      active = next;
    }
  }

  void KillUntil(const absl::Notification& stop, Timeline& timeline, double seconds,
                 uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto client = Connect();
    const soak::World world{.daemon = &daemon_,
                            .client = client.get(),
                            .timeline = &timeline,
                            .keys = nullptr,
                            .findings = &findings,
                            .events = nullptr,
                            .fault_mutex = nullptr};
    const double mean = absl::GetFlag(FLAGS_kill_seconds);
    // A short soak has a kill, too.
    double delay = std::min(mean, seconds / 2);
    while (!stop.WaitForNotificationWithTimeout(absl::Seconds(delay))) {
      const pid_t engine = daemon_.engine_pid();
      timeline.BeginDisturbance();
      kill(engine, SIGKILL);
      if (!WaitForEngine(world, engine)) findings.Violation("no new engine after a kill");
      timeline.EndDisturbance();
      findings.Count("engines killed");
      delay = mean * std::uniform_real_distribution<double>(0.5, 1.5)(random);
    }
  }

  const testing::Daemon& daemon_;
  const ExactModel model_;
  std::string graph_id_;
  std::vector<uint64_t> weights_;
  uint64_t seeds_ = 0;
  std::chrono::milliseconds slowest_lone_task_{0};
};

// Hostile clients in another process, as long as this exists.
class Attacks {
 public:
  Attacks(const testing::Daemon& daemon, Findings& findings) : findings_(findings) {
    const std::string program = absl::GetFlag(FLAGS_attacks);
    if (program.empty()) return;
    auto child = ChildProcess::Spawn({.program = program,
                                      .arguments = {program, daemon.address()},
                                      .environment = PickEnvironment({"*"}),
                                      .fds = {}});
    if (child.ok()) {
      child_ = *std::move(child);
    } else {
      findings_.Violation("no hostile clients: " + child.status().ToString());
    }
  }
  ~Attacks() {
    if (child_ == nullptr) return;
    child_->Kill(SIGTERM);
    const std::optional<ChildExit> exit = child_->Wait(std::chrono::minutes(2));
    if (!exit.has_value() || exit->status != 0) {
      findings_.Violation("the hostile clients " +
                          (exit.has_value() ? exit->ToString() : "did not end"));
    }
  }

 private:
  Findings& findings_;
  std::unique_ptr<ChildProcess> child_;
};

int Main() {
  std::vector<std::string> flags;
  if (!absl::GetFlag(FLAGS_attacks).empty()) {
    flags = {"--max_client_host_mib=128", "--max_host_mib=512"};
  }
  const testing::Daemon daemon(flags);
  Soak soak(daemon);
  Usage before;
  Usage after;
  absl::Duration returned;
  if (soak.Begin()) {
    // The first run creates everything that the daemon creates only once.
    soak.Run(kWarmUpSeconds, 0);
    if (std::string why; !AwaitIdleCompilers(daemon, &why)) soak.findings.Violation(why);
    const testing::Baseline baseline(daemon);
    before = MeasureUsage(daemon);
    {
      const Attacks attacks(daemon, soak.findings);
      soak.Run(absl::GetFlag(FLAGS_seconds), absl::GetFlag(FLAGS_small_tasks));
    }
    const absl::Time attacked = absl::Now();
    testing::ExpectNothingLeft(daemon, baseline);
    if (!AwaitUsage(daemon, before, &after)) {
      soak.findings.Violation(absl::StrCat("the daemon used ", Text(before), " and now uses ",
                                           Text(after),
                                           "; new descriptors: ", NewDescriptors(before, after)));
    }
    returned = absl::Now() - attacked;
    soak.End();
    soak.CheckNothingIsUsed();
  }
  // The helpers of the tests report with EXPECT.
  if (::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) {
    soak.findings.Violation("an expectation failed; see above");
  }
  return Report(daemon, soak.findings,
                {{"before", Text(before)},
                 {"after", Text(after)},
                 {"seconds until then", absl::ToDoubleSeconds(returned)},
                 {"slowest lone task, ms", soak.slowest_lone_task().count()}},
                absl::GetFlag(FLAGS_out));
}

}  // namespace
}  // namespace resident::soak

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return resident::soak::Main();
}
