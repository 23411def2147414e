#include "runtime/device/next_engine.h"

#include <signal.h>
#include <sys/prctl.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

constexpr std::chrono::seconds kStartLimit{60};
// If a spare does not start within this time, a new process is started instead. The spare may have
// to wait for memory of the previous engine.
constexpr std::chrono::seconds kSpareStartLimit{5};
constexpr std::chrono::seconds kLaunchLimit{10};

}  // namespace

NextEngine::NextEngine(const DeviceOptions& options, std::shared_ptr<SpareEngine> spare)
    : options_(options), spare_(std::move(spare)), thread_([this] { BringUp(); }) {}

NextEngine::~NextEngine() {
  Cancel();
  if (thread_.joinable()) thread_.join();
}

void NextEngine::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  if (process_ != nullptr) process_->child().Kill(SIGKILL);
}

absl::StatusOr<EngineProcess*> NextEngine::Hold(std::unique_ptr<EngineProcess> process) {
  std::unique_ptr<EngineProcess> former;  // Destroyed after the lock is released.
  absl::MutexLock lock(&mu_);
  if (cancelled_) return absl::CancelledError("the engine is not needed any more");
  former = std::exchange(process_, std::move(process));
  return process_.get();
}

void NextEngine::BringUp() {
  prctl(PR_SET_NAME, "resident-next");
  info_ = StartSpare();
  if (info_.ok() || absl::IsCancelled(info_.status())) return;
  if (from_spare_) {
    LogWarning("the spare engine of device ", options_.index,
               " did not start: ", info_.status().message());
    from_spare_ = false;
  }
  phases_.clear();
  info_ = StartNew();
}

absl::StatusOr<EngineInfo> NextEngine::StartSpare() {
  if (spare_ == nullptr) return absl::NotFoundError("there is no spare");
  PhaseTimer timer;
  std::unique_ptr<EngineProcess> process = spare_->Take();
  if (process == nullptr) return absl::NotFoundError("there is no spare");
  from_spare_ = true;
  timer.Mark("take the spare");
  phases_ = timer.phases();
  ASSIGN_OR_RETURN(const auto held, Hold(std::move(process)));
  return held->Start(options_.engine, kSpareStartLimit);
}

absl::StatusOr<EngineInfo> NextEngine::StartNew() {
  PhaseTimer timer;
  ASSIGN_OR_RETURN(auto launched, EngineProcess::Launch(options_));
  timer.Mark("process");
  phases_ = timer.phases();
  ASSIGN_OR_RETURN(const auto held, Hold(std::move(launched)));
  RETURN_IF_ERROR(held->Prepare(kStartLimit));
  phases_.insert(phases_.end(), held->prepare_phases().begin(), held->prepare_phases().end());
  return held->Start(options_.engine, kStartLimit);
}

absl::Status NextEngine::LaunchKernel(EngineProcess& process, const Generation* generation,
                                      EngineInfo* info) {
  if (generation != options_.engine.generation.get() && generation != nullptr) {
    ASSIGN_OR_RETURN(auto preloaded, process.client()->Preload(*generation));
    RETURN_IF_ERROR(process.client()
                        ->Switch(++changes_, /*launch=*/true, std::chrono::nanoseconds(0))
                        .status());
    info->generation = generation->number;
    info->operators = std::move(preloaded);
    return absl::OkStatus();
  }
  return process.client()->Resume(kLaunchLimit);
}

absl::StatusOr<std::unique_ptr<EngineProcess>> NextEngine::Take(
    const std::shared_ptr<const Generation>& generation, EngineInfo* info) {
  thread_.join();
  if (!info_.ok()) return info_.status();
  phases_.insert(phases_.end(), info_->phases.begin(), info_->phases.end());
  *info = *std::move(info_);
  EngineProcess* process = nullptr;
  {
    absl::MutexLock lock(&mu_);
    process = process_.get();
  }
  PhaseTimer timer;
  RETURN_IF_ERROR(LaunchKernel(*process, generation.get(), info));
  timer.Mark("launch");
  phases_.insert(phases_.end(), timer.phases().begin(), timer.phases().end());
  absl::MutexLock lock(&mu_);
  return std::move(process_);
}

}  // namespace resident
