// OperatorEvent: one change of an operator. The state store keeps it, Watch streams it and the
// audit log lists it.
//
// The state store assigns revisions. They increase by one with each event, also across restarts.
#ifndef RESIDENT_RUNTIME_MODEL_OPERATOR_EVENT_H_
#define RESIDENT_RUNTIME_MODEL_OPERATOR_EVENT_H_

#include <cstdint>
#include <string>

namespace resident {

// The values are those of resident.v1.OperatorEvent.Kind.
enum class EventKind : uint8_t {
  kInstalled = 1,
  kRejected = 2,
  kActivated = 3,
  kRolledBack = 4,
  kRemoved = 5,
  kPromoted = 6,
  kQuarantined = 7,
  kRetired = 8,
  kGeneration = 9,
  kRegressed = 10,
};

struct OperatorEvent {
  uint64_t revision = 0;  // Set by the store.
  int64_t time_ms = 0;    // Since 1970; set by the store.
  EventKind kind = EventKind::kInstalled;
  std::string operator_name = {};  // Empty for kGeneration.
  uint32_t version = 0;
  // Identity of the caller, or "residentd" for actions of the daemon itself.
  std::string actor = {};
  std::string content_hash = {};
  std::string message = {};
  uint64_t generation = 0;  // Only for kGeneration.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_OPERATOR_EVENT_H_
