// OperatorEvent: one change of an operator, as it is reported; RegistryChange: the same change, as
// it is made. The state store keeps it, Watch streams it and the audit log lists it. ChangeContext:
// the roll-out that a change belongs to; PlanRecord: what a daemon knows of a roll-out;
// FolderRecord: what it knows of its --operators_dir.
//
// The state store assigns revisions. They increase by one with each event, also across restarts.
#ifndef RESIDENT_RUNTIME_MODEL_OPERATOR_EVENT_H_
#define RESIDENT_RUNTIME_MODEL_OPERATOR_EVENT_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/model/version_spec.h"

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

// Of Operators.Claim: names in a claim, plans that are remembered, bytes of a holder, and the
// lease.
inline constexpr uint32_t kMaxClaimedNames = 1024;
inline constexpr uint32_t kMaxPlanRecords = 8;
inline constexpr uint32_t kMaxHolderBytes = 128;
inline constexpr uint32_t kMinClaimTtlMs = 1'000;
inline constexpr uint32_t kDefaultClaimTtlMs = 30'000;
inline constexpr uint32_t kMaxClaimTtlMs = 600'000;

// Which plan a change belongs to; see resident.v1.ChangeContext.
struct ChangeContext {
  std::string plan = {};
  std::string set = {};
  uint64_t lease = 0;
  bool drift = false;
  // Called while the change is committed, when no other change is made: an error refuses it. Null:
  // what the caller may do was checked before.
  std::function<absl::Status()> authorize = {};
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
  // ChangeContext of the call that made the change.
  std::string plan = {};
  std::string set = {};
};

// The values are those of resident.v1.PlanState.State.
enum class PlanState : uint8_t { kRunning = 1, kFailed = 2, kDone = 3 };

struct PlanRecord {
  std::string plan = {};
  std::string set = {};
  PlanState state = PlanState::kRunning;
  std::string holder = {};
  int64_t claimed_ms = 0;  // Since 1970, when the plan was claimed first.
  // Each name that is claimed, with the content hash of its active version at that time; empty: it
  // had none.
  std::vector<std::pair<std::string, std::string>> before = {};
};

// What a daemon last did with its --operators_dir.
struct FolderRecord {
  std::string digest = {};  // Of the folder's files; empty: there is no record.
  std::string plan = {};
  std::string set = {};
  bool applied = false;
  // The plan that had the claim when the folder got these files. It does not supersede them.
  std::string during = {};
  // The plan of this set that was claimed after the folder had these files, and is done, and when
  // (since 1970); empty: none.
  std::string superseded_by = {};
  int64_t superseded_ms = 0;
};

// The last plans of a daemon, and which of them has its claim.
struct PlanTable {
  std::deque<PlanRecord> plans = {};  // Oldest first.
  // Of the claim; 0: there is none.
  uint64_t lease = 0;
  std::string claimed = {};  // Its plan.
  std::chrono::milliseconds ttl{0};
  FolderRecord folder = {};
};

// RegistryChange: one change of the installed operators. The registry makes it, and the state store
// writes it. `commit` receives it without revision and switched_at; the call returns it with them.
struct RegistryChange {
  EventKind kind = EventKind::kInstalled;
  std::string name;
  // The version that changes: loaded, activated, taken out of service, or on trial.
  uint32_t version = 0;
  // The active version after the change, and before it; 0: none.
  uint32_t active_version = 0;
  uint32_t previous_version = 0;
  // The standby version after the change; 0: none.
  uint32_t standby_version = 0;
  // Versions that the change removes from their slots.
  std::vector<uint32_t> retired;
  uint64_t revision = 0;
  // All lookups after this time return the new state.
  std::chrono::steady_clock::time_point switched_at;

  // Additional data, valid during `commit`: the spec for kInstalled and kActivated, the label and
  // slot for kInstalled, the shares for kPromoted, the reason for kQuarantined.
  const VersionSpec* spec = nullptr;
  // Other versions of the operator lose it.
  std::string label;
  uint32_t slot = kNoSlot;
  double traffic_percent = 0;
  double shadow_percent = 0;
  std::string reason;
  // kQuarantined: the error of `commit`. The quarantine takes effect even if it is not OK.
  absl::Status commit_status;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_OPERATOR_EVENT_H_
