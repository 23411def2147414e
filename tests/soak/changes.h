// Changes: one operator's life, commanded step by step: installs good and bad, activations,
// rollbacks, trials, removals, and versions that go wrong in production.
//
// Each step tells the timeline what may serve, and notes the events that it must have
// caused; CheckEvents compares those with what Operators.Watch reported.
//
// Thread safety: an object belongs to one thread; World's members are shared.
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

// What the commands must have caused, by revision; and quarantines, which come when they
// come.
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
  // Reports what of `events` nobody commanded, and what was commanded and is not there.
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
  // Held alone while a version goes wrong in production, so that it is known which.
  std::shared_mutex* quiet;
};

// Waits for an engine other than `than` that serves; one that was given up is asked back.
// False: none came.
bool AwaitEngine(const World& world, pid_t than);

class Changes {
 public:
  Changes(const World& world, int op, uint64_t seed);

  // The operator's first version, active.
  void Begin();
  // One step of each kind, in an order of its own. `faults`: also versions that go wrong in
  // production.
  void Round(bool faults);
  // Takes the operator away.
  void End();

 private:
  using Response = absl::StatusOr<v1::InstallResponse>;
  // Installs, again if an engine was lost meanwhile.
  Response Install(uint32_t key, Fault fault, v1::VersionState wait_for);
  // A version in the standby place; 0: it failed.
  uint32_t Stage(Fault fault);
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
  // Served before the active one, and can be gone back to; 0: none.
  uint32_t previous_ = 0;
  size_t bad_;  // Counts bad versions; operators begin with different ones.
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_CHANGES_H_
