#include "runtime/device/spare_engine.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "runtime/base/log.h"

namespace resident {
namespace {

constexpr std::chrono::seconds kPrepareLimit{60};

}  // namespace

SpareEngine::SpareEngine(const DeviceOptions& options) : options_(options) {
  absl::MutexLock lock(&stop_mu_);
  worker_ = std::thread([this] { Work(); });
}

SpareEngine::~SpareEngine() { Stop(); }

void SpareEngine::Stop() {
  absl::MutexLock stop_lock(&stop_mu_);
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    if (process_ != nullptr) process_->child().Kill(SIGKILL);
  }
  wake_.Signal();
  if (worker_.joinable()) worker_.join();
}

std::unique_ptr<EngineProcess> SpareEngine::Take(uint64_t staging_bytes) {
  if (options_.limits.staging_mib << 20 < staging_bytes) return nullptr;
  std::unique_ptr<EngineProcess> taken;
  {
    absl::MutexLock lock(&mu_);
    const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return ready_ || process_ == nullptr || stop_;
    };
    mu_.Await(absl::Condition(&settled));
    if (!ready_ || stop_) return nullptr;
    // A spare that has just ended cannot be used.
    pollfd ended{process_->child().pidfd(), POLLIN, 0};
    if (poll(&ended, 1, 0) > 0) return nullptr;
    ready_ = false;
    wanted_ = false;
    wait_ = std::chrono::milliseconds(0);
    taken = std::move(process_);
  }
  wake_.Signal();
  return taken;
}

void SpareEngine::Refill() {
  absl::MutexLock lock(&mu_);
  wanted_ = true;
}

int64_t SpareEngine::pid() const {
  absl::MutexLock lock(&mu_);
  return ready_ ? process_->child().pid() : 0;
}

void SpareEngine::Work() {
  prctl(PR_SET_NAME, "resident-spare");
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      const auto news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return wanted_ || stop_; };
      mu_.Await(absl::Condition(&news));
      if (stop_) break;
    }
    if (!Prepare() || !Watch()) BackOff();
  }
  std::unique_ptr<EngineProcess> process;  // Reaped after the lock is released.
  absl::MutexLock lock(&mu_);
  ready_ = false;
  process = std::move(process_);
}

bool SpareEngine::Prepare() {
  auto launched = EngineProcess::Launch(options_);
  absl::Status status = launched.status();
  if (launched.ok()) {
    EngineProcess* const process = launched->get();
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return true;  // Not a failure.
      process_ = *std::move(launched);
    }
    status = process->Prepare(kPrepareLimit);
  }
  std::unique_ptr<EngineProcess> failed;
  {
    absl::MutexLock lock(&mu_);
    ready_ = status.ok();
    if (ready_ || stop_) return true;
    failed = std::move(process_);
  }
  LogWarning("device ", options_.index, " has no spare engine: ", status.message());
  return false;
}

bool SpareEngine::Watch() {
  const Clock::time_point since = Clock::now();
  while (true) {
    int pidfd = -1;
    {
      absl::MutexLock lock(&mu_);
      if (stop_ || process_ == nullptr) return true;
      pidfd = process_->child().pidfd();
    }
    // The caller of Take may close the descriptor meanwhile; Take signals `wake_`.
    pollfd events[] = {{pidfd, POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
    poll(events, 2, -1);
    wake_.Drain();
    std::unique_ptr<EngineProcess> ended;
    {
      absl::MutexLock lock(&mu_);
      if (stop_ || process_ == nullptr) return true;
      if (!process_->child().Wait(std::chrono::nanoseconds(0))) continue;
      ready_ = false;
      ended = std::move(process_);
      if (Clock::now() - since >= kLongestWait) wait_ = std::chrono::milliseconds(0);
    }
    LogWarning("the spare engine of device ", options_.index, " ",
               ended->child().Wait(std::chrono::nanoseconds(0))->ToString(),
               "; another one is started");
    return false;
  }
}

void SpareEngine::BackOff() {
  absl::MutexLock lock(&mu_);
  const std::chrono::milliseconds wait = wait_;
  wait_ = std::clamp(2 * wait_, kFirstWait, kLongestWait);
  mu_.AwaitWithTimeout(absl::Condition(&stop_), absl::FromChrono(wait));
}

}  // namespace resident
