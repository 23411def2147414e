// VersionState: the state of a version of an operator.
//
//   submitted → compiled → inspected → validated → loaded ─▶ active ◀─▶ previous
//        ↘ rejected                                 │          │           │
//                                                   └─ retired ◀───────────┘
//                                    quarantined ◀── loaded, active, previous
//
// The values are those of resident.v1.VersionState.
#ifndef RESIDENT_RUNTIME_MODEL_VERSION_STATE_H_
#define RESIDENT_RUNTIME_MODEL_VERSION_STATE_H_

#include <cstdint>

namespace resident {

enum class VersionState : uint8_t {
  kSubmitted = 1,
  kCompiled = 2,
  kInspected = 3,
  kValidated = 4,
  // In the standby slot; it has not been active yet.
  kLoaded = 5,
  kActive = 6,
  // Was active before the current active version; a rollback activates it again.
  kPrevious = 7,
  // No longer in the kernel.
  kRetired = 8,
  kQuarantined = 9,
  kRejected = 10,
};

// "loaded".
constexpr const char* VersionStateName(VersionState state) {
  switch (state) {
    case VersionState::kSubmitted:
      return "submitted";
    case VersionState::kCompiled:
      return "compiled";
    case VersionState::kInspected:
      return "inspected";
    case VersionState::kValidated:
      return "validated";
    case VersionState::kLoaded:
      return "loaded";
    case VersionState::kActive:
      return "active";
    case VersionState::kPrevious:
      return "previous";
    case VersionState::kRetired:
      return "retired";
    case VersionState::kQuarantined:
      return "quarantined";
    case VersionState::kRejected:
      return "rejected";
  }
  return "unknown";
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_VERSION_STATE_H_
