// The swap soak. Operators are installed, activated, rolled back, put on trial, removed and
// broken, for hours if so configured, while clients send numbered requests at full speed
// and the engine is killed at random times. The soak checks that every request was answered
// once, that each answer is right for the version in the answer, that versions changed only
// as commanded, and that the daemon's memory, descriptors and processes finally return to
// their initial values.
//
//   RESIDENTD=bazel-bin/server/residentd bazel-bin/tests/soak/swap_soak --rounds=2
//   ... --rounds=1000 --clients=8 --operators=8          long manual run
//   RESIDENT_TEST_DEVICES=0 ... --generations=200        on a GPU
//
// A round is one step of every kind (changes.h) for every operator; the operators run in
// parallel. Prints the counts, then `0 violations` with exit status 0, or the violations.
#include <signal.h>
#include <stdlib.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/soak/changes.h"
#include "tests/soak/report.h"
#include "tests/soak/traffic.h"
#include "tests/soak/usage.h"
#include "tests/support/temp_folder.h"

ABSL_FLAG(int, rounds, 2, "rounds");
ABSL_FLAG(uint64_t, generations, 0,
          "continue with more rounds until the device reaches this generation");
ABSL_FLAG(int, clients, 4, "clients that send at full speed");
ABSL_FLAG(int, operators, 3, "operators that change, each in a separate thread");
ABSL_FLAG(int, kills, 1, "number of times that the engine is killed in each round");
ABSL_FLAG(bool, faults, true, "also activate versions that fail in production");
ABSL_FLAG(uint64_t, seed, 1, "seed of all random choices");
ABSL_FLAG(std::string, out, "", "file for the summary, as JSON");

namespace resident::soak {
namespace {

constexpr int kMaxRounds = 100'000;

// Collects all events from the start.
class EventLog {
 public:
  explicit EventLog(client::Operators& operators) : watcher_(*operators.Watch(0)) {
    thread_ = std::thread([this] {
      v1::OperatorEvent event;
      while (watcher_->Next(&event)) {
        absl::MutexLock lock(&mu_);
        events_.push_back(event);
      }
    });
  }
  ~EventLog() {
    watcher_->Cancel();
    thread_.join();
  }
  uint64_t last_revision() const {
    absl::MutexLock lock(&mu_);
    return events_.empty() ? 0 : events_.back().revision();
  }
  std::vector<v1::OperatorEvent> events() const {
    absl::MutexLock lock(&mu_);
    return events_;
  }

 private:
  const std::unique_ptr<client::Watcher> watcher_;
  mutable absl::Mutex mu_;
  std::vector<v1::OperatorEvent> events_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

class Soak {
 public:
  explicit Soak(const testing::Daemon& daemon)
      : daemon_(daemon), client_(*client::Client::Connect(daemon.address(), ClientOptions())) {}

  // Starts without operators, runs the rounds, and removes all operators. `kills` is per
  // round.
  void Run(int rounds, uint64_t generations, int kills, bool faults) {
    client::Operators operators(*client_);
    EventLog log(operators);
    ExpectedEvents events;
    Timeline timeline;
    const World world{&daemon_,  client_.get(), &timeline,    &keys_,
                      &findings, &events,       &fault_mutex_};
    std::vector<std::unique_ptr<Changes>> changes;
    const int count = absl::GetFlag(FLAGS_operators);
    for (int op = 0; op < count; ++op) {
      changes.push_back(std::make_unique<Changes>(world, op, absl::GetFlag(FLAGS_seed) + runs_));
    }
    ++runs_;
    Together(changes, [](Changes& one) { one.Begin(); });
    std::vector<std::unique_ptr<Traffic>> clients;
    for (int i = 0; i < absl::GetFlag(FLAGS_clients); ++i) {
      clients.push_back(std::make_unique<Traffic>(
          daemon_.Connect(), Traffic::World{count, &timeline, &keys_, &findings}));
    }
    for (int round = 0; round < kMaxRounds && (round < rounds || Generation() < generations);
         ++round) {
      std::thread killer([&] { Kill(world, kills, round); });
      Together(changes, [&](Changes& one) { one.Round(faults); });
      killer.join();
      uint64_t answered = 0;
      for (const auto& client : clients) {
        client->Check();
        answered += client->answered();
      }
      std::printf("round %d: generation %llu, %llu answers, %llu violations\n", round + 1,
                  static_cast<unsigned long long>(Generation()),
                  static_cast<unsigned long long>(answered),
                  static_cast<unsigned long long>(findings.violations()));
      std::fflush(stdout);
    }
    generations_ = Generation();
    for (const auto& client : clients) client->Finish();
    Together(changes, [](Changes& one) { one.End(); });
    if (!testing::Eventually([&] { return log.last_revision() >= events.last_revision(); })) {
      findings.Violation("the last events were not reported");
    }
    events.Check(log.events(), findings);
  }

  uint64_t generations() const { return generations_; }

  Findings findings;

 private:
  static client::Options ClientOptions() {
    client::Options options;
    options.client_name = "swap soak";
    options.call_timeout = absl::Minutes(5);
    return options;
  }

  template <typename Step>
  static void Together(std::vector<std::unique_ptr<Changes>>& changes, const Step& step) {
    std::vector<std::thread> threads;
    for (const auto& one : changes) threads.emplace_back([&one, &step] { step(*one); });
    for (std::thread& thread : threads) thread.join();
  }

  uint64_t Generation() const { return daemon_.Device().generation(); }

  // Kills the engine at random times.
  void Kill(const World& world, int kills, int round) {
    std::mt19937_64 random(absl::GetFlag(FLAGS_seed) * 31 + static_cast<uint64_t>(round));
    for (int i = 0; i < kills; ++i) {
      absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random() % 1000)));
      const pid_t engine = daemon_.engine_pid();
      if (engine == 0) continue;
      world.timeline->BeginDisturbance();
      kill(engine, SIGKILL);
      if (!WaitForEngine(world, engine)) findings.Violation("no new engine after a kill");
      world.timeline->EndDisturbance();
      findings.Count("engines killed");
    }
  }

  const testing::Daemon& daemon_;
  const std::unique_ptr<client::Client> client_;
  Keys keys_;
  std::shared_mutex fault_mutex_;
  uint64_t runs_ = 0;
  uint64_t generations_ = 0;
};

int Main() {
  const testing::TempFolder state("swap-soak");
  const testing::Daemon daemon({"--task_time_limit=5s", "--state_dir=" + state.path()});
  Soak soak(daemon);
  // The first run creates everything that the daemon creates only once.
  soak.Run(/*rounds=*/1, 0, /*kills=*/1, absl::GetFlag(FLAGS_faults));
  if (std::string why; !AwaitIdleCompilers(daemon, &why)) soak.findings.Violation(why);
  const Usage before = MeasureUsage(daemon);
  soak.Run(absl::GetFlag(FLAGS_rounds), absl::GetFlag(FLAGS_generations),
           absl::GetFlag(FLAGS_kills), absl::GetFlag(FLAGS_faults));
  Usage after;
  if (!AwaitUsage(daemon, before, &after)) {
    soak.findings.Violation(
        absl::StrCat("the daemon used ", Text(before), " and now uses ", Text(after)));
  }
  const auto counts = soak.findings.counts();
  const auto count = [&](const char* what) {
    const auto found = counts.find(what);
    return found == counts.end() ? 0 : found->second;
  };
  if (count("requests sent") != count("answers")) {
    soak.findings.Violation("the numbers of requests and answers differ");
  }
  return Report(
      daemon, soak.findings,
      {{"generations", soak.generations()}, {"before", Text(before)}, {"after", Text(after)}},
      absl::GetFlag(FLAGS_out));
}

}  // namespace
}  // namespace resident::soak

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return resident::soak::Main();
}
