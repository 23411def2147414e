// EngineReaper: waits for killed engine processes that are not used any more. The system takes 60
// to 700 ms to destroy a GPU's context.
//
// It has one thread for the whole program, which never ends: when the program ends, the system
// reaps the remaining processes.
//
// Thread safety: may be called from any thread.
//
//   EngineReaper::Reap(std::move(process), [](const std::optional<ChildExit>& exit) { ... });
#ifndef RESIDENT_RUNTIME_DEVICE_ENGINE_REAPER_H_
#define RESIDENT_RUNTIME_DEVICE_ENGINE_REAPER_H_

#include <functional>
#include <memory>
#include <optional>

#include "runtime/base/process/child_process.h"
#include "runtime/device/engine_process.h"

namespace resident {

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

#endif  // RESIDENT_RUNTIME_DEVICE_ENGINE_REAPER_H_
