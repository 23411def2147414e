// A set of operators (operator_set.h) in the words of the API: what to install, and how a daemon
// differs from the set. `residentctl apply` asks daemons for their summaries; a daemon with
// --operators_dir makes its own.
//
// Thread safety: functions without state.
//
//   for (const SetDifference& difference : CompareWithSet(target, pruned, builtin, summary)) ...
#ifndef RESIDENT_RUNTIME_OPERATOR_SET_SET_MESSAGES_H_
#define RESIDENT_RUNTIME_OPERATOR_SET_SET_MESSAGES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "resident/v1/operators.pb.h"
#include "runtime/operator_set/operator_set.h"

namespace resident {

// An install of an operator: its header without context, revision and the state to wait for. The
// files are those of the operator.
struct SetInstall {
  v1::InstallHeader header;
  std::vector<v1::InstallExample> examples;
};

// INVALID_ARGUMENT: an example is wrong; the message has its file.
absl::StatusOr<SetInstall> MakeInstall(const SetOperator& op, const OperatorSet& set);

// `time`: how long the version is monitored; 0: the daemon's default.
v1::BakeOptions MakeBake(const OperatorSet& set, absl::Duration time);

// Null: there is none. FindHash: of any state.
const v1::SummaryResponse::Operator* FindOperator(const v1::SummaryResponse& summary,
                                                  const std::string& name);
const v1::SummaryResponse::Version* FindActive(const v1::SummaryResponse::Operator* op);
const v1::SummaryResponse::Version* FindHash(const v1::SummaryResponse::Operator* op,
                                             const std::string& hash);
// Empty: no version is active.
std::string ActiveHash(const v1::SummaryResponse& summary, const std::string& name);

// For messages: "nothing", or the first digits.
std::string ShortHash(const std::string& hash);

// What has to be done with one operator of a daemon so that it serves what the set says.
struct SetDifference {
  std::string name;
  std::string active;  // Content hash; empty: none.
  std::string wanted;  // Empty: it has to be removed.
  std::string action;  // "stage", "switch", "remove", "blocked".
  std::string why;     // For "blocked".
};

// What a set wants: its name, and the content hash of each operator.
struct SetTarget {
  explicit SetTarget(const OperatorSet& operator_set);

  std::string set;
  std::map<std::string, std::string> hashes;
};

// Operators that belong to the set and are not listed, if the set prunes them.
std::set<std::string> FindPruned(const OperatorSet& set, const v1::SummaryResponse& summary);

// Sorted by name; what has to be removed is last. `builtin`: names of the target that are those of
// built-in operators.
std::vector<SetDifference> CompareWithSet(const SetTarget& target,
                                          const std::set<std::string>& pruned,
                                          const std::set<std::string>& builtin,
                                          const v1::SummaryResponse& summary);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATOR_SET_SET_MESSAGES_H_
