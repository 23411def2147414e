// The parts of Rollout's sources: a node, and what they read from its answers.
//
// rollout.cc decides what a run does; rollout_look.cc looks at nodes and compares them with the
// set, rollout_claims.cc claims them, rollout_steps.cc goes forward, and rollout_way_back.cc goes
// back.
#ifndef RESIDENT_CLIENT_ROLLOUT_ROLLOUT_NODE_H_
#define RESIDENT_CLIENT_ROLLOUT_ROLLOUT_NODE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/operators.h"
#include "client/residentd_client.h"
#include "client/rollout/rollout.h"
#include "resident/v1/operators.pb.h"

namespace resident::rollout {

using State = v1::PlanState;

struct Rollout::Node {
  std::string address;
  std::string host;  // For Connect.
  std::string id;    // Empty: it has never answered.
  std::string name;
  std::unique_ptr<client::Client> client;
  std::unique_ptr<client::Operators> operators;
  // The last look.
  absl::StatusOr<v1::SummaryResponse> summary = absl::UnknownError("");
  absl::Time answered = absl::InfinitePast();
  bool present = true;            // In the last answer of the resolver.
  std::set<std::string> builtin;  // Names of the set that are built in here.
  // Engines that were lost before this run changed something.
  uint64_t engine_failures = 0;

  // The claim.
  absl::Mutex mu;
  uint64_t lease ABSL_GUARDED_BY(mu) = 0;
  absl::Time renewed ABSL_GUARDED_BY(mu);
  absl::Status lost ABSL_GUARDED_BY(mu);
  bool resumed = false;
  State::State state = State::STATE_UNSPECIFIED;
  std::map<std::string, std::string> before;
  // It served the whole set when it was claimed, by a run that has ended: it is not undone.
  bool settled = false;

  bool up() const { return summary.ok(); }
  bool claimed() {
    absl::MutexLock lock(&mu);
    return lease != 0;
  }
  const std::string& label() const { return name.empty() ? address : name; }
  State::State PlanState(const std::string& plan) const {
    if (!summary.ok()) return State::STATE_UNSPECIFIED;
    for (const State& known : summary->plans()) {
      if (known.plan() == plan) return known.state();
    }
    return State::STATE_UNSPECIFIED;
  }
};

std::string Text(const absl::Status& status);
// "2 nodes".
std::string Plural(size_t count, const std::string& what);

// Whether the call may have reached nobody, or a daemon that is going away.
bool IsDown(const absl::Status& status);

}  // namespace resident::rollout

#endif  // RESIDENT_CLIENT_ROLLOUT_ROLLOUT_NODE_H_
