#include "runtime/operators/validation/canary.h"

#include <signal.h>

#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/errors/canary_errors.h"
#include "runtime/base/errors/install_errors.h"
#include "runtime/device/engine_process.h"
#include "runtime/engine/generation.h"
#include "runtime/operators/validation/example_runner.h"
#include "runtime/operators/validation/generated_examples.h"
#include "runtime/operators/validation/guarded_tensors.h"
#include "runtime/operators/validation/task_runner.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Few blocks, so that the live engine keeps the GPU's; more than one, so that the chunks
// of a wide task run beside one another.
constexpr uint32_t kMaxBlocks = 4;
constexpr uint32_t kRingSlots = 64;
// Tensors are in the window; a GPU engine wants some memory for buffers all the same.
constexpr uint64_t kDeviceMemoryMib = 2;
constexpr milliseconds kLoadLimit{30'000};
// How long an engine whose control plane broke off may take to be seen to end.
constexpr milliseconds kEndLimit{1'000};

DeviceOptions EngineProcessOptions(const CanaryOptions& options) {
  DeviceOptions device;
  device.cuda = options.cuda;
  device.index = static_cast<uint32_t>(options.ordinal);
  device.engine_program = options.engine_program;
  device.engine.ordinal = options.ordinal;
  device.engine.threads_per_block = options.threads_per_block;
  device.engine.max_blocks = kMaxBlocks;
  device.engine.start_parked = true;
  device.limits.ring_slots = kRingSlots;
  device.limits.window_mib = GuardedTensors::kWindowBytes >> 20;
  device.limits.device_memory_mib = kDeviceMemoryMib;
  return device;
}

// Reaps engines beside the install that they served: the system takes a GPU's context
// back in 100 ms.
class Reaper {
 public:
  // Kills the engine, and destroys the process once it is gone.
  static void Reap(std::unique_ptr<EngineProcess> process) {
    // Never destroyed: what it holds at exit the system takes back.
    static Reaper* const reaper = new Reaper;
    process->child().Kill(SIGKILL);
    absl::MutexLock lock(&reaper->mu_);
    reaper->processes_.push_back(std::move(process));
  }

 private:
  Reaper() {
    std::thread([this] { Work(); }).detach();
  }

  using Processes = std::deque<std::unique_ptr<EngineProcess>>;

  void Work() {
    while (true) Next();  // Destroyed here, without the lock.
  }

  std::unique_ptr<EngineProcess> Next() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](Processes* waiting) { return !waiting->empty(); }, &processes_));
    std::unique_ptr<EngineProcess> next = std::move(processes_.front());
    processes_.pop_front();
    return next;
  }

  absl::Mutex mu_;
  Processes processes_ ABSL_GUARDED_BY(mu_);
};

class ProcessCanary : public CanaryEngine {
 public:
  explicit ProcessCanary(const CanaryOptions& options)
      : options_(options), starter_([this] { StartEngine(); }) {}

  ~ProcessCanary() override {
    Cancel();
    if (starter_.joinable()) starter_.join();
    absl::MutexLock lock(&mu_);
    if (process_ != nullptr) Reaper::Reap(std::move(process_));
  }

  CanaryReport Run(const CanaryJob& job) override {
    CanaryReport report;
    report.status = Try(job, report);
    // Whatever a version did before it failed, or after: nothing is left of it.
    EngineProcess* const process = this->process();
    if (process != nullptr) process->child().Kill(SIGKILL);
    if (cancelled_) report.status = errors::InstallWithdrawn();
    return report;
  }

  void Cancel() override {
    cancelled_ = true;
    EngineProcess* const process = this->process();
    if (process != nullptr) process->child().Kill(SIGKILL);
  }

 private:
  EngineProcess* process() {
    absl::MutexLock lock(&mu_);
    return process_.get();
  }

  void StartEngine() {
    auto process = EngineProcess::Launch(EngineProcessOptions(options_));
    if (!process.ok()) {
      info_ = process.status();
      return;
    }
    EngineProcess* const launched = process->get();
    {
      absl::MutexLock lock(&mu_);
      process_ = *std::move(process);
    }
    // Who cancelled before there was a process to kill has left that to this thread.
    if (cancelled_) launched->child().Kill(SIGKILL);
    info_ = launched->Start(options_.start_limit);
  }

  absl::Status Load(const CanaryJob& job) {
    EngineProcess& process = *this->process();
    absl::Status status = process.client()->Stage(*job.generation).status();
    if (status.ok()) status = process.client()->Switch(1, /*launch=*/true, kLoadLimit).status();
    if (status.ok()) return status;
    if (status.code() == absl::StatusCode::kUnavailable) {
      if (const auto exit = process.child().Wait(kEndLimit)) {
        const std::string words = process.last_words();
        return errors::CanaryLoad(
            job.operator_name,
            words.empty() ? absl::StrCat("the engine ", exit->ToString()) : words);
      }
    }
    if (status.code() != absl::StatusCode::kInvalidArgument) {
      return errors::CanaryUnavailable(status);
    }
    return errors::CanaryLoad(job.operator_name, std::string(status.message()));
  }

  absl::Status Try(const CanaryJob& job, CanaryReport& report) {
    const auto began = Clock::now();
    if (starter_.joinable()) starter_.join();
    const auto started = Clock::now();
    report.start_wait = started - began;
    if (!info_.ok()) return errors::CanaryUnavailable(info_.status());
    absl::Status status = Load(job);
    const auto loaded = Clock::now();
    report.load = loaded - started;
    if (!status.ok()) return status;

    EngineProcess& process = *this->process();
    const RegionLayout& layout = process.region()->layout();
    const CanaryWindow window = {process.region()->window(), info_->region_address + layout.window,
                                 layout.window_bytes};
    TaskRunner tasks(&process, info_->workers);
    ExampleRunner runner(job, &tasks, window);
    const bool generated = job.examples.empty();
    const std::vector<Example> examples =
        generated ? GenerateExamples(job.signature, job.split) : job.examples;
    for (size_t i = 0; i < examples.size() && status.ok() && !cancelled_; ++i) {
      ++report.examples;
      status = runner.Run(i, examples[i], generated);
    }
    report.tasks = runner.tasks_run();
    report.run = Clock::now() - loaded;
    return status;
  }

  const CanaryOptions options_;
  std::atomic<bool> cancelled_{false};
  absl::Mutex mu_;
  // Set once, by the starting thread.
  std::unique_ptr<EngineProcess> process_ ABSL_GUARDED_BY(mu_);
  // The starting thread's; others look once it was joined.
  absl::StatusOr<EngineInfo> info_ = absl::UnavailableError("it was not started");
  std::thread starter_;  // Last: it uses the others.
};

}  // namespace

std::unique_ptr<CanaryEngine> CanaryEngine::Start(const CanaryOptions& options) {
  return std::make_unique<ProcessCanary>(options);
}

}  // namespace resident
