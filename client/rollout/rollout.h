// Rollout: brings a set of operators to every daemon (node) behind a target, or shows what differs.
//
//   look ─▶ plan ─▶ claim ─▶ stage ─▶ (trial) ─▶ canary ─▶ waves ─▶ sweep ─▶ publish, prune ─▶
//   applied
//    │        │        │        └─────────┴────────┴────────┴───────┴─▶ way back ─▶ rolled back
//    └────────┴────────┴─▶ nothing was changed
//
// Nothing is kept outside the nodes. Each step looks at the nodes, compares content hashes, and
// changes only what differs, with the operator's revision and the lease of the node's claim. So a
// run that was killed at any point is continued by the same command: by what the claims recorded,
// and by the state of the plan on each node (v1::PlanState).
//
// Invariants:
// 1. Nothing serves another version before every node has the new ones loaded.
// 2. A change is made only while the node's claim was renewed within two thirds of its lease.
// 3. Before anything is undone, the plan is marked as failed on every node that can be reached.
// 4. Of two runs of one plan, the one that was the last to claim the first node continues.
// 5. What is undone on a node is what the plan changed there: trials of the plan's versions, and
//    names whose active hash is the plan's and was another one when the node was claimed.
//
// Thread safety: one thread calls Run or Diff. A second one renews the claims, and calls to several
// nodes are made in parallel.
//
//   Rollout rollout(file, options, connect, report);
//   const Outcome outcome = rollout.Run();
#ifndef RESIDENT_CLIENT_ROLLOUT_ROLLOUT_H_
#define RESIDENT_CLIENT_ROLLOUT_ROLLOUT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/operators.h"
#include "client/residentd_client.h"
#include "client/rollout/set_file.h"
#include "resident/v1/operators.pb.h"
#include "runtime/operator_set/set_messages.h"

namespace resident::rollout {

struct Options {
  std::string target;
  std::string holder;
  // Nodes that are changed first, or their names.
  uint32_t canary = 1;
  std::vector<std::string> canary_nodes = {};
  // Share of the batches of the canary nodes that the new versions serve for a bake before they
  // serve all; 0: they serve all at once.
  double percent = 0;
  absl::Duration bake = absl::Minutes(1);
  // Tasks that each changed operator must have served on the canary nodes; 0: any number.
  uint64_t min_tasks = 100;
  // Shares of the other nodes, ascending; the last is 1.
  std::vector<double> waves = {0.25, 1};
  absl::Duration wave_bake = absl::Seconds(10);
  // Nodes that may be down: a number, or a share of all.
  uint32_t max_down = 0;
  double max_down_share = 0;
  uint32_t parallel = 32;
  // How long a claim is valid. A node that is watched fails after a third of this without an
  // answer.
  absl::Duration lease = absl::Seconds(30);
  // The sweep ends after this time at the latest.
  absl::Duration sweep = absl::Minutes(5);
  std::string publish;  // Empty: not published.
  bool again = false;
  bool steal = false;
};

enum class Result {
  kApplied,      // Every node serves the set.
  kRolledBack,   // It failed, and every node that answers serves what it served before.
  kUnreachable,  // Too many nodes did not answer; nothing was changed.
  kRefused,  // Something prevents the roll-out; nothing was changed, or another run continues it.
  kIncomplete,  // A node is in neither state.
};

struct Outcome {
  Result result = Result::kApplied;
  std::string why;  // Empty for kApplied.
};

// What has to be done with one operator of one node.
struct Difference : SetDifference {
  std::string node;
};

// A step has begun or ended, or found something. Called from one thread at a time.
using Report = std::function<void(const std::string& step, const std::string& text)>;

class Rollout {
 public:
  // Connects to the address of a node; `host`: the name that TLS verifies. Calls of the client end
  // after `timeout`.
  using Connect = std::function<absl::StatusOr<std::unique_ptr<client::Client>>(
      const std::string& address, const std::string& host, absl::Duration timeout)>;

  // The file must outlive it.
  Rollout(const SetFile& file, Options options, Connect connect, Report report);
  ~Rollout();

  // Looks at all nodes. UNAVAILABLE: more nodes than max_down did not answer.
  absl::Status Look();
  // What Look has found, sorted by node and name; empty: every node serves the set.
  std::vector<Difference> Differences() const;
  size_t nodes() const { return nodes_.size(); }
  size_t down() const;

  // REQUIRES: Look returned OK.
  Outcome Run();
  // Goes back to what the claims of this set's plan recorded. REQUIRES: Look returned OK.
  Outcome Undo();

 private:
  struct Node;
  using Nodes = std::vector<std::shared_ptr<Node>>;
  // How a step ended.
  struct Verdict {
    enum class Kind { kGood, kFailed, kStopped };
    Kind kind = Kind::kGood;
    std::string why = {};
    bool good() const { return kind == Kind::kGood; }
  };

  static Verdict Failed(std::string why) { return {Verdict::Kind::kFailed, std::move(why)}; }

  // Calls `work` for each node, of which options.parallel at a time.
  void ForEach(const Nodes& nodes, absl::FunctionRef<void(Node&)> work) const;
  // Resolves the target, and adds the nodes that are new to `nodes_`. Nodes that are not in the
  // answer any more have `present` false.
  absl::StatusOr<Nodes> Resolve();
  void LookAt(Node& node) const;
  // With what Describe has to say: whether a name that is not installed is built in.
  std::vector<Difference> Compare(const Node& node) const;
  bool Same(const Node& node) const;
  bool TooManyDown(size_t down) const;
  Nodes Up() const;

  // kApplied, here and below: nothing prevents what follows.
  Outcome FindObstacle() const;
  // Claims all nodes, and begins to renew the claims.
  Outcome Start(v1::PlanState::State state);
  // If an earlier run of the plan has failed: ends its way back, and with --again claims anew.
  Outcome EndFailedRun();
  // What follows when every node serves the set.
  Outcome Finish();
  // Claims the nodes in the order of their ids.
  Outcome Claim(const Nodes& nodes, v1::PlanState::State state);
  absl::Status ClaimNode(Node& node, v1::PlanState::State state);
  void ReleaseAll(v1::PlanState::State state);
  void RenewLoop();
  void Renew(Node& node);
  // Whether no other run of this plan has taken over since this one began: the run that holds the
  // first node continues, also on nodes that the other one has claimed meanwhile.
  bool HoldsFirst();
  // Why the node may not be changed now. Claims it again if another run of this plan has taken it
  // over and this one continues.
  absl::Status Changeable(Node& node);
  // Does the work, and once again if the claim was lost to a run that does not continue.
  absl::Status Insist(Node& node, absl::FunctionRef<absl::Status(Node&)> work);
  v1::ChangeContext Context(const Node& node) const;

  Verdict Forward();
  // Calls `work` for each node, and judges its errors.
  Verdict Change(const Nodes& nodes, absl::FunctionRef<absl::Status(Node&)> work);
  Verdict Stage(const Nodes& nodes);
  absl::Status StageNode(Node& node);
  // Puts the versions of operators that serve another one on trial.
  absl::Status TryNode(Node& node);
  absl::Status EndTrial(Node& node, const v1::SummaryResponse::Operator& op,
                        const v1::SummaryResponse::Version& tried);
  Verdict Switch(const Nodes& nodes);
  absl::Status SwitchNode(Node& node);
  Verdict Canary(const Nodes& canary);
  // Looks at the nodes until `check` says of each that its time is over (`done`).
  using Check = absl::FunctionRef<Verdict(const Node& node, bool* done)>;
  Verdict Watch(const Nodes& nodes, const std::string& step, Check check);
  Verdict WatchServing(const Nodes& nodes, absl::Duration time, const std::string& step);
  Verdict WatchTrial(const Nodes& nodes);
  Verdict CheckTraffic(const Nodes& canary);
  Verdict Waves(const Nodes& rest);
  Verdict Sweep();
  Verdict Prune();
  // What a failed call of a node means.
  Verdict Judge(Node& node, const absl::Status& status);
  Verdict Worst(const std::vector<Verdict>& verdicts) const;

  bool HasToGoBack(const Node& node) const;
  Outcome WayBack(const std::string& why);
  absl::Status GoBack(Node& node);

  const SetFile& file_;
  const Options options_;
  const Connect connect_;
  const Report report_;
  const SetTarget target_;
  std::set<std::string> pruned_;  // Names to remove.
  std::shared_ptr<Node> first_;   // The first node that this run has claimed.

  mutable absl::Mutex mu_;
  Nodes nodes_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread renewer_;
};

}  // namespace resident::rollout

#endif  // RESIDENT_CLIENT_ROLLOUT_ROLLOUT_H_
