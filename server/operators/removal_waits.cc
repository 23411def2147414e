#include "server/operators/removal_waits.h"

#include <sys/prctl.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/operators/errors.h"

namespace resident {
namespace {

// Interval of the checks of deadlines, of callers that have gone, and of all removals except the
// oldest.
constexpr absl::Duration kPollInterval = absl::Milliseconds(5);

using Drained = std::vector<std::shared_ptr<absl::Notification>>;

// The first notification that is not yet set; null: all are set.
std::shared_ptr<absl::Notification> FindNext(const Drained& drained) {
  const auto next = std::find_if(drained.begin(), drained.end(), [](const auto& last_task) {
    return !last_task->HasBeenNotified();
  });
  return next == drained.end() ? nullptr : *next;
}

// The outcome of the wait if it has ended; otherwise nullopt.
std::optional<absl::Status> FindOutcome(const RemovalWaits::Waiting& waiting, bool stopping) {
  if (FindNext(waiting.drained) == nullptr) return absl::OkStatus();
  if (waiting.cancelled()) return errors::Cancelled();
  if (Clock::now() >= waiting.deadline) return errors::RemovedButRunning(waiting.name);
  if (stopping) return errors::Draining();
  return std::nullopt;
}

}  // namespace

RemovalWaits::RemovalWaits() : worker_([this] { Work(); }) {}

RemovalWaits::~RemovalWaits() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  worker_.join();
}

void RemovalWaits::Add(Waiting waiting) {
  absl::MutexLock lock(&mu_);
  waiting_.push_back(std::move(waiting));
}

void RemovalWaits::Work() {
  prctl(PR_SET_NAME, "resident-remove");
  const auto has_work_or_stops = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !waiting_.empty();
  };
  while (true) {
    std::vector<std::pair<Waiting, absl::Status>> ended;
    std::shared_ptr<absl::Notification> oldest;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work_or_stops));
      for (auto it = waiting_.begin(); it != waiting_.end();) {
        auto end = FindOutcome(*it, stopping_);
        if (end.has_value()) ended.emplace_back(std::move(*it), *std::move(end));
        it = end.has_value() ? waiting_.erase(it) : std::next(it);
      }
      if (!waiting_.empty()) oldest = FindNext(waiting_.front().drained);
      if (ended.empty() && waiting_.empty()) return;  // `stopping_` is set.
    }
    for (const auto& [waiting, status] : ended) waiting.done(status);
    if (oldest != nullptr) oldest->WaitForNotificationWithTimeout(kPollInterval);
  }
}

}  // namespace resident
