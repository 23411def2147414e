// BakeWatcher: evaluates the versions of operators, or of models, that are in their bake time, and
// reports which have regressed. It knows neither of the two: its owner gives it the counters.
//
// One version of a name is watched at a time: a new Watch of the same name replaces the one before.
//
// Thread safety: all members may be called from any thread. `regressed` is called from the
// watcher's own thread, without locks.
#ifndef RESIDENT_RUNTIME_OPERATORS_TRIAL_BAKE_WATCHER_H_
#define RESIDENT_RUNTIME_OPERATORS_TRIAL_BAKE_WATCHER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident {

enum class BakeAction : uint8_t { kDefault = 0, kOff = 1, kWarn = 2, kRollBack = 3 };

struct BakeOptions {
  BakeAction action = BakeAction::kDefault;
  // 0, here and below: the daemon's default.
  std::chrono::milliseconds time{0};
  double max_error_rate = 0;
  double max_latency_ratio = 0;
  double max_mismatch_rate = 0;
  uint64_t min_tasks = 0;
};

// Bake: compares a version that has begun to serve with the version before it.
//
// Pure logic: the owner passes it counters periodically. It returns a final verdict once;
// after that the owner drops it.
//
//   kWait ──▶ kPassed      the time is over, and no threshold was exceeded
//      └────▶ kRegressed   a threshold was exceeded: `reason` has it, with the figures
//
// Thread safety: an object belongs to one thread.

// What a version has served since the bake began.
struct BakeCounters {
  uint64_t tasks = 0;
  uint64_t failed = 0;
  uint64_t p99_ns = 0;  // Device time; 0: unknown.
  uint64_t shadow_tasks = 0;
  uint64_t shadow_mismatches = 0;
};

// `requested`, with zeros replaced by the daemon's `defaults`.
BakeOptions WithDefaults(const BakeOptions& requested, const BakeOptions& defaults);

class Bake {
 public:
  enum class Verdict : uint8_t { kWait, kPassed, kRegressed };

  // `options` must not have zeros (WithDefaults). `before_p99_ns`: the p99 of the version
  // before, while it served; 0: unknown, and latency is not compared.
  Bake(const BakeOptions& options, uint64_t before_p99_ns,
       std::chrono::steady_clock::time_point now)
      : options_(options), before_p99_ns_(before_p99_ns), ends_(now + options.time) {}

  Verdict Evaluate(const BakeCounters& counters, std::chrono::steady_clock::time_point now);
  const std::string& reason() const { return reason_; }
  BakeAction action() const { return options_.action; }

 private:
  const BakeOptions options_;
  const uint64_t before_p99_ns_;
  const std::chrono::steady_clock::time_point ends_;
  std::string reason_;
};

class BakeWatcher {
 public:
  // Returns what the version has served so far.
  using Counters = std::function<BakeCounters()>;
  struct Regression {
    std::string name;
    uint32_t version = 0;
    uint64_t revision = 0;  // The operator's, when the bake began.
    BakeAction action = BakeAction::kWarn;
    std::string reason;
  };

  explicit BakeWatcher(std::function<void(const Regression&)> regressed);
  ~BakeWatcher();

  // `options` must not have zeros. kOff: only stops watching this operator.
  void Watch(const std::string& name, uint32_t version, uint64_t revision,
             const BakeOptions& options, uint64_t before_p99_ns, Counters counters);
  // Stops watching this operator, if its bake began at that revision or before.
  void Forget(const std::string& name, uint64_t revision = UINT64_MAX);
  bool Watches(const std::string& name) const;

 private:
  struct Watched {
    uint32_t version;
    uint64_t revision;
    Bake bake;
    Counters counters;
  };

  void Work();

  const std::function<void(const Regression&)> regressed_;
  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Watched> watched_ ABSL_GUARDED_BY(mu_);
  std::thread worker_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_TRIAL_BAKE_WATCHER_H_
