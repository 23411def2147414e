// FakeOperatorManager: an OperatorManager for tests of its callers. It installs nothing: an
// install reports the states of the script, and every call is recorded.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_FAKE_OPERATOR_MANAGER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_FAKE_OPERATOR_MANAGER_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/operators/install/operator_manager.h"

namespace resident {

class FakeOperatorManager final : public OperatorManager {
 public:
  // What Install reports: `states`, then `result`. With `until_withdrawn` it waits after
  // the states until the install is withdrawn.
  struct Script {
    std::vector<InstallProgress> states;
    absl::Status result;
    bool until_withdrawn = false;
  };
  void set_script(Script script) {
    absl::MutexLock lock(&mu_);
    script_ = std::move(script);
  }
  // Status that the other calls return.
  void set_status(absl::Status status) {
    absl::MutexLock lock(&mu_);
    status_ = std::move(status);
  }
  // What plans() returns.
  void set_plans(PlanTable plans) {
    absl::MutexLock lock(&mu_);
    plans_ = std::move(plans);
  }
  // Forced activations wait for this notification.
  void set_round(std::shared_ptr<absl::Notification> round) {
    absl::MutexLock lock(&mu_);
    round_ = std::move(round);
  }
  // Notifications that Remove returns.
  void set_drained(std::vector<std::shared_ptr<absl::Notification>> drained) {
    absl::MutexLock lock(&mu_);
    drained_ = std::move(drained);
  }
  // Adds an event with the next revision; keeps the last `keep`.
  void AddEvent(OperatorEvent event, size_t keep = 1000) {
    {
      absl::MutexLock lock(&mu_);
      event.revision = ++revision_;
      events_.push_back(std::move(event));
      while (events_.size() > keep) events_.pop_front();
    }
    // Subscribers are called under wake_mu_, so that none is called after its Unsubscribe.
    absl::MutexLock lock(&wake_mu_);
    for (const auto& [token, wake] : wakes_) wake();
  }

  std::vector<InstallRequest> installs() const {
    absl::MutexLock lock(&mu_);
    return installs_;
  }
  std::vector<SwitchRequest> switches() const {
    absl::MutexLock lock(&mu_);
    return switches_;
  }
  std::vector<PromoteRequest> promotions() const {
    absl::MutexLock lock(&mu_);
    return promotions_;
  }
  std::vector<PlanClaim> claims() const {
    absl::MutexLock lock(&mu_);
    return claims_;
  }
  // Number of forced activations so far; some may still be waiting.
  size_t forced() const {
    absl::MutexLock lock(&mu_);
    return forced_;
  }
  size_t removals() const {
    absl::MutexLock lock(&mu_);
    return removals_;
  }
  size_t subscribers() const {
    absl::MutexLock lock(&wake_mu_);
    return wakes_.size();
  }

  absl::Status Install(const InstallRequest& request,
                       const std::function<void(const InstallProgress&)>& progress,
                       const std::function<bool()>& withdrawn) override {
    Script script;
    {
      absl::MutexLock lock(&mu_);
      installs_.push_back(request);
      script = script_;
    }
    for (const InstallProgress& state : script.states) progress(state);
    while (script.until_withdrawn && !withdrawn()) absl::SleepFor(absl::Milliseconds(1));
    return script.until_withdrawn ? absl::CancelledError("withdrawn") : script.result;
  }

  absl::StatusOr<SwitchResult> Activate(const SwitchRequest& request) override {
    if (request.force) {
      std::shared_ptr<absl::Notification> round;
      {
        absl::MutexLock lock(&mu_);
        ++forced_;
        round = round_;
      }
      if (round != nullptr) round->WaitForNotification();
    }
    return Switch(request);
  }
  absl::StatusOr<SwitchResult> Rollback(const SwitchRequest& request) override {
    return Switch(request);
  }
  absl::StatusOr<uint64_t> Promote(const PromoteRequest& request) override {
    absl::MutexLock lock(&mu_);
    promotions_.push_back(request);
    if (!status_.ok()) return status_;
    return ++revision_;
  }
  absl::StatusOr<Removal> Remove(const std::string&, std::optional<uint64_t>, const std::string&,
                                 const ChangeContext&) override {
    absl::MutexLock lock(&mu_);
    if (!status_.ok()) return status_;
    ++removals_;
    return Removal{++revision_, drained_};
  }
  absl::StatusOr<ClaimedPlan> Claim(const PlanClaim& claim) override {
    absl::MutexLock lock(&mu_);
    claims_.push_back(claim);
    if (!status_.ok()) return status_;
    ClaimedPlan claimed;
    claimed.lease = 1;
    for (const std::string& name : claim.names) claimed.record.before.emplace_back(name, "");
    return claimed;
  }
  absl::Status Release(const std::string&, uint64_t, std::optional<PlanState>) override {
    absl::MutexLock lock(&mu_);
    return status_;
  }
  PlanTable plans() const override {
    absl::MutexLock lock(&mu_);
    return plans_;
  }
  absl::Status RecordFolder(const FolderRecord&) override {
    absl::MutexLock lock(&mu_);
    return status_;
  }
  void ListFolder(const std::string&, std::map<std::string, std::string>) override {}

  absl::StatusOr<std::vector<OperatorEvent>> EventsAfter(uint64_t after,
                                                         size_t max_events) const override {
    absl::MutexLock lock(&mu_);
    if (!events_.empty() && after + 1 < events_.front().revision) {
      return absl::OutOfRangeError(
          "older events are no longer kept. Fix: List, and watch from there");
    }
    std::vector<OperatorEvent> found;
    for (const OperatorEvent& event : events_) {
      if (event.revision > after && found.size() < max_events) found.push_back(event);
    }
    return found;
  }
  std::vector<OperatorEvent> EventsBefore(uint64_t before, const std::string& name,
                                          size_t max_events) const override {
    absl::MutexLock lock(&mu_);
    std::vector<OperatorEvent> found;
    for (auto event = events_.rbegin(); event != events_.rend() && found.size() < max_events;
         ++event) {
      if (before != 0 && event->revision >= before) continue;
      if (name.empty() || event->operator_name == name) found.push_back(*event);
    }
    return found;
  }
  uint64_t revision() const override {
    absl::MutexLock lock(&mu_);
    return revision_;
  }
  uint64_t Subscribe(std::function<void()> wake) override {
    absl::MutexLock lock(&wake_mu_);
    wakes_[++last_token_] = std::move(wake);
    return last_token_;
  }
  void Unsubscribe(uint64_t token) override {
    absl::MutexLock lock(&wake_mu_);
    wakes_.erase(token);
  }
  uint64_t OperatorRevision(const std::string&) const override { return revision(); }
  TrialCounters trial_counters(const std::string&) const override { return {}; }
  bool baking(const std::string&) const override { return false; }
  void RecordShadow(const OperatorVersion&, uint64_t, uint64_t) override {}

 private:
  absl::StatusOr<SwitchResult> Switch(const SwitchRequest& request) {
    absl::MutexLock lock(&mu_);
    switches_.push_back(request);
    if (!status_.ok()) return status_;
    return SwitchResult{2, 1, ++revision_, std::chrono::nanoseconds(40)};
  }

  mutable absl::Mutex mu_;
  Script script_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  uint64_t revision_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<OperatorEvent> events_ ABSL_GUARDED_BY(mu_);
  std::vector<InstallRequest> installs_ ABSL_GUARDED_BY(mu_);
  std::vector<SwitchRequest> switches_ ABSL_GUARDED_BY(mu_);
  std::vector<PromoteRequest> promotions_ ABSL_GUARDED_BY(mu_);
  std::vector<PlanClaim> claims_ ABSL_GUARDED_BY(mu_);
  PlanTable plans_ ABSL_GUARDED_BY(mu_);

  std::shared_ptr<absl::Notification> round_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<absl::Notification>> drained_ ABSL_GUARDED_BY(mu_);
  size_t forced_ ABSL_GUARDED_BY(mu_) = 0;
  size_t removals_ ABSL_GUARDED_BY(mu_) = 0;

  // Held while subscribers are called, so that Unsubscribe waits for these calls.
  mutable absl::Mutex wake_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  uint64_t last_token_ ABSL_GUARDED_BY(wake_mu_) = 0;
  std::map<uint64_t, std::function<void()>> wakes_ ABSL_GUARDED_BY(wake_mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_FAKE_OPERATOR_MANAGER_H_
