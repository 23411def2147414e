// A device's parking; supervised_device.cc is what calls the steps.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/engine_end.h"
#include "runtime/device/supervised_device.h"
#include "runtime/device/supervised_watched.h"

namespace resident {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr seconds kResumeLimit{10};
// A park with nothing left in flight: how long the kernel may take to leave.
constexpr seconds kLeaveLimit{5};

}  // namespace

absl::Status SupervisedDevice::Park() {
  absl::MutexLock lock(&mu_);
  if (stop_) return StoppedError();
  if (state_ == State::kUnhealthy) return UnhealthyError();
  admin_parked_ = true;
  resume_wanted_ = false;
  wake_->Signal();
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return state_ == State::kParked || state_ == State::kUnhealthy || stop_ || !admin_parked_;
  };
  mu_.Await(absl::Condition(&settled));
  if (state_ == State::kParked) return absl::OkStatus();
  if (stop_) return StoppedError();
  if (state_ == State::kUnhealthy) return UnhealthyError();
  return absl::AbortedError("the device was resumed while it was being parked");
}

absl::Status SupervisedDevice::Resume() {
  absl::MutexLock lock(&mu_);
  if (stop_) return StoppedError();
  admin_parked_ = false;
  resume_wanted_ = true;
  wake_->Signal();
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || admin_parked_ ||
           (!resume_wanted_ && (state_ == State::kResident || state_ == State::kUnhealthy));
  };
  mu_.Await(absl::Condition(&settled));
  if (stop_) return StoppedError();
  if (state_ == State::kUnhealthy) return UnhealthyError();
  if (admin_parked_) return absl::AbortedError("the device was parked while it was being resumed");
  return absl::OkStatus();
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
      return BeginParking(watched, wants);
    case Parking::kParking:
      return FinishParking(watched, wants);
    case Parking::kParked:
      break;
  }
  if (wants.parked) {
    absl::ReleasableMutexLock lock(&mu_);
    const bool was_idle = state_ == State::kIdleParked;
    lock.Release();
    if (was_idle) SetState(State::kParked, "");
    return std::nullopt;
  }
  bool admin = false;
  {
    absl::MutexLock lock(&mu_);
    admin = state_ == State::kParked;
  }
  if (admin || wants.resume || wants.work || queue_.counters().queued_tasks > 0) {
    return ResumeKernel(watched);
  }
  return std::nullopt;
}

std::optional<EngineEnd> SupervisedDevice::BeginParking(Watched& watched, const Wants& wants) {
  {
    absl::MutexLock lock(&mu_);
    if (session_ == nullptr) return std::nullopt;  // Still being restored.
    resume_wanted_ = false;                        // It is resident.
  }
  const Clock::time_point now = Clock::now();
  if (!wants.parked && now < ParkAt(watched)) return std::nullopt;
  {
    absl::MutexLock lock(&mu_);
    work_arrived_ = false;  // From before the park.
  }
  if (!queue_.BeginPark().ok()) return std::nullopt;
  watched.parking = Parking::kParking;
  watched.park_began = now;
  watched.park_idle_since.reset();
  watched.step_at_once = true;
  return std::nullopt;
}

std::optional<EngineEnd> SupervisedDevice::FinishParking(Watched& watched, const Wants& wants) {
  // The wait is the engine's, a tick at a time, so that the other checks go on.
  watched.step_at_once = true;
  const absl::Status status = watched.engine.client()->AwaitPark(kTick);
  const Clock::time_point now = Clock::now();
  if (status.ok()) {
    watched.parking = Parking::kParked;
    park_duration_.Observe(static_cast<uint64_t>(nanoseconds(now - watched.park_began).count()));
    {
      absl::MutexLock lock(&mu_);
      ++parks_;
    }
    SetState(wants.parked ? State::kParked : State::kIdleParked, "");
    return std::nullopt;
  }
  if (status.code() != absl::StatusCode::kDeadlineExceeded) {
    return DescribeFailedCall(watched.engine, Name(), "park", status);
  }
  // While tasks are in flight the park waits for them, and Tick() for one that hangs.
  if (queue_.counters().in_flight > 0) {
    watched.park_idle_since.reset();
    return std::nullopt;
  }
  if (!watched.park_idle_since) watched.park_idle_since = now;
  if (now - *watched.park_idle_since < kLeaveLimit) return std::nullopt;
  return EngineEnd{
      "hang",
      absl::StrCat("the kernel of device ", options_.index, " did not leave within ",
                   kLeaveLimit.count(), " s of its last task, and the ", Name(), " was ended"),
      {}};
}

std::optional<EngineEnd> SupervisedDevice::ResumeKernel(Watched& watched) {
  const Clock::time_point began = Clock::now();
  const absl::Status status = watched.engine.client()->Resume(kResumeLimit);
  if (!status.ok()) return DescribeFailedCall(watched.engine, Name(), "resume", status);
  queue_.EndPark();
  watched.parking = Parking::kRunning;
  watched.resident_since = Clock::now();
  resume_duration_.Observe(
      static_cast<uint64_t>(nanoseconds(watched.resident_since - began).count()));
  {
    absl::MutexLock lock(&mu_);
    ++resumes_;
    work_arrived_ = false;
    resume_wanted_ = false;
  }
  SetState(State::kResident, "");
  return std::nullopt;
}

}  // namespace resident
