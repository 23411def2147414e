// Checks of the names that a unit must, may and must not export; used by the inspections of
// cubins and of shared objects.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_COMPILE_INSPECT_NAMES_H_
#define RESIDENT_RUNTIME_COMPILE_INSPECT_NAMES_H_

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/compile/inspect.h"

namespace resident {

// Returns the symbol of the unit's operator among the functions that it defines. Refuses a unit
// without an operator, with several, or compiled with another SDK.
absl::StatusOr<std::string> FindEntry(const InspectRequest& request,
                                      const std::set<std::string>& functions);

// Returns the error for a unit that calls functions that it does not define.
absl::Status RefuseUndefined(const std::set<std::string>& names);

// Whether a name that the unit with this symbol exports cannot occur in any other unit.
bool IsUnitsOwn(const std::string& name, const std::string& symbol);
absl::Status RefuseForeignName(const std::string& name);

// Refuses a unit with more than kMaxUnitCodeBytes of code.
absl::Status CheckCodeBytes(uint64_t bytes);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_INSPECT_NAMES_H_
