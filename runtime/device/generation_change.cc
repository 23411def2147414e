#include "runtime/device/generation_change.h"

#include <immintrin.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// How long the engine may take to report that it is ready; usually the duration of one call.
constexpr milliseconds kArmLimit{5'000};
// How long to spin for that before polling.
constexpr milliseconds kArmSpin{2};
// How long the kernel may take from the marker, with nothing in flight, until it runs again.
constexpr milliseconds kKernelLimit{10'000};
// How long the engine may take to respond after the end of the change; usually milliseconds.
constexpr milliseconds kAnswerLimit{5'000};
// Interval of checks of the running tasks while the change waits.
constexpr milliseconds kPollInterval{1};
// Spins between checks of the clock and of the process.
constexpr int kSpinsBetweenChecks = 256;

}  // namespace

GenerationChange::GenerationChange(EngineProcess& engine, DeviceQueue& queue, uint64_t change,
                                   uint64_t generation, milliseconds park_deadline)
    : queue_(queue),
      signals_(engine.region()->control()),
      change_(change),
      generation_(generation),
      park_deadline_(park_deadline),
      began_(Clock::now()),
      next_step_(began_),
      next_hold_(began_),
      phase_began_(began_),
      // The front end withdraws a change that takes too long; this limit is for the case that the
      // front end has ended.
      call_(engine.client()->StartSwitch(change, /*launch=*/true,
                                         park_deadline + kArmLimit + kKernelLimit, nullptr)) {}

GenerationChange::~GenerationChange() {
  if (phase_ == Phase::kHolding) EndHold();
  // A published marker cannot be withdrawn.
  if (phase_ == Phase::kWaiting || phase_ == Phase::kHolding) signals_.Withdraw(change_);
}

GenerationChange::Progress GenerationChange::End(Progress how, absl::Status result) {
  phase_ = Phase::kEnded;
  result_ = std::move(result);
  return end_ = how;
}

GenerationChange::Progress GenerationChange::Yield() {
  next_step_ = Clock::now();
  return Progress::kWaiting;
}

void GenerationChange::Enter(Phase phase) {
  phase_ = phase;
  phase_began_ = Clock::now();
}

GenerationChange::Progress GenerationChange::Withdraw(absl::Status result) {
  signals_.Withdraw(change_);
  result_ = std::move(result);
  Enter(Phase::kWithdrawing);
  return StepWithdrawing();
}

GenerationChange::Progress GenerationChange::Step() {
  switch (phase_) {
    case Phase::kWaiting:
      return StepWaiting();
    case Phase::kHolding:
      return StepHolding();
    case Phase::kParked:
      return StepParked();
    case Phase::kAnswering:
      return StepAnswering();
    case Phase::kWithdrawing:
      return StepWithdrawing();
    case Phase::kEnded:
      break;
  }
  return end_;
}

GenerationChange::Progress GenerationChange::StepWithdrawing() {
  if (call_->answered()) return End(Progress::kDone, std::move(result_));
  next_step_ = Clock::now() + kPollInterval;
  if (next_step_ - phase_began_ < kAnswerLimit) return Progress::kWaiting;
  return End(Progress::kLost, absl::DeadlineExceededError(absl::StrCat(
                                  "the engine did not answer within ", kAnswerLimit.count(),
                                  " ms of the end of the change to generation ", generation_)));
}

GenerationChange::Progress GenerationChange::StepWaiting() {
  const Clock::time_point spin_until = Clock::now() + kArmSpin;
  while (!signals_.armed(change_) && !call_->answered() && Clock::now() < spin_until) {
    std::this_thread::yield();
  }
  const Clock::time_point now = Clock::now();
  if (call_->answered()) {
    // Nothing was parked: the engine has refused, or has ended, which the supervisor detects.
    const absl::Status answer = call_->answer().status();
    return End(Progress::kDone,
               answer.ok() ? absl::InternalError("the engine ended the change by itself") : answer);
  }
  next_step_ = now + kPollInterval;
  if (!signals_.armed(change_)) {
    if (now - began_ < kArmLimit) return Progress::kWaiting;
    return Withdraw(
        absl::UnavailableError(absl::StrCat("the engine was not ready for generation ", generation_,
                                            " within ", kArmLimit.count(), " ms. Fix: try again")));
  }
  hold_ = std::max<nanoseconds>(kShortestHold, nanoseconds(now - began_) / kHoldShare);
  // The change fails at the deadline, but is tried at least once.
  const bool first = next_hold_ == began_;
  if (!first && now - began_ >= park_deadline_) return Withdraw(DeadlineError());
  if (now < next_hold_) return Progress::kWaiting;
  if (!queue_.FindOverdue(hold_).empty()) {
    next_hold_ = now;  // No hold has failed, so the next one may begin at any time.
    return Progress::kWaiting;
  }
  hold_began_ = Clock::now();
  if (!queue_.Hold().ok()) {
    next_hold_ = hold_began_ + hold_ * kHoldShare;
    return Progress::kWaiting;
  }
  signals_.Hold(change_);
  Enter(Phase::kHolding);
  return StepHolding();
}

void GenerationChange::EndHold() {
  signals_.Hold(0);
  queue_.EndPark();
}

GenerationChange::Progress GenerationChange::StepHolding() {
  const Clock::time_point until = Clock::now() + kLongestStep;
  while (!queue_.ParkIfDrained()) {
    const Clock::time_point now = Clock::now();
    if (now - hold_began_ > hold_) {
      EndHold();
      next_hold_ = Clock::now() + hold_ * kHoldShare;
      next_step_ = now + kPollInterval;
      Enter(Phase::kWaiting);
      return Progress::kWaiting;
    }
    if (now > until) return Yield();
    std::this_thread::yield();  // On a CPU engine the tasks may need this processor.
  }
  Enter(Phase::kParked);
  return StepParked();
}

GenerationChange::Progress GenerationChange::StepParked() {
  const Clock::time_point until = Clock::now() + kLongestStep;
  for (int spins = 0; !signals_.ended(change_); ++spins) {
    if (spins % kSpinsBetweenChecks != 0) {
      _mm_pause();
      continue;
    }
    // The call is answered without an end signal if the engine could not launch or has ended.
    if (call_->answered() && !signals_.ended(change_)) {
      const absl::Status answer = call_->answer().status();
      return End(Progress::kLost,
                 answer.ok() ? absl::InternalError("no kernel was launched") : answer);
    }
    const Clock::time_point now = Clock::now();
    if (now - phase_began_ > kKernelLimit) {
      return End(Progress::kLost, absl::DeadlineExceededError(absl::StrCat(
                                      "the kernel was not launched within ", kKernelLimit.count(),
                                      " ms of being parked for generation ", generation_)));
    }
    if (now > until) return Yield();
    std::this_thread::yield();
  }
  queue_.EndPark();
  pause_ = Clock::now() - hold_began_;
  Enter(Phase::kAnswering);
  return StepAnswering();
}

GenerationChange::Progress GenerationChange::StepAnswering() {
  const Clock::time_point until = Clock::now() + kLongestStep;
  while (!call_->answered() && Clock::now() < until) std::this_thread::yield();
  const bool made = signals_.generation() == generation_;
  if (!call_->answered()) {
    // If the change was made, the signals have the same information as the response.
    if (made) return End(Progress::kDone, absl::OkStatus());
    next_step_ = Clock::now() + kPollInterval;
    if (next_step_ - phase_began_ < kAnswerLimit) return Progress::kWaiting;
    return End(Progress::kDone, absl::UnavailableError("the engine did not report why"));
  }
  const absl::StatusOr<SwitchTimes> answer = call_->answer();
  if (answer.ok()) times_ = *answer;
  return End(Progress::kDone, made ? absl::OkStatus()
                              : answer.ok()
                                  ? absl::InternalError("the engine runs another generation")
                                  : answer.status());
}

absl::Status GenerationChange::DeadlineError() const {
  std::vector<OverdueTask> running = queue_.FindOverdue(kShortestHold);
  std::string which;
  if (!running.empty()) {
    const auto longest = std::max_element(
        running.begin(), running.end(),
        [](const OverdueTask& a, const OverdueTask& b) { return a.running < b.running; });
    which = absl::StrCat("; the longest, in operator slot ", longest->operator_slot,
                         ", has been running for ",
                         std::chrono::duration_cast<milliseconds>(longest->running).count(), " ms");
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "generation ", generation_, " was not loaded: tasks kept running for ",
      park_deadline_.count(), " ms (--park_deadline)", which,
      ". Fix: try again when they are done, raise --park_deadline, or make the tasks shorter"));
}

}  // namespace resident
