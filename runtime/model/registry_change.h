// RegistryChange: one change of what the operators are, as the registry makes it and the
// state store writes it.
#ifndef RESIDENT_RUNTIME_MODEL_REGISTRY_CHANGE_H_
#define RESIDENT_RUNTIME_MODEL_REGISTRY_CHANGE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/model/operator_event.h"
#include "runtime/model/version_spec.h"

namespace resident {

// A change, as `commit` gets it (then without revision and switched_at) and the call
// returns it.
struct RegistryChange {
  EventKind kind = EventKind::kInstalled;
  std::string name;
  // The version that the change is about: staged, active now, taken out of service, on
  // trial.
  uint32_t version = 0;
  // Serves after it, and before it; 0: none.
  uint32_t active_version = 0;
  uint32_t previous_version = 0;
  // In the standby place after it; 0: none.
  uint32_t standby_version = 0;
  // Taken out of their slots by it.
  std::vector<uint32_t> retired;
  uint64_t revision = 0;
  // Whoever asked after that saw it.
  std::chrono::steady_clock::time_point switched_at;

  // What the state store needs beside, valid during `commit`: of kInstalled the spec and slot,
  // of kPromoted the shares, of kQuarantined the reason.
  const VersionSpec* spec = nullptr;
  uint32_t slot = kNoSlot;
  double traffic_percent = 0;
  double shadow_percent = 0;
  std::string reason;
  // kQuarantined: why it could not be committed yet (it was made all the same).
  absl::Status commit_status;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_REGISTRY_CHANGE_H_
