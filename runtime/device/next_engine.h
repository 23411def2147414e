// NextEngine: an engine that is being brought up, on a thread of its own: while the engine that it
// replaces is still being taken down, and while the front end finds out why that one ended.
//
//   brings up:  the spare, or a new process that is prepared ─▶ Start, with the kernel off the
//   device Take:       waits for that; another generation, if there is one by now ─▶ launches the
//   kernel
//
// Thread safety: Cancel from any thread; the rest from one.
//
//   NextEngine next(options, spare);
//   ... end what is left of the engine before ...
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
  // `spare` may be null. options.engine.generation is what it is started with.
  NextEngine(const DeviceOptions& options, std::shared_ptr<SpareEngine> spare);
  // Kills and reaps what was not taken.
  ~NextEngine();
  NextEngine(const NextEngine&) = delete;
  NextEngine& operator=(const NextEngine&) = delete;

  // Waits until it is up, and launches the kernel with `generation`; null: the built-in operators
  // alone. Once. Errors: as EngineProcess::Launch, Prepare and Start, and as Engine::Preload and
  // Switch.
  absl::StatusOr<std::unique_ptr<EngineProcess>> Take(
      const std::shared_ptr<const Generation>& generation, EngineInfo* info);
  // Take returns soon.
  void Cancel();

  // Once taken: whether it was the spare, and what the steps took, those before Take among them.
  bool from_spare() const { return from_spare_; }
  const std::vector<EnginePhase>& phases() const { return phases_; }
  // How many changes of generation it has made (SwitchSignals).
  uint64_t changes() const { return changes_; }

 private:
  void BringUp();
  absl::StatusOr<EngineInfo> StartSpare();
  absl::StatusOr<EngineInfo> StartNew();
  // Makes the process the object's; CANCELLED: it is not needed any more.
  absl::StatusOr<EngineProcess*> Hold(std::unique_ptr<EngineProcess> process);
  absl::Status LaunchKernel(EngineProcess& process, const Generation* generation, EngineInfo* info);

  const DeviceOptions options_;
  const std::shared_ptr<SpareEngine> spare_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<EngineProcess> process_ ABSL_GUARDED_BY(mu_);

  // The thread's; others look once it was joined.
  absl::StatusOr<EngineInfo> info_ = absl::UnknownError("not started");
  bool from_spare_ = false;
  uint64_t changes_ = 0;
  std::vector<EnginePhase> phases_;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_NEXT_ENGINE_H_
