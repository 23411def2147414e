// Registry: the operators of this daemon, their versions and slots, and which version is
// active.
//
// Resolves a name and a version to what a task needs, pinned: the jump-table slot, the
// signature, how a wide task is split, and its counters. It does not depend on gRPC, CUDA
// or the disk.
//
// Built-in operator i has slot 2 * i, and test operators follow; they never change. An
// installed operator has at most two versions in slots: one active, one standby (loaded,
// previous, or quarantined).
//
//            Load            Activate              Rollback
//   reserved ─────▶ loaded ─────────────▶ active ─────────────▶ loaded
//                     │  ▲ Activate of another │
//                     │  └──── previous ◀──────┘
//                     │             │
//                     ▼             ▼          Quarantine: of active, previous, loaded
//                  retired: Load of another version, Retire, Remove
//
// The caller of the changes (one OperatorManager) adds a version in two steps: Reserve
// assigns a slot, which no task can name yet; once the engines have loaded it, Load
// publishes it. Every change is passed to `commit` before it becomes visible; if `commit`
// fails, the change is not made (except for Quarantine, which is committed again before the
// next change). `commit` returns the change's revision. It runs while the change lock is
// held, so it must not wait for a disk; the caller syncs after the change has returned.
//
// The switch. What serves (active, standby, trial) is one immutable structure behind one
// atomic pointer. A switch is one exchange of that pointer: it does not wait for readers,
// and readers do not wait for it. The old structure is freed after all readers that may
// have loaded it have finished (the exchange is followed by taking the writer lock).
//
// Memory ordering: the exchange is sequentially consistent. A Resolve that begins after a
// change returned, in any thread, sees the change. A concurrent Resolve sees either all of
// it or nothing.
//
// Slots: a version that was removed from service keeps its slot until no reference to it is
// left (slot_pool.h); only then can Reserve assign the slot again.
//
// Version numbers increase and are never reused, even after the operator was removed: the
// version in a result is unambiguous. A version in a slot may also have a label, which no other
// version of the operator has; it is part of what serves, and so it moves in the same exchange as
// the versions.
//
// Thread safety: all members may be called from any thread. Changes are serialised,
// including their `commit`, which must not start another change.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Registry> registry, Registry::Create({.devices = 1}));
//   ASSIGN_OR_RETURN(ResolvedOperator add, registry->Resolve("add", /*version=*/0));
//   task.operator_slot = add.version->slot;
//   batch.keep_alive.push_back(add.version);
#ifndef RESIDENT_RUNTIME_OPERATORS_REGISTRY_REGISTRY_H_
#define RESIDENT_RUNTIME_OPERATORS_REGISTRY_REGISTRY_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/limits.h"
#include "runtime/base/time_source.h"
#include "runtime/model/operator_event.h"
#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"
#include "runtime/model/version_spec.h"
#include "runtime/operators/registry/operator_version.h"
#include "runtime/operators/registry/operator_view.h"
#include "runtime/operators/registry/slot_pool.h"
#include "runtime/queue/operator_stats.h"

namespace resident {

struct BuiltinOperator;

// Names of built-in operators that the daemon itself runs.
inline constexpr char kCopyBytesOperator[] = "copy_bytes";
inline constexpr char kFluxRunOperator[] = "flux.run";
inline constexpr char kCompareOperator[] = "compare";

// Whether a built-in operator or a test operator (registered or not) has this name.
bool IsBuiltinName(const std::string& name);
// Whether an operator could have this name.
bool IsOperatorName(const std::string& name);

class Registry {
 public:
  struct Options {
    // Number of devices that tasks are counted for; indices are 0 to devices - 1.
    uint32_t devices = 1;
    // Also register the operators that tests use to provoke failures.
    bool test_operators = false;
    // For the time since a version left the kernel (ForEachStats); outlives the registry.
    TimeSource* time = &TimeSource::Steady();
  };
  // The counters of a version stay visible for this long after it left the kernel, but only those
  // of the versions that left last.
  static constexpr std::chrono::minutes kKeepStats{15};
  static constexpr size_t kMaxKeptStats = 1024;

  // Records a change (without waiting until it is on disk) and returns its revision, which
  // is higher than all earlier ones.
  using Commit = std::function<absl::StatusOr<uint64_t>(const RegistryChange& change)>;

  // Registers the built-in operators. INTERNAL: a built-in's signature, split or cost is not
  // valid.
  static absl::StatusOr<std::unique_ptr<Registry>> Create(const Options& options);
  ~Registry();

  // Refuses installs of names for which `has_other` is true: what else is called by a name has
  // them. Null: none. It is called with locks held. REQUIRES: no change is being made.
  void SetOtherNames(std::function<bool(const std::string& name)> has_other) {
    has_other_ = std::move(has_other);
  }

  // --- Resolving ----------------------------------------------------------------

  // Finds a native operator. No version: the active one, or the one that the trial
  // picks. NOT_FOUND: names the nearest match, or the existing versions. INVALID_ARGUMENT:
  // the operator is bytecode; two versions have a content hash with these first digits.
  // UNAVAILABLE: no version is active; the message has the reason. FAILED_PRECONDITION: that
  // version is quarantined.
  absl::StatusOr<ResolvedOperator> Resolve(const std::string& name,
                                           const VersionRef& version) const;
  // The same without waiting; nullopt: a change is being made.
  std::optional<absl::StatusOr<ResolvedOperator>> TryResolve(const std::string& name,
                                                             const VersionRef& version) const;
  // How often what serves has changed. What a Resolve returned stays right as long as this number
  // does not change, if it was read before the Resolve, and no trial runs
  // (ResolvedOperator::on_trial). A change increments it after it has become visible and before it
  // returns: who reads the number after a change has returned gets another one than before.
  uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  // The request for which Resolve returned `resolved` is not made, or resolves its operator again:
  // it does not count for the shares of a trial. If the trial has begun meanwhile, its first share
  // comes one request early. REQUIRES: it was resolved without a version.
  void Withdraw(const ResolvedOperator& resolved) const;
  // Finds a bytecode operator: version->spec.bytecode is the program. Errors as for
  // Resolve; INVALID_ARGUMENT: the operator is native.
  absl::StatusOr<ResolvedOperator> ResolveProgram(const std::string& name,
                                                  const VersionRef& version) const;
  // Finds what all versions of an operator share. Does not count as a request for a trial.
  // NOT_FOUND names the nearest match.
  absl::StatusOr<std::shared_ptr<const Operator>> FindOperator(const std::string& name) const;

  // --- Listings -----------------------------------------------------------------

  // NOT_FOUND names the nearest match.
  absl::StatusOr<OperatorView> Describe(const std::string& name) const;
  // All operators, by name.
  std::vector<OperatorView> List() const;
  // Revision of the operator's last change; 0: built in, or unknown.
  uint64_t Revision(const std::string& name) const;

  // The version that holds this slot, even if it was removed from service and is still
  // pinned; null if there is none.
  std::shared_ptr<const OperatorVersion> FindBySlot(uint32_t slot) const;
  // All versions that hold slots: built-in, reserved, loaded, active, ..., and removed from
  // service but still pinned (kRetired). A generation must have the code of each of them,
  // unless it is reserved by another install or quarantined, since queued tasks may name
  // it.
  std::vector<std::shared_ptr<const OperatorVersion>> SlotHolders() const;

  // Calls `visit` for the counters, on every device, of each version that can be called, and of
  // each that could be called at most kKeepStats ago or still has tasks. `visit` must not use the
  // registry.
  void ForEachStats(
      const std::function<void(uint32_t device, const std::shared_ptr<const OperatorStats>& stats)>&
          visit) const;

  // --- Changes ------------------------------------------------------------------
  //
  // Common errors: NOT_FOUND, FAILED_PRECONDITION (the operator is built in, and the cases
  // listed with each method), ABORTED (`expected` is not the operator's revision), errors
  // of `commit`.

  // Runs `action` while no change is in progress: `commit` is not called meanwhile, and what it
  // reads is the state after all changes that were committed before. It must not change the
  // registry.
  void BetweenChanges(absl::FunctionRef<void()> action) const;

  // Checks whether a version could be installed: its name, that its signature equals the
  // other versions', the operator's revision (0: it must not exist). Other errors than the
  // common ones: INVALID_ARGUMENT (name, signature, split), ALREADY_EXISTS (a built-in's
  // name), FAILED_PRECONDITION (different kind, the standby version is on trial),
  // RESOURCE_EXHAUSTED (too many operators).
  absl::Status CheckInstall(const std::string& name, const VersionSpec& spec,
                            std::optional<uint64_t> expected) const;
  // Returns a version with its own slot (bytecode: without one), after CheckInstall. The
  // caller passes it to Load or drops it. DEADLINE_EXCEEDED: no slot became free.
  absl::StatusOr<std::shared_ptr<OperatorVersion>> Reserve(const std::string& name,
                                                           const VersionSpec& spec,
                                                           std::optional<uint64_t> expected,
                                                           absl::Time deadline);
  // Returns a version that is the native code of `program`, with a slot of its own. Once the
  // engines have loaded it, the caller passes it to program.native->Serve. Errors: as for Reserve.
  absl::StatusOr<std::shared_ptr<OperatorVersion>> ReserveNative(
      const OperatorVersion& program, std::shared_ptr<const VersionPayload> payload,
      absl::Time deadline);
  // Makes the reserved version the operator's standby. The previous standby is retired. `label`:
  // of the version; if the active one has it, that one loses it.
  absl::StatusOr<RegistryChange> Load(std::shared_ptr<OperatorVersion> reserved,
                                      std::optional<uint64_t> expected, const Commit& commit,
                                      const std::string& label = {});

  // Makes the version (0: the standby) active; the active version becomes the previous one.
  // Ends a trial. FAILED_PRECONDITION: there is no standby; the version is active already;
  // it is quarantined and `force` is not set.
  absl::StatusOr<RegistryChange> Activate(const std::string& name, uint32_t version,
                                          std::optional<uint64_t> expected, bool force,
                                          const Commit& commit);
  // Makes the previous version active, and the active one loaded: a second Rollback does
  // not reverse this. During a trial of a loaded version it only ends the trial.
  // FAILED_PRECONDITION: there is no previous version; it is quarantined.
  absl::StatusOr<RegistryChange> Rollback(const std::string& name, std::optional<uint64_t> expected,
                                          const Commit& commit);
  // Starts a trial: of the batches that name no version, the standby (0, or its version)
  // runs `traffic_percent` instead of the active version, and `shadow_percent` of the
  // others are run by both. Picked batches are evenly spread. Both 0: ends the trial.
  // FAILED_PRECONDITION: there is no active version, no such standby, or it is quarantined.
  // INVALID_ARGUMENT: not 0 to 100.
  absl::StatusOr<RegistryChange> SetTrial(const std::string& name, uint32_t version,
                                          double traffic_percent, double shadow_percent,
                                          std::optional<uint64_t> expected, const Commit& commit);
  // Takes a version out of service. If it was active, the previous version becomes active,
  // or none. It keeps its slot as the standby. It is taken out even if `commit` fails (the
  // operator's revision then does not change): a faulty version must not keep running
  // because a disk is full. That `commit` is called again before the next change of any
  // operator, which is refused while it fails.
  absl::StatusOr<RegistryChange> Quarantine(const std::string& name, uint32_t version,
                                            const std::string& reason, const Commit& commit);
  // Removes the operator. `drained`, unless null, receives a notification for each of its
  // versions, notified when the version's last task has ended.
  absl::StatusOr<RegistryChange> Remove(const std::string& name, std::optional<uint64_t> expected,
                                        const Commit& commit,
                                        std::vector<std::shared_ptr<absl::Notification>>* drained);

  // --- Restoring ----------------------------------------------------------------

  // A version as it was stored; retired versions have only what listings show.
  struct RestoredVersion {
    uint32_t version = 0;
    VersionState state = VersionState::kLoaded;
    uint32_t slot = kNoSlot;  // This slot if it is free, otherwise another.
    VersionSpec spec = {};
    // kQuarantined: whether it still is the standby.
    bool in_slot = true;
    std::string quarantine_reason = {};
    std::string label = {};
    std::shared_ptr<const VersionPayload> payload = nullptr;
  };
  struct RestoredOperator {
    std::string name;
    uint64_t revision = 0;
    uint32_t last_version = 0;  // Highest number that was ever assigned.
    std::vector<RestoredVersion> versions;
    TrialView trial;
  };
  // Restores an operator. Errors: those of CheckInstall (for example, if this daemon has a
  // built-in operator of that name).
  absl::Status Restore(const RestoredOperator& op);
  // Marks the numbers up to `version` of a removed operator of that name as used.
  void RestoreRemoved(const std::string& name, uint32_t version);

 private:
  // What serves. Immutable except for the counters.
  struct Serving {
    // The same versions and labels, without a trial; the caller sets standby_reason.
    std::unique_ptr<Serving> Keep() const;
    // The same with active and standby exchanged.
    std::unique_ptr<Serving> Swap(TimeSource::TimePoint now) const;

    std::shared_ptr<const OperatorVersion> active;
    std::shared_ptr<const OperatorVersion> standby;
    std::string active_label;
    std::string standby_label;
    TimeSource::TimePoint active_since;  // Of `active`.
    std::string standby_reason;          // Why it is quarantined.
    // Shares of 2^32; a batch is picked when the low half of its counter wraps.
    uint64_t traffic_share = 0;
    uint64_t shadow_share = 0;
    TrialView trial;
    mutable std::atomic<uint64_t> traffic{0};
    mutable std::atomic<uint64_t> shadow{0};
  };
  struct Entry {
    ~Entry() { delete serving.load(std::memory_order_relaxed); }
    std::shared_ptr<const Operator> op;
    std::atomic<const Serving*> serving{nullptr};
    std::atomic<uint64_t> revision{0};
    const BuiltinOperator* builtin = nullptr;  // Null if it is installed.
    uint32_t last_version = 0;                 // Guarded by change_mu_.
    std::deque<VersionView> retired;           // Guarded by mu_; the last kMaxRetiredVersions.
  };

  explicit Registry(const Options& options);
  absl::Status AddBuiltin(const BuiltinOperator& op, uint32_t slot, bool trusted);

  Entry* Find(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status NoSuchOperator(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  OperatorView DescribeEntry(const Entry& entry) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::StatusOr<ResolvedOperator> ResolveIn(const Entry& entry, const VersionRef& version) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The version in a slot that `version` names.
  static absl::StatusOr<ResolvedOperator> FindNamed(const Entry& entry, const Serving& serving,
                                                    const VersionRef& version);

  absl::Status AssignSlot(const std::shared_ptr<OperatorVersion>& version, absl::Time deadline);
  VersionStats MakeStats(const std::string& name, uint32_t version) const;
  absl::Status CheckInstallLocked(const std::string& name, const VersionSpec& spec,
                                  std::optional<uint64_t> expected) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  // Finds an installed operator for a change.
  absl::StatusOr<Entry*> FindForChange(const std::string& name,
                                       std::optional<uint64_t> expected) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  // Commits the quarantines whose commit failed, then the change.
  absl::StatusOr<uint64_t> CommitInOrder(const RegistryChange& change, const Commit& commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  // Commits, then switches to `next`.
  absl::StatusOr<RegistryChange> Apply(Entry& entry, RegistryChange change,
                                       std::unique_ptr<Serving> next, const Commit& commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void Switch(Entry& entry, std::unique_ptr<Serving> next, RegistryChange& change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void RecordRetired(Entry& entry, const OperatorVersion& version, VersionState state,
                     const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Keeps the counters of a version that can no longer be called, see ForEachStats.
  void KeepStats(const std::shared_ptr<const OperatorVersion>& version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RecordRemoved(const std::string& name, uint32_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);

  absl::StatusOr<ResolvedOperator> ResolveLocked(const std::string& name,
                                                 const VersionRef& version) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const Options options_;
  std::atomic<uint64_t> changes_{1};
  std::shared_ptr<SlotPool> slots_;
  // Serialises changes. Taken before mu_; held while a change is committed.
  mutable absl::Mutex change_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  // Readers hold it while they use an entry. A writer takes it only to add or remove
  // entries, and to wait until earlier readers have finished.
  std::function<bool(const std::string& name)> has_other_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::unique_ptr<Entry>> operators_ ABSL_GUARDED_BY(mu_);
  // Counters of versions that can no longer be called, oldest first.
  struct KeptStats {
    VersionStats stats;
    std::weak_ptr<const OperatorVersion> version;  // Expired: it has no more tasks.
    TimeSource::TimePoint left;
    bool IsOver(TimeSource::TimePoint now) const {
      return now - left > kKeepStats && version.expired();
    }
  };
  std::deque<KeptStats> kept_stats_ ABSL_GUARDED_BY(mu_);
  // Last version numbers of removed operators, oldest first, each name once. An entry that is
  // dropped raises the floor, the number above which every new operator starts.
  std::deque<std::pair<std::string, uint32_t>> removed_ ABSL_GUARDED_BY(change_mu_);
  uint32_t version_floor_ ABSL_GUARDED_BY(change_mu_) = 0;
  // Quarantines that took effect and whose commit failed, oldest first.
  struct Overdue {
    RegistryChange change;
    Commit commit;
  };
  std::deque<Overdue> overdue_ ABSL_GUARDED_BY(change_mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_REGISTRY_REGISTRY_H_
