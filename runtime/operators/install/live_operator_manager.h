// LiveOperatorManager: the OperatorManager of a daemon (operator_manager.h).
//
// Its parts, each in a file of its own:
//
//   InstallRun         one install: the steps, in order
//   VersionBuilder     compile and inspect, for every target of the devices
//   VersionValidation  runs the examples on temporary engines
//   GenerationLoader   loads versions into the kernels of all devices
//   NativeForms        gives FLUX programs native code, in the background
//   BakeWatcher        evaluates versions that have just begun to serve
//   ClaimTable         reserves names for a plan
//
// Order of a change: it is appended to the state store, made in the registry, where the
// next request sees it, synced without a lock, and then answered. If the daemon or the
// machine ends before the sync has returned, the change may be lost.
//
// Thread safety: see OperatorManager. OnFault is called from a device's supervisor.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_LIVE_OPERATOR_MANAGER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_LIVE_OPERATOR_MANAGER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "runtime/base/limits.h"
#include "runtime/device/device_control.h"
#include "runtime/operators/install/claim_table.h"
#include "runtime/operators/install/generation_loader.h"
#include "runtime/operators/install/native_forms.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/install/version_builder.h"
#include "runtime/operators/install/version_validation.h"
#include "runtime/operators/registry/operator_version.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/operators/trial/bake_watcher.h"
#include "runtime/queue/operator_stats.h"
#include "runtime/state/state_store.h"

namespace resident {

// ShadowTally: the results of shadow comparisons of each version, until the version is
// destroyed.
//
// Thread safety: all members may be called from any thread.
class ShadowTally {
 public:
  struct Counters {
    uint64_t tasks = 0;
    uint64_t mismatches = 0;
  };

  void Add(const OperatorVersion& version, uint64_t tasks, uint64_t mismatches);
  Counters Get(const std::string& name, uint32_t version) const;
  // Resets the version's counters to 0.
  void Forget(const std::string& name, uint32_t version);

  // Number of entries: one per existing version, and those of versions destroyed since the
  // last new entry.
  size_t size() const;

 private:
  struct Entry {
    Counters counters;
    std::shared_ptr<absl::Notification> gone;  // OperatorVersion::drained.
  };

  mutable absl::Mutex mu_;
  std::map<std::pair<std::string, uint32_t>, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

class Compiler;  // runtime/compile/compiler.h

class LiveOperatorManager final : public OperatorManager {
 public:
  struct Options {
    // --park_deadline: how long a new generation waits for running tasks.
    std::chrono::milliseconds park_deadline{2'000};
    // --task_time_limit: the maximum that an install may request.
    std::chrono::milliseconds task_time_limit{10'000};
    // --bake_*: the defaults of Activate and Promote.
    BakeOptions bake{.action = BakeAction::kWarn,
                     .time = std::chrono::seconds(60),
                     .max_error_rate = 0.01,
                     .max_latency_ratio = 2,
                     .max_mismatch_rate = 0.001,
                     .min_tasks = 100};
    // --allow_objects: PTX and cubins may be installed.
    bool allow_objects = false;
    // --isolation: the highest level of installs that name none.
    Isolation isolation = kDefaultIsolation;
    // --flux_native: installed FLUX programs get native code.
    bool flux_native = true;
    // --max_native_forms.
    uint32_t max_native_forms = kMaxNativeForms;
    // File of the native code that caused faults or gave other results than the interpreter in
    // service; empty: it is not recorded.
    std::string native_quarantine_file;
    // Program to run as `PROGRAM engine ...` for validations; empty: this program.
    std::string engine_program;
  };
  struct Sources {
    Registry* registry;
    StateStore* state;
    Compiler* compiler;
    std::vector<DeviceControl*> devices;  // Devices that started.
    std::vector<EngineChoice> engines;    // By device index().
  };

  LiveOperatorManager(const Options& options, const Sources& sources);
  ~LiveOperatorManager() override;

  // Restores the contents of the state folder: registry, units (from the cache, or compiled
  // again), generation. Call it before anything is served. What cannot be restored is left
  // out, with a message in `warnings`.
  absl::Status Restore(std::vector<std::string>* warnings);

  absl::Status Install(const InstallRequest& request,
                       const std::function<void(const InstallProgress&)>& progress,
                       const std::function<bool()>& withdrawn) override;
  absl::StatusOr<SwitchResult> Activate(const SwitchRequest& request) override;
  absl::StatusOr<SwitchResult> Rollback(const SwitchRequest& request) override;
  absl::StatusOr<uint64_t> Promote(const PromoteRequest& request) override;
  absl::StatusOr<Removal> Remove(const std::string& name, std::optional<uint64_t> expected_revision,
                                 const std::string& actor, const ChangeContext& context) override;
  absl::StatusOr<ClaimedPlan> Claim(const PlanClaim& claim) override {
    return claims_.Claim(claim);
  }
  absl::Status Release(const std::string& plan, uint64_t lease,
                       std::optional<PlanState> ended) override {
    return claims_.Release(plan, lease, ended);
  }
  PlanTable plans() const override { return claims_.plans(); }
  absl::Status RecordFolder(const FolderRecord& folder) override {
    return claims_.RecordFolder(folder);
  }
  void ListFolder(const std::string& set, std::map<std::string, std::string> hashes) override {
    claims_.ListFolder(set, std::move(hashes));
  }
  absl::StatusOr<std::vector<OperatorEvent>> EventsAfter(uint64_t after,
                                                         size_t max_events) const override;
  std::vector<OperatorEvent> EventsBefore(uint64_t before, const std::string& name,
                                          size_t max_events) const override;
  uint64_t revision() const override;
  uint64_t Subscribe(std::function<void()> wake) override;
  void Unsubscribe(uint64_t token) override;
  uint64_t OperatorRevision(const std::string& name) const override;
  TrialCounters trial_counters(const std::string& name) const override;
  bool baking(const std::string& name) const override { return bakes_.Watches(name); }
  void RecordShadow(const OperatorVersion& judged, uint64_t tasks, uint64_t mismatches) override;

  // Cancels installs that wait for a device. Call it before the devices are shut down.
  void Stop() {
    natives_.Stop();
    loader_.Stop();
  }

  NativeCounters native_counters() const override { return natives_.counters(); }
  std::map<std::string, uint64_t> isolation_refusals() const override {
    absl::MutexLock lock(&mu_);
    return isolation_refusals_;
  }

  // An engine was lost: quarantines the version (or its native form) that caused it, if there is
  // one. Returns the generation that the next engine starts with; null: the current one. For
  // DeviceControl::OnFault.
  std::shared_ptr<const Generation> OnFault(const Device& device, const DeviceFault& fault);

 private:
  friend class InstallRun;

  // `reason`: why a version is not stoppable.
  void CountIsolationRefusal(const std::string& reason);
  // Appends a change that the daemon makes itself to the state store. It needs no claim.
  Registry::Commit CommitOwn(const std::string& message);
  // Appends a caller's change to the state store, unless it is refused by a claim.
  Registry::Commit CommitFor(const StateStore::Origin& origin);
  absl::StatusOr<SwitchResult> Finish(std::chrono::steady_clock::time_point began,
                                      const absl::StatusOr<RegistryChange>& change);
  void StartBake(const RegistryChange& change, const BakeOptions& options);
  // What the version has served; its p99 without the tasks in `earlier` (by device).
  BakeCounters ReadCounters(const std::string& name, uint32_t version,
                            const std::vector<DurationHistogram::Counts>& earlier = {}) const;
  void OnRegression(const BakeWatcher::Regression& regression);
  // Appends an event that is not a change.
  void RecordEvent(OperatorEvent event);
  // Loads a version from the state folder. nullopt: its unit is not available, for the
  // reason in `why`.
  std::optional<Registry::RestoredVersion> RestoreVersion(const std::string& name,
                                                          const StoredVersion& stored,
                                                          std::string* why);
  // Loads the standby's code into the kernels again, if a quarantine removed it; it stays
  // there for as long as the returned object exists. Waits for a round of the loader.
  // ABORTED, without waiting, if the request is stale.
  absl::StatusOr<GenerationLoader::Kept> ReloadStandby(const SwitchRequest& request);
  // Builds the native form of a bytecode operator's version again, if it was evicted.
  void RequestNativeForm(const std::string& name, uint32_t version);
  void RecordGeneration(uint64_t number, uint64_t loaded, uint64_t members);

  const Options options_;
  const Sources sources_;
  ClaimTable claims_;
  VersionBuilder builder_;
  ValidationVerdicts verdicts_;
  ShadowTally shadows_;
  mutable absl::Mutex mu_;
  std::map<std::string, uint64_t> isolation_refusals_ ABSL_GUARDED_BY(mu_);

  // Last: their threads call into this object.
  BakeWatcher bakes_;
  GenerationLoader loader_;
  NativeForms natives_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_LIVE_OPERATOR_MANAGER_H_
