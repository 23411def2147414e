// Operator modules: units of operators, linked so that each can be loaded separately from the
// kernel, which is already on the device.
//
// The kernel calls operators through a table of addresses in its constant memory. With
// -rdc=true a function's address is absolute, so the table may contain functions of any
// module. A function must not read constant memory, because it would access the kernel's
// banks. Inspection enforces that (runtime/compile/inspect.h).
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_IMAGE_OPERATOR_MODULE_H_
#define RESIDENT_RUNTIME_IMAGE_OPERATOR_MODULE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident {

// A module has a variable of eight bytes for each operator, SYMBOL_entry, with its address.
inline constexpr char kEntrySuffix[] = "_entry";
// The kernel's table, by slot: kMaxOperatorSlots addresses (resident::kJumpTable).
inline constexpr char kJumpTableName[] = "_ZN8resident10kJumpTableE";

// Returns the module of `unit`, a relocatable cubin or PTX that defines the operators `symbols`.
// Errors: see LinkImage.
absl::StatusOr<std::string> LinkOperatorModule(const std::vector<std::string>& symbols,
                                               const std::string& unit, int architecture);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_IMAGE_OPERATOR_MODULE_H_
