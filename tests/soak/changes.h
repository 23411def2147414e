// Changes: makes the changes of one operator, step by step: good and bad installs,
// activations, rollbacks, trials, removals, and versions that fail in production.
//
// Each step updates the timeline of versions that may serve, and records the events that it
// must cause. ExpectedEvents::Check compares these with the events that Operators.Watch
// reported.
//
// Thread safety: an object belongs to one thread. The members of World are shared.
#ifndef RESIDENT_TESTS_SOAK_CHANGES_H_
#define RESIDENT_TESTS_SOAK_CHANGES_H_

#include <cstdint>
#include <map>
#include <random>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/operators.h"
#include "tests/daemon/daemon.h"
#include "tests/soak/findings.h"
#include "tests/soak/timeline.h"
#include "tests/soak/versions.h"

namespace resident::soak {

// The events that the commands must cause, by revision, and the quarantines, whose
// revisions are not predictable.
class ExpectedEvents {
 public:
  void Add(uint64_t revision, v1::OperatorEvent::Kind kind, int op, uint32_t version) {
    absl::MutexLock lock(&mu_);
    commanded_[revision] = {kind, OperatorName(op), version};
  }
  void AddQuarantine(int op, uint32_t version) {
    absl::MutexLock lock(&mu_);
    ++quarantines_[{OperatorName(op), version}];
  }
  uint64_t last_revision() const {
    absl::MutexLock lock(&mu_);
    return commanded_.empty() ? 0 : commanded_.rbegin()->first;
  }
  // Reports events without a command, and commands whose event is missing.
  void Check(const std::vector<v1::OperatorEvent>& events, Findings& findings) const;

 private:
  struct Expected {
    v1::OperatorEvent::Kind kind;
    std::string name;
    uint32_t version;
  };
  mutable absl::Mutex mu_;
  std::map<uint64_t, Expected> commanded_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, uint32_t>, int> quarantines_ ABSL_GUARDED_BY(mu_);
};

struct World {
  const testing::Daemon* daemon;
  client::Client* client;
  Timeline* timeline;
  Keys* keys;
  Findings* findings;
  ExpectedEvents* events;
  // Locked exclusively while a version fails in production, so that no other change runs.
  std::shared_mutex* fault_mutex;
};

// Waits until an engine other than `other_than` serves. Resumes the device if it was set to
// unhealthy. Returns false if no such engine appears in time.
bool WaitForEngine(const World& world, pid_t other_than);

class Changes {
 public:
  Changes(const World& world, int op, uint64_t seed);

  // Installs and activates the operator's first version.
  void Begin();
  // Runs one step of each kind, in random order. With `faults`, also a version that fails
  // in production.
  void Round(bool faults);
  // Removes the operator.
  void End();

 private:
  using Response = absl::StatusOr<v1::InstallResponse>;
  // Installs a version. Repeats the install if an engine was lost during it.
  Response Install(uint32_t key, Fault fault, v1::VersionState wait_for);
  // Puts a new version in the standby place. Returns 0 if this failed.
  uint32_t Load(Fault fault);
  void Activate(uint32_t version);

  void ReplaceVersion();
  void InstallActive();
  void Rollback();
  void StaleRevision();
  void Trial();
  void BadInstalls();
  void WithdrawInstall();
  void Remove();
  void FaultInProduction();

  uint32_t NextKey();
  void Failed(const std::string& what, const absl::Status& status);

  const World world_;
  const int op_;
  const std::string name_;
  client::Operators operators_;
  std::mt19937_64 random_;
  uint32_t last_key_;
  uint64_t revision_ = 0;
  uint32_t active_ = 0;
  // The version that served before the active one and is the target of a rollback; 0 if
  // there is none.
  uint32_t previous_ = 0;
  size_t bad_;  // Counts bad versions. Operators start with different ones.
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_CHANGES_H_
