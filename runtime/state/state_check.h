// Lists the contents and the problems of a state folder: `residentctl state check|repair`.
//
// Check changes nothing except the lock file. Repair rewrites the database with all records that
// can be read (and keeps a copy of the damaged one beside it), removes files whose contents do not
// match their names and buffers that refer to them, and reports what was lost.
//
// Both take the folder's lock, so that no daemon writes to it meanwhile.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_STATE_STATE_CHECK_H_
#define RESIDENT_RUNTIME_STATE_STATE_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident {

struct StateReport {
  // The contents, one line for each item.
  std::vector<std::string> contents;
  // The problems, one line each. A transaction that was not finished is one: a start drops it.
  std::vector<std::string> problems;
  // Repair: what was done, and what was lost.
  std::vector<std::string> repairs;
  // Whether a daemon can start with the folder in its current state.
  bool starts = true;
};

// FAILED_PRECONDITION: a daemon uses the folder, or it has an unknown format, which is not damage.
// NOT_FOUND: it is not a state folder.
absl::StatusOr<StateReport> CheckState(const std::string& folder);
absl::StatusOr<StateReport> RepairState(const std::string& folder);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_CHECK_H_
