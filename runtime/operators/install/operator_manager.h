// OperatorManager: the interface for all changes of operators.
//
//   Install   compile → inspect → validation → load (a new generation) → activate, if requested
//   Activate, Rollback, Promote   a change of the registry: no engine is involved
//   Remove    a change of the registry; the last task ends later
//   automatic: quarantine after a fault, rollback after a regression, shadow comparison
//
// A change is appended to the state store before it is visible, and is on disk before it is
// answered. INTERNAL: the change was made, but the disk failed. Changes that the manager
// makes itself (quarantine, automatic rollback) have "residentd" as their actor.
//
// Installs run in parallel up to loading, where waiting ones are loaded in one generation.
// Changes of one operator are serialised by its revision: an install or an activation is
// ABORTED if another change of the operator was made after it began.
//
// Thread safety: all members may be called from any thread. Changes wait for the disk of
// the state folder; Install waits for compilers and engines, and a forced Activate for a
// generation, which can take as long as replacing an engine. Call them on threads that may
// block.
//
//   LiveOperatorManager manager(options, sources);  // live_operator_manager.h
//   absl::Status done = manager.Install(request, on_progress, client_has_gone);
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_OPERATOR_MANAGER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_OPERATOR_MANAGER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "runtime/compile/compile_job.h"
#include "runtime/model/operator_event.h"
#include "runtime/model/version_spec.h"
#include "runtime/model/version_state.h"
#include "runtime/operators/trial/bake_watcher.h"
#include "runtime/operators/validation/example.h"

namespace resident {

struct InstallRequest {
  std::string name;
  std::string summary;
  // Signature and split as text; may be empty for an expression; bytecode has none.
  std::string signature;
  std::string split;
  OperatorKind kind = OperatorKind::kSource;
  // kSource: name of the main file; kExpression: its text; kBytecode: the program;
  // kObject: name of the file that holds it.
  std::string body;
  std::map<std::string, std::string> files;  // Name to text.
  std::vector<Example> examples;
  // 0: the daemon's --task_time_limit.
  std::chrono::milliseconds task_time_limit{0};
  uint64_t scratch_bytes = 0;
  bool allow_spills = false;
  // kUnspecified: the highest that it passes, up to the daemon's --isolation.
  Isolation isolation = Isolation::kUnspecified;
  // kBytecode: its native form follows the answer, or the answer waits for it, or there is none.
  enum class Native : uint8_t { kFollows, kWait, kOff };
  Native native = Native::kFollows;
  std::optional<uint64_t> expected_revision;
  // kValidated, kLoaded or kActive.
  VersionState wait_for = VersionState::kLoaded;
  // Empty: none.
  std::string label;
  std::string actor;
  ChangeContext context;
};

// A state that an install has reached.
struct InstallProgress {
  VersionState state = VersionState::kSubmitted;
  uint32_t version = 0;   // From kLoaded on.
  uint64_t revision = 0;  // Also from kLoaded on.
  std::chrono::nanoseconds duration{0};
  std::vector<std::pair<std::string, std::chrono::nanoseconds>> steps = {};
  bool cached = false;
  std::string log = {};
  std::map<std::string, ResourceUse> resources = {};  // By compile target.
  std::string message = {};
};

// A request to change the active version.
struct SwitchRequest {
  std::string name;
  uint32_t version = 0;  // 0: the standby.
  std::optional<uint64_t> expected_revision;
  bool force = false;
  BakeOptions bake;
  std::string actor;
  ChangeContext context;
};
struct SwitchResult {
  uint32_t version = 0;           // The active version now.
  uint32_t previous_version = 0;  // The active version before; 0: none.
  uint64_t revision = 0;
  // From the call until requests used the new version. Its record is on disk when the call
  // returns OK; a crash before that may lose the change.
  std::chrono::nanoseconds switch_time{0};
};

struct PromoteRequest {
  std::string name;
  uint32_t version = 0;
  std::optional<uint64_t> expected_revision;
  double shadow_percent = 0;
  double traffic_percent = 0;
  BakeOptions bake;
  std::string actor;
  ChangeContext context;
};

// A claim of names for a plan; see resident.v1.ClaimRequest.
struct PlanClaim {
  std::string plan;
  std::string set;
  std::string holder;
  std::chrono::milliseconds ttl{0};
  std::vector<std::string> names;
  uint64_t lease = 0;
  bool steal = false;
  std::optional<PlanState> state;
};
struct ClaimedPlan {
  uint64_t lease = 0;
  bool resumed = false;
  PlanRecord record;
};

class OperatorVersion;  // runtime/operators/registry/operator_version.h

class OperatorManager {
 public:
  virtual ~OperatorManager() = default;

  // `progress` is called on the calling thread, for each state from COMPILED to
  // request.wait_for, or REJECTED. `withdrawn` is polled until the version is loaded, from
  // any thread: once it returns true, compilers and validations are ended, nothing is
  // loaded and the call returns CANCELLED. Errors: see the documentation of
  // Operators.Install.
  virtual absl::Status Install(const InstallRequest& request,
                               const std::function<void(const InstallProgress&)>& progress,
                               const std::function<bool()>& withdrawn) = 0;

  // Errors: NOT_FOUND, ABORTED (stale revision), FAILED_PRECONDITION (built in; no such
  // version in a slot; quarantined and not forced).
  virtual absl::StatusOr<SwitchResult> Activate(const SwitchRequest& request) = 0;
  virtual absl::StatusOr<SwitchResult> Rollback(const SwitchRequest& request) = 0;
  // Returns the revision after the change.
  virtual absl::StatusOr<uint64_t> Promote(const PromoteRequest& request) = 0;
  // Tasks that were admitted before still run; Remove does not wait for them.
  struct Removal {
    uint64_t revision = 0;
    // For each version: notified when its last task has ended.
    std::vector<std::shared_ptr<absl::Notification>> drained;
  };
  virtual absl::StatusOr<Removal> Remove(const std::string& name,
                                         std::optional<uint64_t> expected_revision,
                                         const std::string& actor,
                                         const ChangeContext& context) = 0;

  // See Operators.Claim and Release, also for the errors. `ended`: how the plan ended; kRunning: it
  // changed nothing; nullopt: its state stays.
  virtual absl::StatusOr<ClaimedPlan> Claim(const PlanClaim& claim) = 0;
  virtual absl::Status Release(const std::string& plan, uint64_t lease,
                               std::optional<PlanState> ended) = 0;
  // `lease` is 0 if no claim is valid.
  virtual PlanTable plans() const = 0;
  // Keeps what was done with --operators_dir. Of the digest that the record has already, only
  // `applied` is taken; another one is a new record, which no plan has superseded (`during` is set
  // here). Errors: those of the disk.
  virtual absl::Status RecordFolder(const FolderRecord& folder) = 0;
  // What the set of --operators_dir lists: content hashes by name. From now on Install, Activate
  // and Remove of these names are FAILED_PRECONDITION, unless they belong to a plan,
  // ChangeContext::drift is set, or the version is the listed one (and no plan has superseded the
  // set).
  virtual void ListFolder(const std::string& set, std::map<std::string, std::string> hashes) = 0;

  // Events with a revision above `after`, oldest first. OUT_OF_RANGE: older events are
  // no longer stored.
  virtual absl::StatusOr<std::vector<OperatorEvent>> EventsAfter(uint64_t after,
                                                                 size_t max_events) const = 0;
  // Events below `before` (0: the newest), newest first; of `name` unless empty.
  virtual std::vector<OperatorEvent> EventsBefore(uint64_t before, const std::string& name,
                                                  size_t max_events) const = 0;
  virtual uint64_t revision() const = 0;
  // Calls `wake` after each event, from any thread, without locks; returns a token for
  // Unsubscribe, after which `wake` is not called any more.
  virtual uint64_t Subscribe(std::function<void()> wake) = 0;
  virtual void Unsubscribe(uint64_t token) = 0;

  // Revision of an operator's last change; 0: built in, or unknown.
  virtual uint64_t OperatorRevision(const std::string& name) const = 0;

  // Shadow comparisons of the version on trial.
  struct TrialCounters {
    uint64_t shadow_tasks = 0;
    uint64_t shadow_mismatches = 0;
    double latency_ratio = 0;  // 0: unknown.
  };
  virtual TrialCounters trial_counters(const std::string& name) const = 0;
  // Whether a version of the operator is in its bake, so that it may be rolled back automatically.
  virtual bool baking(const std::string& name) const = 0;
  // The native forms of FLUX programs.
  struct NativeCounters {
    uint64_t serving = 0;
    // Batches that also ran on the interpreter.
    uint64_t comparisons = 0;
    // Forms whose results differed from the interpreter's, when they were validated or in service.
    uint64_t mismatches = 0;
    // Forms that were taken out of service: they differed, or caused a fault.
    uint64_t quarantined = 0;
  };
  virtual NativeCounters native_counters() const { return {}; }
  // Installs whose code could not be made stoppable, by the rule that refused it, or "other".
  virtual std::map<std::string, uint64_t> isolation_refusals() const { return {}; }
  // The result of a comparison of `tasks` tasks, of which `mismatches` had other outputs. `judged`:
  // the version on trial, which was compared with the active one; or the native code of a program,
  // which was compared with the interpreter, and is taken out of service if it differs.
  virtual void RecordShadow(const OperatorVersion& judged, uint64_t tasks, uint64_t mismatches) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_OPERATOR_MANAGER_H_
