
#include "runtime/operators/validation/validation.h"

#include <signal.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/compile/errors.h"
#include "runtime/device/engine_process.h"
#include "runtime/device/spare_engine.h"
#include "runtime/engine/generation.h"
#include "runtime/operators/errors.h"
#include "runtime/operators/validation/example.h"
#include "runtime/operators/validation/example_runner.h"
#include "runtime/operators/validation/guarded_tensors.h"
#include "runtime/operators/validation/task_runner.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Few blocks, so that the live engine keeps most of the GPU; more than one, so that the
// chunks of a wide task run in parallel.
constexpr uint32_t kMaxBlocks = 4;
constexpr uint32_t kRingSlots = 64;
// Tensors are in staging memory, but a GPU engine requires some memory for buffers.
constexpr uint64_t kDeviceMemoryMib = 2;
constexpr milliseconds kLoadLimit{30'000};
// A spare that does not start within this time is considered stopped.
constexpr milliseconds kSpareStartLimit{5'000};
constexpr uint64_t kStagingBytes = GuardedTensors::kStagingBytes;

DeviceOptions EngineProcessOptions(const ValidationOptions& options) {
  DeviceOptions device;
  device.engine_type = options.engine.type;
  device.index = static_cast<uint32_t>(options.engine.ordinal);
  device.engine_program = options.engine_program;
  device.engine.ordinal = options.engine.ordinal;
  device.engine.threads_per_block = options.threads_per_block;
  device.engine.max_blocks = kMaxBlocks;
  device.engine.start_parked = true;
  device.limits.ring_slots = kRingSlots;
  device.limits.staging_mib = kStagingBytes >> 20;
  device.limits.device_memory_mib = kDeviceMemoryMib;
  return device;
}

class ProcessValidation : public ValidationEngine {
 public:
  explicit ProcessValidation(const ValidationOptions& options)
      : options_(options), starter_([this] { StartEngine(); }) {}

  ~ProcessValidation() override {
    Cancel();
    if (starter_.joinable()) starter_.join();
    std::unique_ptr<EngineProcess> process;
    {
      absl::MutexLock lock(&mu_);
      process = std::move(process_);
    }
    // Reaped in the background, since destroying a GPU's context takes 60 ms or more. The
    // next spare is prepared after that, since both need the driver.
    const auto refill = [spare = options_.spare] {
      if (spare != nullptr) spare->Refill();
    };
    if (process == nullptr) {
      refill();
      return;
    }
    EngineReaper::Reap(std::move(process), [refill](const std::optional<ChildExit>&) { refill(); });
  }

  ValidationReport Run(const ValidationJob& job) override {
    ValidationReport report;
    report.status = Validate(job, report);
    if (absl::IsUnavailable(report.status) && !cancelled_ && EngineWasKilled()) {
      report = {};
      StartEngine();
      report.status = Validate(job, report);
    }
    // Kill the engine in any case, so that nothing of the version's effects remains.
    KillEngine();
    if (cancelled_) report.status = errors::InstallWithdrawn();
    return report;
  }

  void Cancel() override {
    cancelled_ = true;
    KillEngine();
  }

 private:
  void KillEngine() {
    absl::MutexLock lock(&mu_);
    if (process_ != nullptr) process_->child().Kill(SIGKILL);
  }

  bool EngineWasKilled() {
    EngineProcess* const engine = process();
    if (engine == nullptr) return false;
    const std::optional<ChildExit> exit = engine->child().Wait(milliseconds(0));
    return exit.has_value() && IsKilled(*exit);
  }

  EngineProcess* process() {
    absl::MutexLock lock(&mu_);
    return process_.get();
  }

  void StartEngine() {
    const DeviceOptions options = EngineProcessOptions(options_);
    if (options_.spare != nullptr) {
      std::unique_ptr<EngineProcess> spare = options_.spare->Take(kStagingBytes);
      if (spare != nullptr) {
        EngineOptions engine = options.engine;
        engine.memory_bytes = kDeviceMemoryMib << 20;
        info_ = Adopt(std::move(spare)).Start(engine, kSpareStartLimit);
        if (info_.ok() || cancelled_) return;
      }
    }
    auto process = EngineProcess::Launch(options);
    if (!process.ok()) {
      info_ = process.status();
      return;
    }
    info_ = Adopt(*std::move(process)).Start(options_.start_limit);
  }

  EngineProcess& Adopt(std::unique_ptr<EngineProcess> process) {
    EngineProcess& adopted = *process;
    {
      absl::MutexLock lock(&mu_);
      process_.swap(process);
    }
    if (process != nullptr) EngineReaper::Reap(std::move(process));
    // A Cancel before there was a process to kill relies on this thread to kill it.
    if (cancelled_) adopted.child().Kill(SIGKILL);
    return adopted;
  }

  absl::Status Load(const ValidationJob& job) {
    EngineProcess& process = *this->process();
    absl::Status status = process.client()->Preload(*job.generation).status();
    if (status.ok()) status = process.client()->Switch(1, /*launch=*/true, kLoadLimit).status();
    if (status.ok()) return status;
    if (status.code() == absl::StatusCode::kUnavailable) {
      if (const auto exit = process.child().Wait(kEngineEndLimit)) {
        if (IsKilled(*exit)) {
          return errors::ValidationUnavailable(
              absl::UnavailableError(absl::StrCat("the engine ", exit->ToString())));
        }
        const std::string reason = process.exit_reason();
        return errors::ValidationLoad(
            job.operator_name,
            reason.empty() ? absl::StrCat("the engine ", exit->ToString()) : reason);
      }
    }
    if (status.code() != absl::StatusCode::kInvalidArgument) {
      return errors::ValidationUnavailable(status);
    }
    return errors::ValidationLoad(job.operator_name, std::string(status.message()));
  }

  absl::Status Validate(const ValidationJob& job, ValidationReport& report) {
    const auto began = Clock::now();
    if (starter_.joinable()) starter_.join();
    const auto started = Clock::now();
    report.start_wait = started - began;
    if (!info_.ok()) return errors::ValidationUnavailable(info_.status());
    absl::Status status = Load(job);
    const auto loaded = Clock::now();
    report.load = loaded - started;
    if (!status.ok()) return status;

    EngineProcess& process = *this->process();
    const RegionLayout& layout = process.region()->layout();
    const ValidationStaging staging = {
        process.region()->staging(), info_->region_address + layout.staging, layout.staging_bytes};
    TaskRunner tasks(&process, info_->workers);
    ExampleRunner runner(job, &tasks, staging);
    const bool generated = job.examples.empty();
    const std::vector<Example> examples =
        generated ? GenerateExamples(job.signature, job.split) : job.examples;
    for (size_t i = 0; i < examples.size() && status.ok() && !cancelled_; ++i) {
      ++report.examples;
      status = runner.Run(i, examples[i], generated);
    }
    report.tasks = runner.tasks_run();
    report.run = Clock::now() - loaded;
    tasks.Park();
    return status;
  }

  const ValidationOptions options_;
  std::atomic<bool> cancelled_{false};
  absl::Mutex mu_;
  // Set by the thread that starts the engine.
  std::unique_ptr<EngineProcess> process_ ABSL_GUARDED_BY(mu_);
  // Written by the thread that starts the engine; read after it was joined. A second engine is
  // started by the caller of Run.
  absl::StatusOr<EngineInfo> info_ = absl::UnavailableError("it was not started");
  std::thread starter_;  // Last: it uses the members above.
};

}  // namespace

std::unique_ptr<ValidationEngine> ValidationEngine::Start(const ValidationOptions& options) {
  return std::make_unique<ProcessValidation>(options);
}

}  // namespace resident
