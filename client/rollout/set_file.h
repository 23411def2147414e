// SetFile: a set of operators (runtime/operator_set/operator_set.h) from a file on this machine, as
// installations that can be sent to daemons.
//
// Thread safety: functions without state.
#ifndef RESIDENT_CLIENT_ROLLOUT_SET_FILE_H_
#define RESIDENT_CLIENT_ROLLOUT_SET_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/operators.h"
#include "runtime/operator_set/operator_set.h"

namespace resident::rollout {

struct SetFile {
  OperatorSet set;
  std::string plan;
  // In the order of set.operators.
  std::vector<client::Installation> installations;
  // The set's file and those that it names, by their paths in its folder.
  std::map<std::string, std::string> contents;
  std::string name;  // Of the set's file, in `contents`.
};

// INVALID_ARGUMENT: a file is wrong. NOT_FOUND, ...: it cannot be read.
absl::StatusOr<SetFile> ReadSetFileAt(const std::string& path);

// Writes the contents to a folder, which is created if necessary: each file under another name,
// which is renamed, the set's file last.
absl::Status Publish(const SetFile& file, const std::string& folder);

}  // namespace resident::rollout

#endif  // RESIDENT_CLIENT_ROLLOUT_SET_FILE_H_
