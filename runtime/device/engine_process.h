// EngineProcess: one engine process with what the front end shares with it: the
// region, the control connection, the child itself. What the engine prints comes out of this
// process's standard error, marked and limited (runtime/base/process/child_output.h).
//
// The destructor kills and reaps the process. The region stays mapped as long as
// anybody holds it.
//
// Thread safety: all members may be called from any thread; Prepare and Start once, one after the
// other.
#ifndef RESIDENT_RUNTIME_DEVICE_ENGINE_PROCESS_H_
#define RESIDENT_RUNTIME_DEVICE_ENGINE_PROCESS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/process/child_output.h"
#include "runtime/base/process/child_process.h"
#include "runtime/device/device_control.h"
#include "runtime/engine/control/engine_client.h"
#include "runtime/ring/shared_region.h"

namespace resident {

class EngineProcess {
 public:
  ~EngineProcess();
  // Creates the region and the process. Errors: as SharedRegion::Create and
  // ChildProcess::Spawn.
  static absl::StatusOr<std::unique_ptr<EngineProcess>> Launch(const DeviceOptions& options);

  // Has the engine bring its device up. Errors: as Engine::Prepare; FAILED_PRECONDITION: its ring
  // layout differs from this build's; UNAVAILABLE: the process ended (the message says how).
  absl::Status Prepare(std::chrono::milliseconds most);
  // Has it start, and checks what it reports. REQUIRES: prepared. Errors: as Engine::Start, and as
  // Prepare.
  absl::StatusOr<EngineInfo> Start(const EngineOptions& options, std::chrono::milliseconds most);
  // Both, as DeviceOptions::engine says.
  absl::StatusOr<EngineInfo> Start(std::chrono::milliseconds most);

  ChildProcess& child() { return *child_; }
  const std::shared_ptr<EngineClient>& client() const { return client_; }
  const std::shared_ptr<SharedRegion>& region() const { return region_; }
  // Becomes readable when the process ends, before the system has taken its device's context down:
  // earlier than the child's pidfd, which tells that it is gone.
  int lifeline() const { return lifeline_; }
  // What Prepare took.
  const std::vector<EnginePhase>& prepare_phases() const { return prepare_phases_; }

  // The counter that rises while the process lives.
  uint64_t heartbeat() const;
  // What ended the engine, as it saw it itself; empty if it did not say.
  std::string exit_reason() const;

 private:
  EngineProcess(const DeviceOptions& options, std::shared_ptr<SharedRegion> region,
                std::unique_ptr<ChildOutput> output, std::unique_ptr<ChildProcess> child,
                std::shared_ptr<EngineClient> client, int lifeline)
      : options_(options.engine),
        region_(std::move(region)),
        output_(std::move(output)),
        child_(std::move(child)),
        client_(std::move(client)),
        lifeline_(lifeline) {
    if (options_.memory_bytes == 0) options_.memory_bytes = options.limits.device_memory_mib << 20;
  }

  // What a failed call of Prepare or Start comes from.
  absl::Status Explain(const absl::Status& status);

  EngineOptions options_;
  const std::shared_ptr<SharedRegion> region_;
  const std::unique_ptr<ChildOutput> output_;  // Ends after the child.
  const std::unique_ptr<ChildProcess> child_;
  const std::shared_ptr<EngineClient> client_;
  const int lifeline_;
  std::vector<EnginePhase> prepare_phases_;
};

// OK, or FAILED_PRECONDITION when an engine of that layout must not be used.
absl::Status CheckLayout(uint64_t engine_layout_hash);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ENGINE_PROCESS_H_
