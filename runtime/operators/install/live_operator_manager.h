// LiveOperatorManager: the OperatorManager of a daemon (operator_manager.h).
//
// What it is made of, each in a file of its own:
//
//   InstallRun         one install: the steps, in order
//   VersionBuilder     compile and inspect, for every target of the devices
//   VersionValidation      examples, on throw-away engines
//   GenerationStager   the kernels of all devices
//   BakeWatcher        versions that have just begun to serve
//
// Order of a change: it is given to the state store, then made in the registry, where the
// next request sees it, then synced, without a lock, then answered. A daemon that is killed
// in between comes back with the change, or, if the machine went down with it, perhaps
// without.
//
// Thread safety: as OperatorManager. OnFault is called from a device's supervisor.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_LIVE_OPERATOR_MANAGER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_LIVE_OPERATOR_MANAGER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/operators/install/bake_watcher.h"
#include "runtime/operators/install/generation_stager.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/install/shadow_tally.h"
#include "runtime/operators/install/validation_verdicts.h"
#include "runtime/operators/install/version_builder.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/state/state_store.h"

namespace resident {

class Compiler;  // runtime/compile/compiler.h

class LiveOperatorManager final : public OperatorManager {
 public:
  struct Options {
    // --park_deadline: how long a new generation waits for running tasks.
    std::chrono::milliseconds park_deadline{2'000};
    // --task_time_limit: the most that an install may ask for.
    std::chrono::milliseconds task_time_limit{10'000};
    // --bake_*: what Activate and Promote do unless told otherwise.
    BakeOptions bake{.action = BakeAction::kWarn,
                     .time = std::chrono::seconds(60),
                     .max_error_rate = 0.01,
                     .max_latency_ratio = 2,
                     .max_mismatch_rate = 0.001,
                     .min_tasks = 100};
    // --allow_objects: PTX and cubins may be installed.
    bool allow_objects = false;
    // Program to run as `PROGRAM engine ...` for validations; default: this one.
    std::string engine_program;
  };
  struct Sources {
    Registry* registry;
    StateStore* state;
    Compiler* compiler;
    std::vector<Device*> devices;       // Those that started.
    std::vector<EngineChoice> engines;  // By the devices' index().
  };

  LiveOperatorManager(const Options& options, const Sources& sources);
  ~LiveOperatorManager() override;

  // Brings back what the state folder has: registry, units (from the cache, or compiled again),
  // generation. Before anything is served. What cannot be brought back is left out, and
  // said in `warnings`.
  absl::Status Restore(std::vector<std::string>* warnings);

  absl::Status Install(const InstallRequest& request,
                       const std::function<void(const InstallProgress&)>& progress,
                       const std::function<bool()>& withdrawn) override;
  absl::StatusOr<SwitchResult> Activate(const SwitchRequest& request) override;
  absl::StatusOr<SwitchResult> Rollback(const SwitchRequest& request) override;
  absl::StatusOr<uint64_t> Promote(const PromoteRequest& request) override;
  absl::StatusOr<Removal> Remove(const std::string& name, std::optional<uint64_t> expected_revision,
                                 const std::string& actor) override;
  absl::StatusOr<std::vector<OperatorEvent>> EventsAfter(uint64_t after,
                                                         size_t most) const override;
  std::vector<OperatorEvent> EventsBefore(uint64_t before, const std::string& name,
                                          size_t most) const override;
  uint64_t revision() const override;
  uint64_t Subscribe(std::function<void()> wake) override;
  void Unsubscribe(uint64_t token) override;
  uint64_t OperatorRevision(const std::string& name) const override;
  TrialCounters trial_counters(const std::string& name) const override;

  // Installs that wait for a device are given up; called before the devices are shut down.
  void Stop() { stager_.Stop(); }

  // What shadow comparisons of a version found (server/rpc/shadow_runner.h).
  void RecordShadow(const OperatorVersion& shadow, uint64_t tasks, uint64_t mismatches);

  // An engine was lost: quarantines the version that is to blame, if one is. Returns what
  // the next engine starts with; null: what the last one had. For Device::OnFault.
  std::shared_ptr<const Generation> OnFault(const Device& device, const DeviceFault& fault);

 private:
  friend class InstallRun;

  // Gives the change to the state store, in the name of `actor`.
  Registry::Commit CommitAs(const std::string& actor, const std::string& message = "");
  absl::StatusOr<SwitchResult> Finish(std::chrono::steady_clock::time_point began,
                                      const absl::StatusOr<RegistryChange>& change);
  void StartBake(const RegistryChange& change, const BakeOptions& options);
  BakeCounters CountersOf(const std::string& name, uint32_t version) const;
  void OnRegression(const BakeWatcher::Regression& regression);
  // Appends an event that changes nothing.
  void Note(OperatorEvent event);
  // A version as the state folder has it. Nothing: its unit cannot be had, and `why`.
  std::optional<Registry::RestoredVersion> RestoreVersion(const std::string& name,
                                                          const StoredVersion& stored,
                                                          std::string* why);
  // Has the standby's code in the kernels, from which a quarantine took it, for as long as
  // what is returned lives. Waits for a round of the stager; ABORTED before that if the
  // request is stale.
  absl::StatusOr<GenerationStager::Kept> BringBack(const SwitchRequest& request);
  void NoteGeneration(uint64_t number, uint64_t staged, uint64_t members);

  const Options options_;
  const Sources sources_;
  VersionBuilder builder_;
  ValidationVerdicts verdicts_;
  ShadowTally shadows_;

  // Last: their threads call into this object.
  BakeWatcher bakes_;
  GenerationStager stager_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_LIVE_OPERATOR_MANAGER_H_
