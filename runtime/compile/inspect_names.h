// What the inspections of cubins and of shared objects have in common: the names that a
// unit must, may and must not export.
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

// The symbol of the unit's operator, among the functions that it defines. Refuses a unit
// without one, with several, or compiled with another SDK.
absl::StatusOr<std::string> FindEntry(const InspectRequest& request,
                                      const std::set<std::string>& functions);

// Refuses what the unit calls and does not define.
absl::Status RefuseUndefined(const std::set<std::string>& names);

// Whether a name that the unit with this symbol exports can be no other unit's.
bool IsUnitsOwn(const std::string& name, const std::string& symbol);
absl::Status RefuseForeignName(const std::string& name);

// Refuses more code than there may be.
absl::Status CheckCodeBytes(uint64_t bytes);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_INSPECT_NAMES_H_
