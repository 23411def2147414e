// NextEngine: starts an engine on a thread of its own, while the system still ends the previous
// engine, and while the front end determines why that one ended.
//
//   thread:  take the spare, or launch and prepare a new process ─▶ Start, without the kernel
//   Take:    wait for the thread ─▶ load another generation, if there is one ─▶ launch the kernel
//
// Thread safety: Cancel may be called from any thread; the other members from one thread.
//
//   NextEngine next(options, spare);
//   ... end the previous engine ...
//   EngineInfo info;
//   absl::StatusOr<std::unique_ptr<EngineProcess>> engine = next.Take(generation, &info);
#ifndef RESIDENT_RUNTIME_DEVICE_NEXT_ENGINE_H_
#define RESIDENT_RUNTIME_DEVICE_NEXT_ENGINE_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/device_control.h"
#include "runtime/device/engine_process.h"
#include "runtime/device/spare_engine.h"
#include "runtime/engine/generation.h"

namespace resident {

class NextEngine {
 public:
  // `spare` may be null. The engine is started with options.engine.generation.
  NextEngine(const DeviceOptions& options, std::shared_ptr<SpareEngine> spare);
  // Kills and reaps an engine that was not taken.
  ~NextEngine();
  NextEngine(const NextEngine&) = delete;
  NextEngine& operator=(const NextEngine&) = delete;

  // Waits until the engine has started, and launches the kernel with `generation`; null: only the
  // built-in operators. Call it once. Errors: those of EngineProcess::Launch, Prepare and Start,
  // and of Engine::Preload and Switch.
  absl::StatusOr<std::unique_ptr<EngineProcess>> Take(
      const std::shared_ptr<const Generation>& generation, EngineInfo* info);
  // Kills the engine, so that Take returns soon.
  void Cancel();

  // After Take: whether it was the spare, and the durations of all steps, also those before Take.
  bool from_spare() const { return from_spare_; }
  const std::vector<EnginePhase>& phases() const { return phases_; }
  // Number of changes of generation of this engine so far (SwitchSignals).
  uint64_t changes() const { return changes_; }

 private:
  void BringUp();
  absl::StatusOr<EngineInfo> StartSpare();
  absl::StatusOr<EngineInfo> StartNew();
  // Stores the process in this object. CANCELLED: it is not needed any more.
  absl::StatusOr<EngineProcess*> Hold(std::unique_ptr<EngineProcess> process);
  absl::Status LaunchKernel(EngineProcess& process, const Generation* generation, EngineInfo* info);

  const DeviceOptions options_;
  const std::shared_ptr<SpareEngine> spare_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<EngineProcess> process_ ABSL_GUARDED_BY(mu_);

  // Written by the thread; read by others after it was joined.
  absl::StatusOr<EngineInfo> info_ = absl::UnknownError("not started");
  bool from_spare_ = false;
  uint64_t changes_ = 0;
  std::vector<EnginePhase> phases_;
  std::thread thread_;  // Last member, because it uses the others.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_NEXT_ENGINE_H_
