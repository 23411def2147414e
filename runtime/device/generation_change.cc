#include "runtime/device/generation_change.h"

#include <immintrin.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// How long the engine may take to stand ready; it does so within a call's time.
constexpr milliseconds kArmLimit{5'000};
// A moment that is worth spinning for.
constexpr milliseconds kArmSpin{2};
// How long the kernel may take from the marker, with nothing in flight, to its return.
constexpr milliseconds kKernelLimit{10'000};
// An engine that does not notice a withdrawal within this time has stopped.
constexpr milliseconds kWithdrawLimit{1'000};
// While the change waits: between looks at what runs.
constexpr milliseconds kLookEvery{1};
// Spins between looks at the clock and the process.
constexpr int kSpinsBetweenChecks = 256;

}  // namespace

GenerationChange::GenerationChange(EngineProcess& engine, DeviceQueue& queue, uint64_t change,
                                   uint64_t generation, milliseconds park_deadline)
    : engine_(engine),
      queue_(queue),
      signals_(engine.region()->control()),
      change_(change),
      generation_(generation),
      park_deadline_(park_deadline),
      began_(Clock::now()),
      next_step_(began_),
      next_hold_(began_),
      answer_(absl::UnknownError("no answer yet")) {
  CallEngine();
}

GenerationChange::~GenerationChange() {
  if (!call_.joinable()) return;
  signals_.Withdraw(change_);
  const Clock::time_point until = Clock::now() + kWithdrawLimit;
  while (!answered_.load(std::memory_order_acquire)) {
    if (Clock::now() > until) {
      engine_.child().Kill(SIGKILL);
      break;
    }
    std::this_thread::sleep_for(kLookEvery);
  }
  call_.join();
}

void GenerationChange::CallEngine() {
  call_ = std::thread([this] {
    prctl(PR_SET_NAME, "resident-switch");
    // The engine is told when to give up; the limit is for a front end that is gone.
    answer_ = engine_.client()->Switch(change_, /*launch=*/true,
                                       park_deadline_ + kArmLimit + kKernelLimit);
    answered_.store(true, std::memory_order_release);
  });
}

GenerationChange::Progress GenerationChange::Finish(absl::Status result) {
  signals_.Withdraw(change_);
  call_.join();
  result_ = std::move(result);
  return Progress::kDone;
}

GenerationChange::Progress GenerationChange::Step() {
  const Clock::time_point spin_until = Clock::now() + kArmSpin;
  while (!signals_.armed(change_) && !answered_.load(std::memory_order_acquire) &&
         Clock::now() < spin_until) {
    std::this_thread::yield();
  }
  const Clock::time_point now = Clock::now();
  if (answered_.load(std::memory_order_acquire)) {
    // Nothing was parked: the engine refuses, or has ended, which is seen elsewhere.
    return Finish(answer_.ok() ? absl::InternalError("the engine ended the change by itself")
                               : answer_.status());
  }
  next_step_ = now + kLookEvery;
  if (!signals_.armed(change_)) {
    if (now - began_ < kArmLimit) return Progress::kWaiting;
    return Finish(absl::UnavailableError(
        absl::StrCat("the engine did not stand ready for generation ", generation_, " within ",
                     kArmLimit.count(), " ms. Fix: try again")));
  }
  const nanoseconds hold =
      std::max<nanoseconds>(kShortestHold, nanoseconds(now - began_) / kHoldShare);
  // At the deadline the change gives up; one that is due at once gets one try.
  const bool first = next_hold_ == began_;
  if (!first && now - began_ >= park_deadline_) return Finish(DeadlineError());
  if (now < next_hold_) return Progress::kWaiting;
  if (!queue_.FindOverdue(hold).empty()) {
    next_hold_ = now;  // No hold has failed: there is none to keep away from.
    return Progress::kWaiting;
  }
  if (!HoldAndPark(hold)) {
    next_hold_ = Clock::now() + hold * kHoldShare;
    return Progress::kWaiting;
  }
  return AwaitKernel();
}

bool GenerationChange::HoldAndPark(nanoseconds most) {
  hold_began_ = Clock::now();
  if (!queue_.Hold().ok()) return false;
  signals_.Hold(change_);
  while (!queue_.ParkIfDrained()) {
    if (Clock::now() - hold_began_ > most) {
      signals_.Hold(0);
      queue_.EndPark();
      return false;
    }
    std::this_thread::yield();  // On a CPU engine the tasks may need this processor.
  }
  return true;
}

GenerationChange::Progress GenerationChange::AwaitKernel() {
  const Clock::time_point until = Clock::now() + kKernelLimit;
  for (int spins = 0; !signals_.ended(change_); ++spins) {
    if (spins % kSpinsBetweenChecks == 0) {
      // An engine that cannot launch answers without an end; one that has ended answers too.
      const bool answered = answered_.load(std::memory_order_acquire);
      if ((answered && !signals_.ended(change_)) || Clock::now() > until) {
        result_ = !answered      ? absl::DeadlineExceededError(absl::StrCat(
                                       "the kernel did not come back within ", kKernelLimit.count(),
                                       " ms of being parked for generation ", generation_))
                  : answer_.ok() ? absl::InternalError("no kernel was launched")
                                 : answer_.status();
        return Progress::kLost;
      }
      std::this_thread::yield();
    } else {
      _mm_pause();
    }
  }
  queue_.EndPark();
  pause_ = Clock::now() - hold_began_;
  // The answer tells no more than the signals of a change that was made.
  const bool made = signals_.generation() == generation_;
  call_.join();
  if (answer_.ok()) times_ = *answer_;
  result_ = made           ? absl::OkStatus()
            : answer_.ok() ? absl::InternalError("the engine runs another generation")
                           : answer_.status();
  return Progress::kDone;
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
