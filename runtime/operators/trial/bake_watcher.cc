#include "runtime/operators/trial/bake_watcher.h"

#include <sys/prctl.h>

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace resident {
namespace {

double Share(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

}  // namespace

BakeOptions WithDefaults(const BakeOptions& requested, const BakeOptions& defaults) {
  BakeOptions options = requested;
  if (options.action == BakeAction::kDefault) options.action = defaults.action;
  if (options.time.count() == 0) options.time = defaults.time;
  if (options.max_error_rate == 0) options.max_error_rate = defaults.max_error_rate;
  if (options.max_latency_ratio == 0) options.max_latency_ratio = defaults.max_latency_ratio;
  if (options.max_mismatch_rate == 0) options.max_mismatch_rate = defaults.max_mismatch_rate;
  if (options.min_tasks == 0) options.min_tasks = defaults.min_tasks;
  return options;
}

Bake::Verdict Bake::Evaluate(const BakeCounters& counters,
                             std::chrono::steady_clock::time_point now) {
  if (counters.tasks >= options_.min_tasks) {
    if (Share(counters.failed, counters.tasks) > options_.max_error_rate) {
      reason_ = absl::StrFormat("%d of %d tasks did not end OK; the threshold is %g",
                                counters.failed, counters.tasks, options_.max_error_rate);
      return Verdict::kRegressed;
    }
    if (before_p99_ns_ > 0 &&
        static_cast<double>(counters.p99_ns) >
            options_.max_latency_ratio * static_cast<double>(before_p99_ns_)) {
      reason_ = absl::StrFormat(
          "p99 of the device time is %d ns, that of the version before was %d ns; the threshold is "
          "%g times",
          counters.p99_ns, before_p99_ns_, options_.max_latency_ratio);
      return Verdict::kRegressed;
    }
  }
  if (counters.shadow_tasks >= options_.min_tasks &&
      Share(counters.shadow_mismatches, counters.shadow_tasks) > options_.max_mismatch_rate) {
    reason_ = absl::StrFormat(
        "the outputs of %d of %d shadowed tasks differ from the active version's; the threshold is "
        "%g",
        counters.shadow_mismatches, counters.shadow_tasks, options_.max_mismatch_rate);
    return Verdict::kRegressed;
  }
  return now >= ends_ ? Verdict::kPassed : Verdict::kWait;
}

namespace {

// Interval of evaluations: a regressed version serves at most this much longer.
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

}  // namespace

BakeWatcher::BakeWatcher(std::function<void(const Regression&)> regressed)
    : regressed_(std::move(regressed)), worker_([this] { Work(); }) {}

BakeWatcher::~BakeWatcher() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  worker_.join();
}

void BakeWatcher::Watch(const std::string& name, uint32_t version, uint64_t revision,
                        const BakeOptions& options, uint64_t before_p99_ns, Counters counters) {
  absl::MutexLock lock(&mu_);
  // A later change of the operator may have been registered before this one.
  const auto before = watched_.find(name);
  if (before != watched_.end() && before->second.revision > revision) return;
  watched_.erase(name);
  if (options.action == BakeAction::kOff) return;
  watched_.emplace(name, Watched{version, revision,
                                 Bake(options, before_p99_ns, std::chrono::steady_clock::now()),
                                 std::move(counters)});
}

void BakeWatcher::Forget(const std::string& name, uint64_t revision) {
  absl::MutexLock lock(&mu_);
  const auto watched = watched_.find(name);
  if (watched != watched_.end() && watched->second.revision <= revision) watched_.erase(watched);
}

bool BakeWatcher::Watches(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  return watched_.contains(name);
}

void BakeWatcher::Work() {
  prctl(PR_SET_NAME, "resident-bake");
  const auto busy = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !watched_.empty();
  };
  const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; };
  while (true) {
    std::vector<Regression> regressions;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&busy));
      if (mu_.AwaitWithTimeout(absl::Condition(&stopping), kPollInterval)) return;
      const auto now = std::chrono::steady_clock::now();
      for (auto it = watched_.begin(); it != watched_.end();) {
        Watched& watched = it->second;
        const Bake::Verdict verdict = watched.bake.Evaluate(watched.counters(), now);
        if (verdict == Bake::Verdict::kRegressed) {
          regressions.push_back({it->first, watched.version, watched.revision,
                                 watched.bake.action(), watched.bake.reason()});
        }
        it = verdict == Bake::Verdict::kWait ? std::next(it) : watched_.erase(it);
      }
    }
    for (const Regression& regression : regressions) regressed_(regression);
  }
}

}  // namespace resident
