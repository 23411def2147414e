// OperatorSet: the operators that belong together, as one file of YAML lists them with the files
// that it names. `residentctl apply` and `diff` read it.
//
//   version: 1
//   set: ranking                      # owns these names: [a-z0-9-], at most 63
//   release: 2026-11-27.1             # optional: the label of every version of this file
//   operators:
//   - {name: swish, expr: x * sigmoid(x)}
//   - {name: rank.hinge, file: hinge.cc, include: [util.h], examples: [hinge.json], task_time:
//   50ms}
//   - {name: rank.rule, flux: rule.s, native: wait}
//   bake: {time: 60s, action: roll_back, max_error_rate: 0.01}
//   prune: false                      # true: remove operators of this set that are not listed
//
// A file is read as it was written, or refused: unknown keys, keys that occur twice, aliases,
// anchors, tags, a second document and values of another type are errors, with the line. The text
// has at most kMaxSetFileBytes, the set at most kMaxSetEntries operators.
//
// The plan of a set is a hash over its names and their content hashes
// (runtime/model/version_spec.h), which are equal on all daemons. It identifies a roll-out of the
// set.
//
// Thread safety: functions without state.
//
//   ASSIGN_OR_RETURN(OperatorSet set, ReadOperatorSet(text, "operators.yaml", read));
#ifndef RESIDENT_RUNTIME_OPERATOR_SET_OPERATOR_SET_H_
#define RESIDENT_RUNTIME_OPERATOR_SET_OPERATOR_SET_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/model/version_spec.h"

namespace resident {

inline constexpr size_t kMaxSetFileBytes = 1u << 20;
inline constexpr size_t kMaxSetEntries = 1024;

// What is installed, as in InstallRequest.
struct SetOperator {
  enum class Native { kFollows, kWait, kOff };

  std::string name;
  // Its kind, signature, split, summary, limits and content hash.
  VersionSpec spec;
  // The main file's name, the expression or the program.
  std::string body;
  std::map<std::string, std::string> files;
  Native native = Native::kFollows;
  // Paths, and texts in the format of `residentctl ops install --example`.
  std::vector<std::pair<std::string, std::string>> examples;
};

struct OperatorSet {
  enum class BakeAction { kOff, kWarn, kRollBack };

  std::string set;
  std::string release;  // Empty: none.
  std::vector<SetOperator> operators;
  std::optional<absl::Duration> bake_time;
  BakeAction bake_action = BakeAction::kRollBack;
  // 0: the daemon's.
  double max_error_rate = 0;
  double max_latency_ratio = 0;
  bool prune = false;
  // The files that it names, each once.
  std::vector<std::string> paths;

  // 64 hex digits.
  std::string Plan() const;
};

// Reads a file that the set names. The path is relative to the folder of the set's file, and does
// not leave it.
using ReadSetFile = std::function<absl::StatusOr<std::string>(const std::string& path)>;

// `name`: of the set's file, for errors. INVALID_ARGUMENT: the text is wrong; the message has the
// line. Errors of `read` are returned with the operator's name.
absl::StatusOr<OperatorSet> ReadOperatorSet(std::string_view text, std::string_view name,
                                            const ReadSetFile& read);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATOR_SET_OPERATOR_SET_H_
