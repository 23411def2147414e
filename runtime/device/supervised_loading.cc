// SupervisedDevice: changes of generation. supervised_device.cc calls the steps.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/engine_end.h"
#include "runtime/device/supervised_device.h"
#include "runtime/device/supervised_watched.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Returns the slots with an operator in `after` that have another operator, or none, in `before`.
std::vector<uint32_t> SlotsWithOtherOperators(const Generation* before, const Generation& after) {
  std::unordered_map<uint32_t, std::string_view> symbols;
  if (before != nullptr) {
    for (const GenerationOperator& op : before->operators) symbols[op.slot] = op.symbol;
  }
  std::vector<uint32_t> slots;
  for (const GenerationOperator& op : after.operators) {
    const auto found = symbols.find(op.slot);
    if (found == symbols.end() || found->second != op.symbol) slots.push_back(op.slot);
  }
  return slots;
}

}  // namespace

absl::Status SupervisedDevice::LoadGeneration(std::shared_ptr<const Generation> generation,
                                              milliseconds park_deadline) {
  absl::MutexLock load_lock(&load_mu_);
  Loading loading{.generation = std::move(generation),
                  .operators = {},
                  .park_deadline = park_deadline,
                  .engine_pid = 0,
                  .result = std::nullopt};
  std::shared_ptr<EngineClient> client;
  {
    absl::MutexLock lock(&mu_);
    if (stop_) return StoppedError();
    if (status_.state == State::kUnhealthy) return UnhealthyError();
    if (client_ == nullptr) {
      return absl::UnavailableError(absl::StrCat(
          "device ", options_.index, " has no engine: ", status_.detail, ". Fix: try again later"));
    }
    if (loading.generation->number <= status_.info.generation) {
      return absl::FailedPreconditionError(absl::StrCat(
          "device ", options_.index, " already runs generation ", status_.info.generation, ", and ",
          loading.generation->number, " is not larger. Fix: use increasing numbers"));
    }
    client = client_;
    loading.engine_pid = status_.engine_pid;
  }
  // This can take long; it runs on this thread, while the kernel runs.
  absl::StatusOr<std::vector<OperatorResources>> preloaded = client->Preload(*loading.generation);
  absl::MutexLock lock(&mu_);
  if (!preloaded.ok()) {
    ++status_.failed_generation_changes;
    return preloaded.status();
  }
  loading.operators = *std::move(preloaded);
  if (stop_) return StoppedError();
  if (status_.engine_pid != loading.engine_pid) {
    ++status_.failed_generation_changes;
    return absl::UnavailableError(absl::StrCat("the ", Name(), " was replaced while generation ",
                                               loading.generation->number,
                                               " was preloaded. Fix: load it again"));
  }
  loading_ = &loading;  // Used by the supervisor until it has set the result.
  wake_->Signal();
  const auto settled = [&loading] { return loading.result.has_value(); };
  mu_.Await(absl::Condition(&settled));
  return *loading.result;
}

void SupervisedDevice::SetGeneration(std::shared_ptr<const Generation> generation) {
  absl::MutexLock lock(&mu_);
  generation_ = std::move(generation);
}

std::optional<EngineEnd> SupervisedDevice::StepLoading(Watched& watched, const Wants& wants) {
  if (wants.loading == nullptr) return std::nullopt;
  if (watched.change == nullptr) {
    if (watched.parking == Parking::kParked) {
      LoadWhileParked(watched, wants.loading);
      return std::nullopt;
    }
    if (watched.parking != Parking::kRunning) return std::nullopt;
    watched.change = std::make_unique<GenerationChange>(watched.engine, queue_, ++watched.changes,
                                                        wants.loading->generation->number,
                                                        wants.loading->park_deadline);
  }
  switch (watched.change->Step()) {
    case GenerationChange::Progress::kWaiting:
      return std::nullopt;
    case GenerationChange::Progress::kDone:
      break;
    case GenerationChange::Progress::kLost:
      // Retire passes the error to the thread that waits for the load.
      watched.Fail("change its generation", watched.change->result());
      return std::nullopt;
  }
  const absl::Status result = watched.change->result();
  if (result.code() == absl::StatusCode::kUnavailable) {
    // The engine has probably ended: wait, so that the waiting thread gets the reason of its end.
    if (!watched.change_over) watched.change_over = Clock::now();
    if (Clock::now() - *watched.change_over < kEngineEndLimit) return std::nullopt;
  }
  watched.change_over.reset();
  if (const nanoseconds pause = watched.change->pause(); pause.count() > 0) {
    generation_pause_.Observe(static_cast<uint64_t>(pause.count()));
    absl::MutexLock lock(&mu_);
    status_.last_generation_pause = pause;
    status_.last_switch = watched.change->times();
  }
  watched.change.reset();
  watched.resident_since = Clock::now();
  FinishLoading(wants.loading, result);
  return std::nullopt;
}

void SupervisedDevice::LoadWhileParked(Watched& watched, Loading* loading) {
  if (watched.call == nullptr) {
    watched.call = watched.engine.client()->StartSwitch(++watched.changes, /*launch=*/false,
                                                        nanoseconds(0), WakeSupervisor());
  }
  if (!watched.call->answered()) return;
  const absl::Status result = watched.call->answer().status();
  watched.call.reset();
  if (result.code() == absl::StatusCode::kUnavailable) {
    watched.Fail("change its generation", result);
    return;
  }
  FinishLoading(loading, result);
}

void SupervisedDevice::FinishLoading(Loading* loading, absl::Status result) {
  if (result.ok()) {
    std::shared_ptr<const Generation> before;
    {
      absl::MutexLock lock(&mu_);
      before = generation_;
    }
    // Tasks for these slots are submitted only after the load has returned.
    for (const uint32_t slot : SlotsWithOtherOperators(before.get(), *loading->generation)) {
      queue_.ForgetEstimate(slot);
    }
  }
  absl::MutexLock lock(&mu_);
  if (result.ok()) {
    generation_ = loading->generation;
    status_.info.generation = loading->generation->number;
    status_.info.operators = std::move(loading->operators);
    ++status_.generation_changes;
  } else {
    ++status_.failed_generation_changes;
  }
  loading->result = std::move(result);
  loading_ = nullptr;
}

void SupervisedDevice::FailLoading(const std::string& cause) {
  absl::MutexLock lock(&mu_);
  if (loading_ == nullptr) return;
  ++status_.failed_generation_changes;
  loading_->result = absl::UnavailableError(
      absl::StrCat("generation ", loading_->generation->number, " was not loaded: ", cause,
                   ". Fix: load it again when the device serves"));
  loading_ = nullptr;
}

}  // namespace resident
