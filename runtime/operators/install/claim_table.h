// ClaimTable: which plan may change which names, and what was active before the last plans.
//
// A claim is a lease: it ends its ttl after the last Claim, by this machine's steady clock. The
// table is kept in the state store. A restarted daemon cannot know how much of the lease has
// passed, so its claim is valid for the whole ttl again.
//
// A new claim and its record are made between two changes of the registry
// (Registry::BetweenChanges), and Check is called while a change is committed. So each change
// either precedes the claim, and its result is recorded, or is checked against the claim.
//
// A plan of the set in --operators_dir that was claimed after the folder got its contents, and ends
// as done, supersedes them; if it is undone, it does not any more.
//
// Thread safety: all members may be called from any thread. Claim and Release wait for the disk.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_CLAIM_TABLE_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_CLAIM_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/time_source.h"
#include "runtime/model/operator_event.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/state/state_store.h"

namespace resident {

class ClaimTable {
 public:
  // Takes over the table of the state store.
  ClaimTable(Registry* registry, StateStore* state, TimeSource* time = &TimeSource::Steady());

  // See Operators.Claim and Release.
  absl::StatusOr<ClaimedPlan> Claim(const PlanClaim& claim);
  absl::Status Release(const std::string& plan, uint64_t lease, std::optional<PlanState> ended);

  // See OperatorManager.
  absl::Status RecordFolder(const FolderRecord& folder);
  void ListFolder(const std::string& set, std::map<std::string, std::string> hashes);

  // ABORTED: the name may not be changed with this context. The registry's `commit` calls it.
  absl::Status Check(const std::string& name, const ChangeContext& context) const;

  // FAILED_PRECONDITION: the set of --operators_dir lists the name, the change belongs to no plan,
  // and `content_hash`, of the version that it installs or activates, is not what the set wants, or
  // a roll-out has superseded the set. `content_hash` is empty if the change removes the operator.
  absl::Status CheckListed(const std::string& name, const std::string& content_hash,
                           const ChangeContext& context) const;

  // `lease` is 0 if no claim is valid.
  PlanTable plans() const;

 private:
  bool Valid() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PlanRecord* Find(const std::string& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The record of the claimed plan.
  const PlanRecord& Claimed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<ClaimedPlan> Renew(const PlanClaim& claim) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<ClaimedPlan> Take(const PlanClaim& claim) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A record with what is active now. Drops the oldest record if there are too many.
  PlanRecord& AddRecord(const PlanClaim& claim) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetClaim(const PlanClaim& claim, uint64_t lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The plan has ended as its record says.
  void UpdateFolder(const PlanRecord& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Registry* const registry_;
  StateStore* const state_;
  TimeSource* const time_;

  // Held while the table is changed and written. It is taken before the registry's lock of changes,
  // and that one before mu_.
  absl::Mutex write_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  PlanTable table_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> names_ ABSL_GUARDED_BY(mu_);  // Of the claim.
  // Of --operators_dir; content hashes by name.
  std::string listed_set_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> listed_ ABSL_GUARDED_BY(mu_);
  TimeSource::TimePoint expires_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_CLAIM_TABLE_H_
