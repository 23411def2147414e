// EngineEnd: why an engine exited or must be terminated.
//
//   if (const auto exit = engine.child().Wait(seconds(0))) return DescribeExit(engine, name,
//   *exit);
#ifndef RESIDENT_RUNTIME_DEVICE_ENGINE_END_H_
#define RESIDENT_RUNTIME_DEVICE_ENGINE_END_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/process/child_process.h"
#include "runtime/device/engine_end_reason.h"
#include "runtime/device/engine_process.h"

namespace resident {

// A broken control plane: how long until the engine must be seen to have ended. One whose device
// has faulted fails the call first and ends itself then.
inline constexpr std::chrono::seconds kEndLimit{1};

struct EngineEnd {
  // nullopt: the device shuts down.
  std::optional<EngineEndReason> reason;
  // For people, and for the tasks that it cost.
  std::string cause;
  // Operator slots that are to blame.
  std::vector<uint32_t> suspects;
  // It was killed and has no task in flight: nothing is left that it could write to, and nobody
  // waits for the system to take it back.
  bool drained = false;
};

// `name`: "engine of device 0".
EngineEnd DescribeExit(EngineProcess& engine, const std::string& name, const ChildExit& exit);
// A call to the engine failed, and it has not ended: it has to.
EngineEnd DescribeFailedCall(const std::string& name, const char* call, const absl::Status& status);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ENGINE_END_H_
