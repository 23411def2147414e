// What is in a state folder, and what is wrong with it: `residentctl state check|repair`.
//
// Check reads and changes nothing. Repair cuts the journal off at the first record that is
// not good (a copy of the whole is kept beside it), removes files that do not have the
// contents that their names or the journal promise, and says what was lost by that.
//
// Both take the folder's lock, so that no daemon writes meanwhile.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_STATE_STATE_CHECK_H_
#define RESIDENT_RUNTIME_STATE_STATE_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident {

struct StateReport {
  // What is there, a line each.
  std::vector<std::string> contents;
  // What is wrong, a line each. A torn last record is: a start drops it by itself.
  std::vector<std::string> problems;
  // Repair: what was done, and what was lost by it.
  std::vector<std::string> repairs;
  // Whether a daemon starts with the folder as it is now.
  bool starts = true;
};

// FAILED_PRECONDITION: a daemon has the folder. NOT_FOUND: it is no state folder.
absl::StatusOr<StateReport> CheckState(const std::string& folder);
// FAILED_PRECONDITION also: it was written by a newer daemon, which is no damage.
absl::StatusOr<StateReport> RepairState(const std::string& folder);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_CHECK_H_
