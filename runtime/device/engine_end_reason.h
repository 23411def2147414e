// EngineEndReason: why an engine was lost.
#ifndef RESIDENT_RUNTIME_DEVICE_ENGINE_END_REASON_H_
#define RESIDENT_RUNTIME_DEVICE_ENGINE_END_REASON_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace resident {

enum class EngineEndReason : uint8_t {
  // It faulted: its process ended by itself, or its device's context failed.
  kFault,
  // It did not respond, or a task exceeded its time limit, and it was terminated.
  kHang,
  // Its heartbeat stopped, and it was terminated.
  kHeartbeat,
  // Something else ended its process.
  kKilled,
  // A replacement for another engine did not start.
  kStart,
};

// All reasons, in the order of their values.
inline constexpr std::array<EngineEndReason, 5> kEngineEndReasons = {
    EngineEndReason::kFault, EngineEndReason::kHang, EngineEndReason::kHeartbeat,
    EngineEndReason::kKilled, EngineEndReason::kStart};

// Returns the public name: the value of the label `cause` of resident_engine_restarts_total.
constexpr const char* ReasonLabel(EngineEndReason reason) {
  switch (reason) {
    case EngineEndReason::kFault:
      return "fault";
    case EngineEndReason::kHang:
      return "hang";
    case EngineEndReason::kHeartbeat:
      return "heartbeat";
    case EngineEndReason::kKilled:
      return "killed";
    case EngineEndReason::kStart:
      return "start";
  }
  return "";
}

// The list contains every value that has a label.
static_assert([] {
  for (size_t i = 0; i <= kEngineEndReasons.size(); ++i) {
    const bool labelled = *ReasonLabel(static_cast<EngineEndReason>(i)) != '\0';
    const bool listed =
        i < kEngineEndReasons.size() && kEngineEndReasons[i] == static_cast<EngineEndReason>(i);
    if (labelled != listed) return false;
  }
  return true;
}());

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ENGINE_END_REASON_H_
