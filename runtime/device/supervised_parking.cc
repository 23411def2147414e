// SupervisedDevice: parks and resumes. supervised_device.cc calls the steps.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/device/engine_end.h"
#include "runtime/device/supervised_device.h"
#include "runtime/device/supervised_watched.h"

namespace resident {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr seconds kResumeLimit{10};
// Timeout of one AwaitPark call, which is repeated.
constexpr seconds kParkAsk{1};
// How long the kernel may take to return when nothing is in flight.
constexpr seconds kLeaveLimit{5};

}  // namespace

std::optional<absl::Status> SupervisedDevice::ParkOutcome() const {
  if (status_.state == State::kParked) return absl::OkStatus();
  if (stop_) return StoppedError();
  if (status_.state == State::kUnhealthy) return UnhealthyError();
  if (park_requested_) return std::nullopt;
  return absl::AbortedError("the device was resumed while it was being parked");
}

std::optional<absl::Status> SupervisedDevice::ResumeOutcome() const {
  if (stop_) return StoppedError();
  if (park_requested_)
    return absl::AbortedError("the device was parked while it was being resumed");
  if (resume_requested_) return std::nullopt;
  if (status_.state == State::kUnhealthy) return UnhealthyError();
  if (status_.state == State::kResident) return absl::OkStatus();
  return std::nullopt;
}

void SupervisedDevice::StartPark(Waiter waiter) {
  {
    absl::MutexLock lock(&mu_);
    if (!stop_ && status_.state != State::kUnhealthy) {
      park_requested_ = true;
      resume_requested_ = false;
      wake_->Signal();
    }
    parks_awaited_.push_back(std::move(waiter));
  }
  SettleWaiters();
}

void SupervisedDevice::StartResume(Waiter waiter) {
  {
    absl::MutexLock lock(&mu_);
    if (!stop_) {
      park_requested_ = false;
      resume_requested_ = true;
      wake_->Signal();
    }
    resumes_awaited_.push_back(std::move(waiter));
  }
  SettleWaiters();
}

void SupervisedDevice::SettleWaiters() {
  std::vector<std::pair<Waiter, absl::Status>> settled;
  {
    absl::MutexLock lock(&mu_);
    const auto settle = [&settled](std::vector<Waiter>& waiters,
                                   const std::optional<absl::Status>& outcome) {
      for (auto at = waiters.begin(); at != waiters.end();) {
        const bool gone = !outcome && at->gone && at->gone();
        if (!outcome && !gone) {
          ++at;
          continue;
        }
        settled.emplace_back(std::move(*at), gone ? errors::Cancelled() : *outcome);
        at = waiters.erase(at);
      }
    };
    settle(parks_awaited_, ParkOutcome());
    settle(resumes_awaited_, ResumeOutcome());
  }
  for (const auto& [waiter, status] : settled) waiter.settled(status);
}

Clock::time_point SupervisedDevice::ParkAt(const Watched& watched) const {
  const Clock::time_point idle_since = queue_.idle_since();
  if (options_.park_after.count() == 0 || idle_since == Clock::time_point::max()) {
    return Clock::time_point::max();
  }
  return std::max(idle_since, watched.resident_since) + options_.park_after;
}

std::optional<EngineEnd> SupervisedDevice::StepParking(Watched& watched, const Wants& wants) {
  switch (watched.parking) {
    case Parking::kRunning:
      BeginParking(watched, wants);
      return std::nullopt;
    case Parking::kHolding:
      StepHolding(watched, wants);
      return std::nullopt;
    case Parking::kParking:
      return FinishParking(watched, wants);
    case Parking::kResuming:
      FinishResuming(watched);
      return std::nullopt;
    case Parking::kParked:
      break;
  }
  if (watched.call != nullptr) return std::nullopt;  // A generation is being loaded.
  if (wants.parked) {
    absl::ReleasableMutexLock lock(&mu_);
    const bool was_idle = status_.state == State::kIdleParked;
    lock.Release();
    if (was_idle) SetState(State::kParked, "");
    return std::nullopt;
  }
  bool admin = false;
  {
    absl::MutexLock lock(&mu_);
    admin = status_.state == State::kParked;
  }
  if (admin || wants.resume || wants.work || queue_.counters().queued_tasks > 0) {
    watched.parking = Parking::kResuming;
    watched.call_began = Clock::now();
    watched.call = watched.engine.client()->StartResume(kResumeLimit, WakeSupervisor());
  }
  return std::nullopt;
}

void SupervisedDevice::BeginParking(Watched& watched, const Wants& wants) {
  {
    absl::MutexLock lock(&mu_);
    if (session_ == nullptr) return;  // Its buffers are still being restored.
    resume_requested_ = false;        // It is already resident.
  }
  SettleWaiters();
  const Clock::time_point now = Clock::now();
  if (!wants.parked && now < ParkAt(watched)) return;
  *work_arrived_ = false;  // Discard a value from before the park.
  watched.park_began = now;
  if (wants.parked) {
    if (!queue_.Hold().ok()) return;
    watched.parking = Parking::kHolding;
    return StepHolding(watched, wants);
  }
  // The kernel is idle, and the next task resumes it.
  if (!queue_.BeginPark().ok()) return;
  AwaitPark(watched);
}

void SupervisedDevice::StepHolding(Watched& watched, const Wants& wants) {
  if (!wants.parked) {
    queue_.EndPark();
    watched.parking = Parking::kRunning;
    watched.step_at_once = true;  // The resume has succeeded.
    return;
  }
  if (queue_.ParkIfDrained()) AwaitPark(watched);
}

void SupervisedDevice::AwaitPark(Watched& watched) {
  watched.parking = Parking::kParking;
  watched.park_idle_since.reset();
  watched.call = watched.engine.client()->StartAwaitPark(kParkAsk, WakeSupervisor());
}

std::optional<EngineEnd> SupervisedDevice::FinishParking(Watched& watched, const Wants& wants) {
  const Clock::time_point now = Clock::now();
  absl::Status status = absl::DeadlineExceededError("");
  if (watched.call->answered()) {
    status = watched.call->answer().status();
    watched.call.reset();
  }
  if (status.ok()) {
    watched.parking = Parking::kParked;
    watched.step_at_once = true;  // A resume may be requested already.
    park_duration_.Observe(static_cast<uint64_t>(nanoseconds(now - watched.park_began).count()));
    {
      absl::MutexLock lock(&mu_);
      ++status_.parks;
    }
    SetState(wants.parked ? State::kParked : State::kIdleParked, "");
    return std::nullopt;
  }
  if (status.code() != absl::StatusCode::kDeadlineExceeded) {
    watched.Fail("park", status);
    return std::nullopt;
  }
  if (watched.call == nullptr) {
    watched.call = watched.engine.client()->StartAwaitPark(kParkAsk, WakeSupervisor());
  }
  // While tasks are in flight the park waits for them; Tick() detects a task that hangs.
  if (queue_.counters().in_flight > 0) {
    watched.park_idle_since.reset();
    return std::nullopt;
  }
  if (!watched.park_idle_since) watched.park_idle_since = now;
  if (now - *watched.park_idle_since < kLeaveLimit) return std::nullopt;
  return EngineEnd{
      EngineEndReason::kHang,
      absl::StrCat("the kernel of device ", options_.index, " did not park within ",
                   kLeaveLimit.count(), " s of its last task, and the ", Name(), " was terminated"),
      {}};
}

void SupervisedDevice::FinishResuming(Watched& watched) {
  if (!watched.call->answered()) return;
  const absl::Status status = watched.call->answer().status();
  watched.call.reset();
  if (!status.ok()) {
    watched.Fail("resume", status);
    return;
  }
  watched.parking = Parking::kRunning;
  watched.resident_since = Clock::now();
  resume_duration_.Observe(
      static_cast<uint64_t>(nanoseconds(watched.resident_since - watched.call_began).count()));
  {
    absl::MutexLock lock(&mu_);
    ++status_.resumes;
    resume_requested_ = false;
  }
  SetState(State::kResident, "");
  // A client whose task this lets through finds the device resident, and the resume counted.
  queue_.EndPark();
  *work_arrived_ = false;
}

}  // namespace resident
