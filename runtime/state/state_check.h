// What is in a state folder, and what is wrong with it: `residentctl state check|repair`.
//
// Check reads and changes nothing. Repair writes the database anew with all that can be read of it
// (a copy of the damaged one is kept beside it), removes files that do not have the contents that
// their names say and buffers that refer to them, and says what was lost by that.
//
// Both take the folder's lock, so that no daemon writes meanwhile.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_STATE_STATE_CHECK_H_
#define RESIDENT_RUNTIME_STATE_STATE_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident {

struct StateReport {
  // What is there, a line each.
  std::vector<std::string> contents;
  // What is wrong, a line each. A transaction that was not finished is: a start drops it.
  std::vector<std::string> problems;
  // Repair: what was done, and what was lost by it.
  std::vector<std::string> repairs;
  // Whether a daemon starts with the folder as it is now.
  bool starts = true;
};

// FAILED_PRECONDITION: a daemon has the folder, or it has a format that is not known, which is no
// damage. NOT_FOUND: it is no state folder.
absl::StatusOr<StateReport> CheckState(const std::string& folder);
absl::StatusOr<StateReport> RepairState(const std::string& folder);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_CHECK_H_
