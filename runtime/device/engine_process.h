// EngineProcess: one engine process: the child, its shared region and its control connection. The
// engine's output is written to this process's standard error, with a prefix and a limit
// (runtime/base/process/child_output.h).
//
// The destructor kills and reaps the process. The region stays mapped while there are references
// to it.
//
// Thread safety: all members may be called from any thread, but Prepare and Start only once, one
// after the other.
#ifndef RESIDENT_RUNTIME_DEVICE_ENGINE_PROCESS_H_
#define RESIDENT_RUNTIME_DEVICE_ENGINE_PROCESS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/process/child_output.h"
#include "runtime/base/process/child_process.h"
#include "runtime/device/device_control.h"
#include "runtime/engine/control/engine_client.h"
#include "runtime/ring/shared_region.h"

namespace resident {

// How long an engine may take to end after its control connection has failed. If its device has
// faulted, the engine first returns an error for the call and then exits.
inline constexpr std::chrono::seconds kEngineEndLimit{1};

class EngineProcess {
 public:
  ~EngineProcess();
  // Creates the region and the process. Errors: those of SharedRegion::Create and
  // ChildProcess::Spawn.
  static absl::StatusOr<std::unique_ptr<EngineProcess>> Launch(const DeviceOptions& options);

  // Calls Engine::Prepare in the engine. Errors: those of Engine::Prepare; UNAVAILABLE: the process
  // ended (the message says how).
  absl::Status Prepare(std::chrono::milliseconds timeout);
  // Calls Engine::Start in the engine. REQUIRES: prepared. Errors: those of Engine::Start and
  // Prepare; FAILED_PRECONDITION: the engine's ring layout differs from this build's.
  absl::StatusOr<EngineInfo> Start(const EngineOptions& options, std::chrono::milliseconds timeout);
  // Calls Prepare, then Start with DeviceOptions::engine.
  absl::StatusOr<EngineInfo> Start(std::chrono::milliseconds timeout);

  ChildProcess& child() { return *child_; }
  const std::shared_ptr<EngineClient>& client() const { return client_; }
  const std::shared_ptr<SharedRegion>& region() const { return region_; }
  // Becomes readable when the process begins to end. The child's pidfd becomes readable later, when
  // the system has destroyed the device's context.
  int lifeline() const { return lifeline_; }
  // Durations of the steps of Prepare.
  const std::vector<EnginePhase>& prepare_phases() const { return prepare_phases_; }

  // A counter that the process increments while it runs.
  uint64_t heartbeat() const;
  // Why the engine ended, as it reported itself; empty if it did not.
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

  // Returns the status of a failed Prepare or Start, with the process's exit if it has ended.
  absl::Status Explain(const absl::Status& status);

  EngineOptions options_;
  const std::shared_ptr<SharedRegion> region_;
  const std::unique_ptr<ChildOutput> output_;  // Destroyed after the child.
  const std::unique_ptr<ChildProcess> child_;
  const std::shared_ptr<EngineClient> client_;
  const int lifeline_;
  std::vector<EnginePhase> prepare_phases_;
  bool prepared_ = false;
};

// Returns FAILED_PRECONDITION if an engine with that layout must not be used.
absl::Status CheckLayout(uint64_t engine_layout_hash);

// EngineReaper: waits for killed engine processes that are not used any more. The system takes 60
// to 700 ms to destroy a GPU's context.
//
// It has one thread for the whole program, which never ends: when the program ends, the system
// reaps the remaining processes.
//
//   EngineReaper::Reap(std::move(process), [](const std::optional<ChildExit>& exit) { ... });
class EngineReaper {
 public:
  // Receives how the engine ended; nullopt: it has not ended within ChildProcess::kReapLimit.
  using Reaped = std::function<void(const std::optional<ChildExit>&)>;

  // Kills the engine, if it still runs, and destroys the object when it has ended. Then `reaped`,
  // which may be null, is called on the reaper's thread; it must not block.
  static void Reap(std::unique_ptr<EngineProcess> process, Reaped reaped = nullptr);

  // Starts the thread now instead of with the first Reap, so that a process that cannot have
  // another thread fails at its start.
  static void Start();
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ENGINE_PROCESS_H_
