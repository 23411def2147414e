// EngineReaper: waits for engine processes that were killed and that nobody needs any more. The
// system takes a GPU's context back in 60 to 700 ms.
//
// One thread for the whole program, which is never ended: what it waits for at the program's end
// the system takes back.
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
  // How it ended; nullopt: the system has not ended it within ChildProcess::kReapLimit.
  using Reaped = std::function<void(const std::optional<ChildExit>&)>;

  // Kills the engine, if it still runs, and destroys the object once it is gone. `reaped`, which
  // may be null, is called then, from the reaper's thread: it must not block.
  static void Reap(std::unique_ptr<EngineProcess> process, Reaped reaped = nullptr);

  // Starts the thread now, and not with the first Reap: a process that cannot have another thread
  // is to find that out at its start.
  static void Start();
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ENGINE_REAPER_H_
