// Registry: the operators of this daemon, their versions and slots, and which version
// serves.
//
// Resolves a name and version to what a task needs, pinned: the jump-table slot, the
// signature, how a wide task is split, and where it is counted. It knows no gRPC, no CUDA
// and no disk.
//
// Built-in operator i has slot 2 * i, and test operators follow; they never change. An
// installed operator has at most two versions in slots: one active, one standby (staged,
// previous, or quarantined).
//
//            Stage            Activate              Rollback
//   reserved ─────▶ staged ─────────────▶ active ─────────────▶ staged
//                     │  ▲ Activate of another │
//                     │  └──── previous ◀──────┘
//                     │             │
//                     ▼             ▼          Quarantine: of active, previous, staged
//                  retired: Stage of another version, Retire, Remove
//
// Who changes it (one OperatorManager) goes in two steps to a new version: Reserve gives
// it a slot, which no task can name yet; once the engines have it there, Stage makes it
// known. Every change is given to `commit` before anybody can see it; if that fails, the
// change does not happen (but for Quarantine, which is committed again before the next
// change). `commit` returns the change's revision. It runs under the lock of changes, so it
// must not wait for a disk; who called syncs once the change has returned.
//
// The switch. What serves (active, standby, trial) is one immutable structure behind one
// atomic pointer. A switch is one exchange of that pointer: it waits for no reader, and
// no reader for it. The structure before is freed once the readers that may have loaded
// it have gone (the writer's lock is taken for that afterwards).
//
// Memory ordering: the exchange is sequentially consistent. A Resolve that begins after a
// change returned, in any thread, sees the change. One that runs meanwhile sees all of it
// or nothing.
//
// Slots: a version that was taken out keeps its slot until nobody pins it
// (slot_pool.h); only then can Reserve give the slot away.
//
// Version numbers rise and are not used again, also after the operator was removed: a
// result's version always means one thing.
//
// Thread safety: all members may be called from any thread. Changes are serialised, each
// including its `commit`, which must not call back into a change.
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
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/limits.h"
#include "runtime/model/operator_event.h"
#include "runtime/model/registry_change.h"
#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"
#include "runtime/model/version_spec.h"
#include "runtime/operators/registry/operator_version.h"
#include "runtime/operators/registry/operator_view.h"
#include "runtime/operators/registry/slot_pool.h"
#include "runtime/queue/operator_stats.h"

namespace resident {

// Names of built-in operators that the daemon itself runs.
inline constexpr char kCopyBytesOperator[] = "copy_bytes";
inline constexpr char kFluxRunOperator[] = "flux.run";
inline constexpr char kCompareOperator[] = "compare";

// Whether a built-in operator or a test operator (registered or not) has this name.
bool IsBuiltinName(const std::string& name);

class Registry {
 public:
  struct Options {
    // Devices that tasks are counted for; their indices are 0 to devices - 1.
    uint32_t devices = 1;
    // Also register the operators that exist to go wrong.
    bool test_operators = false;
  };

  // Writes a change down (not: waits until it is on disk) and returns its revision, which is
  // above all earlier ones.
  using Commit = std::function<absl::StatusOr<uint64_t>(const RegistryChange& change)>;

  // The built-in operators. INTERNAL: a built-in's signature or split is not valid.
  static absl::StatusOr<std::unique_ptr<Registry>> Create(const Options& options);
  ~Registry();

  // --- For every batch ----------------------------------------------------------

  // A native operator. `version` 0: the active one, or the one that its trial picks.
  // NOT_FOUND: names the nearest match, or the versions there are. INVALID_ARGUMENT: it is
  // bytecode. UNAVAILABLE: no version is active, and why. FAILED_PRECONDITION: that version
  // is quarantined.
  absl::StatusOr<ResolvedOperator> Resolve(const std::string& name, uint32_t version) const;
  // A bytecode operator: version->spec.bytecode is the program. Errors: likewise;
  // INVALID_ARGUMENT: it is native.
  absl::StatusOr<ResolvedOperator> ResolveProgram(const std::string& name, uint32_t version) const;

  // --- For who looks ------------------------------------------------------------

  // NOT_FOUND names the nearest match.
  absl::StatusOr<OperatorView> Describe(const std::string& name) const;
  // All operators, by name.
  std::vector<OperatorView> List() const;
  // Revision of the operator's last change; 0: built in, or unknown.
  uint64_t Revision(const std::string& name) const;

  // The version that has this slot, also one that was taken out and is still pinned;
  // null if none has.
  std::shared_ptr<const OperatorVersion> FindBySlot(uint32_t slot) const;
  // All that have slots: built-in, reserved, staged, active, ..., taken out and still
  // pinned (kRetired). A generation must have the code of every one of these that is not
  // reserved by others or quarantined, since queued tasks may name it.
  std::vector<std::shared_ptr<const OperatorVersion>> SlotHolders() const;

  // Calls `visit` for the counters of every operator version on every device.
  void ForEachStats(
      const std::function<void(uint32_t device, const std::shared_ptr<const OperatorStats>& stats)>&
          visit) const;

  // --- Changes ------------------------------------------------------------------
  //
  // Common errors: NOT_FOUND, FAILED_PRECONDITION (built in, and what each says), ABORTED
  // (`expected` is not the operator's revision), those of `commit`.

  // Whether a version could be installed: its name, its signature against the other
  // versions', the operator's revision (0: it must not exist). Errors beside the common
  // ones: INVALID_ARGUMENT (name, signature, split), ALREADY_EXISTS (a built-in's name),
  // FAILED_PRECONDITION (other kind, the standby version is on trial),
  // RESOURCE_EXHAUSTED (too many operators).
  absl::Status CheckInstall(const std::string& name, const VersionSpec& spec,
                            std::optional<uint64_t> expected) const;
  // A version with a slot of its own (bytecode: without), as CheckInstall allows it; to be
  // given to Stage, or dropped. DEADLINE_EXCEEDED: no slot became free.
  absl::StatusOr<std::shared_ptr<OperatorVersion>> Reserve(const std::string& name,
                                                           const VersionSpec& spec,
                                                           std::optional<uint64_t> expected,
                                                           absl::Time deadline);
  // Makes the reserved version the operator's standby. A standby that was there is retired.
  absl::StatusOr<RegistryChange> Stage(std::shared_ptr<OperatorVersion> reserved,
                                       std::optional<uint64_t> expected, const Commit& commit);

  // Makes the version (0: the standby) the active one, and the active one the previous.
  // Ends a trial. FAILED_PRECONDITION: there is no standby; it is active already; it is
  // quarantined and `force` is not set.
  absl::StatusOr<RegistryChange> Activate(const std::string& name, uint32_t version,
                                          std::optional<uint64_t> expected, bool force,
                                          const Commit& commit);
  // Makes the previous version the active one, and the active one staged: another Rollback
  // does not bring it back. During a trial of a staged version: ends the trial, no more.
  // FAILED_PRECONDITION: no version served before; it is quarantined.
  absl::StatusOr<RegistryChange> Rollback(const std::string& name, std::optional<uint64_t> expected,
                                          const Commit& commit);
  // Gives the standby (0, or its version) shares of the batches that name no version:
  // `traffic` are served by it, of the others `shadow` are to be run by it beside. Evenly
  // spread. Both 0: ends the trial. FAILED_PRECONDITION: there is no active version, or no
  // such standby, or it is quarantined. INVALID_ARGUMENT: not 0 to 100.
  absl::StatusOr<RegistryChange> SetTrial(const std::string& name, uint32_t version,
                                          double traffic_percent, double shadow_percent,
                                          std::optional<uint64_t> expected, const Commit& commit);
  // Takes a version out of service. If it was active, the previous version is active, or
  // none. It keeps its slot as the standby. Happens even when `commit` fails (then the
  // operator's revision stays): a guilty version must not serve on because a disk is full.
  // That `commit` is called again before the next change's, of whichever operator, which
  // is refused while it fails.
  absl::StatusOr<RegistryChange> Quarantine(const std::string& name, uint32_t version,
                                            const std::string& reason, const Commit& commit);
  // Takes the operator away. `drained`, unless null, gets what is notified when the last
  // task of each of its versions has ended.
  absl::StatusOr<RegistryChange> Remove(const std::string& name, std::optional<uint64_t> expected,
                                        const Commit& commit,
                                        std::vector<std::shared_ptr<absl::Notification>>* drained);

  // --- After a start ------------------------------------------------------------

  // A version as it was; of those that are retired only what listings show.
  struct RestoredVersion {
    uint32_t version = 0;
    VersionState state = VersionState::kStaged;
    uint32_t slot = kNoSlot;  // Taken if it is free, else another.
    VersionSpec spec = {};
    // kQuarantined: whether it is the standby still.
    bool in_slot = true;
    std::string quarantine_reason = {};
    std::shared_ptr<const VersionPayload> payload = nullptr;
  };
  struct RestoredOperator {
    std::string name;
    uint64_t revision = 0;
    uint32_t last_version = 0;  // Highest number that was ever given.
    std::vector<RestoredVersion> versions;
    TrialView trial;
  };
  // Brings an operator back. Errors: those of CheckInstall (a daemon that has a built-in
  // operator of that name by now).
  absl::Status Restore(const RestoredOperator& op);
  // Numbers up to `version` of an operator of that name, that was removed, are taken.
  void RestoreRemoved(const std::string& name, uint32_t version);

 private:
  // What serves. Immutable but for the counters.
  struct Serving {
    std::shared_ptr<const OperatorVersion> active;
    std::shared_ptr<const OperatorVersion> standby;
    std::string standby_reason;  // Why it is quarantined.
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
    bool builtin = false;
    uint32_t last_version = 0;        // Guarded by change_mu_.
    std::deque<VersionView> retired;  // Guarded by mu_; the last kMaxRetiredVersions.
  };

  explicit Registry(const Options& options);
  absl::Status AddBuiltin(const char* name, const char* summary, const char* signature,
                          const char* split, uint32_t slot, bool trusted);

  Entry* Find(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status NoSuchOperator(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  OperatorView ViewOf(const Entry& entry) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::StatusOr<ResolvedOperator> ResolveIn(const Entry& entry, uint32_t version) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);

  VersionStats MakeStats(const std::string& name, uint32_t version) const;
  absl::Status CheckInstallLocked(const std::string& name, const VersionSpec& spec,
                                  std::optional<uint64_t> expected) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  // The installed operator to change.
  absl::StatusOr<Entry*> FindForChange(const std::string& name,
                                       std::optional<uint64_t> expected) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  // Commits the quarantines that are overdue, then the change.
  absl::StatusOr<uint64_t> CommitInOrder(const RegistryChange& change, const Commit& commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  // Commits, then switches to `next`.
  absl::StatusOr<RegistryChange> Apply(Entry& entry, RegistryChange change,
                                       std::unique_ptr<Serving> next, const Commit& commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void Switch(Entry& entry, std::unique_ptr<Serving> next, RegistryChange& change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void NoteRetired(Entry& entry, const OperatorVersion& version, VersionState state,
                   const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteRemoved(const std::string& name, uint32_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);

  const Options options_;
  std::shared_ptr<SlotPool> slots_;
  // Serialises changes. Taken before mu_; held while a change is committed.
  mutable absl::Mutex change_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  // Held by readers for as long as they look at an entry; by a writer only to add and
  // remove entries, and to wait for the readers before it.
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::unique_ptr<Entry>> operators_ ABSL_GUARDED_BY(mu_);
  // Last version numbers of operators that were removed, oldest first. What is dropped
  // from it raises the floor, the number above which every new operator begins.
  std::deque<std::pair<std::string, uint32_t>> removed_ ABSL_GUARDED_BY(change_mu_);
  uint32_t version_floor_ ABSL_GUARDED_BY(change_mu_) = 0;
  // Quarantines that were made and whose commit failed, oldest first.
  struct Overdue {
    RegistryChange change;
    Commit commit;
  };
  std::deque<Overdue> overdue_ ABSL_GUARDED_BY(change_mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_REGISTRY_REGISTRY_H_
