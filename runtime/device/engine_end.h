// EngineEnd: why an engine exited or must be terminated, and which tasks were running.
//
//   const auto exit = engine.child().Wait(seconds(0));
//   if (exit) return DescribeExit(engine, name, *exit);
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
#include "runtime/queue/device_queue.h"

namespace resident {

struct EngineEnd {
  // nullopt: the device shuts down.
  std::optional<EngineEndReason> reason;
  // Message, also for its tasks that failed.
  std::string cause;
  // Operator slots that caused it.
  std::vector<uint32_t> suspects;
  // It was killed and has no task in flight: it cannot write to a task's memory, and the supervisor
  // does not wait until the system has ended it.
  bool drained = false;
};

// `name`: "engine of device 0".
EngineEnd DescribeExit(EngineProcess& engine, const std::string& name, const ChildExit& exit);
// For an engine that must be terminated because a call to it failed and it has not ended.
EngineEnd DescribeFailedCall(const std::string& name, const char* call, const absl::Status& status);

// The arguments of a task as text: part of the message about a task that was running when its
// engine was lost.
//
//   ArgumentsText(task);  // "n=1024, 0x7f00, 0x3f800000", "f32[3, 4] at 0x7f00, 0x2a"

// For a compact task: its length and all its words, even if the operator has fewer arguments. For
// other tasks: dtype, shape and address of a tensor, the bits of a scalar.
std::string ArgumentsText(const RunningTask& task);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ENGINE_END_H_
