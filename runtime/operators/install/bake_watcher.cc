#include "runtime/operators/install/bake_watcher.h"

#include <sys/prctl.h>

#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace resident {
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
