// Inspection: checks whether a compiled unit may become part of a generation.
//
// A unit is refused if it was compiled with another SDK, has no entry, calls functions that do
// not exist, exports names that other units could export too, has variables that outlive a
// task, or needs more registers, stack, shared memory, constant memory or code than there is.
// The message has the values and what to do. Objects may be damaged or hostile; reading them
// is safe.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_COMPILE_INSPECT_H_
#define RESIDENT_RUNTIME_COMPILE_INSPECT_H_

#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/resident/kernel_parameters.h"
#include "runtime/compile/compile_job.h"

namespace resident {

struct InspectedUnit {
  std::string symbol;
  ResourceUse resources;
};

struct InspectRequest {
  std::string_view object;
  // The symbol of a unit that was compiled here; empty: the single operator that the object
  // exports.
  std::string symbol;
  // The NAME of the symbol's RESIDENT_OPERATOR(NAME), for messages.
  std::string function;
  // GPU: 90 for sm_90.
  int architecture = 0;
  // GPU: the limit for a thread.
  uint32_t max_registers = kMaxRegisters;
  // CPU: the compiler's output of -fcallgraph-info=su; empty: the stack is unknown and is not
  // checked.
  std::string call_graph;
};

// Inspects a relocatable cubin. `linked`: a linked cubin that contains the unit; its names were
// checked before, and are not checked again because it also exports names of other units.
absl::StatusOr<InspectedUnit> InspectCubin(const InspectRequest& request, bool linked = false);
// Inspects a shared object for x86-64.
absl::StatusOr<InspectedUnit> InspectSharedObject(const InspectRequest& request);

// The following functions check the names that a unit must, may and must not export; the
// inspections of cubins and of shared objects use them.

// Returns the symbol of the unit's operator among the functions that it defines. Refuses a unit
// without an operator, with several, or compiled with another SDK.
absl::StatusOr<std::string> FindEntry(const InspectRequest& request,
                                      const std::set<std::string>& functions);

// Returns the error for a unit that calls functions that it does not define.
absl::Status RefuseUndefined(const std::set<std::string>& names);

// Whether a name that the unit with this symbol exports cannot occur in any other unit.
bool IsUnitsOwn(const std::string& name, const std::string& symbol);
absl::Status RefuseForeignName(const std::string& name);
// Whether a weak function is one of the SDK or of the toolchain, which are equal in all units.
bool IsSharedFunction(const std::string& name);

// Refuses variables to which code refers, except tables of constants.
absl::Status CheckVariableNames(const std::set<std::string>& names);

// Refuses a unit with more than kMaxUnitCodeBytes of code.
absl::Status CheckCodeBytes(uint64_t bytes);

// Searches the PTX that NVRTC made for functions from which the compiler has dropped code, and for
// an operator that the kernel could not call.
//
// If a compiler wrongly treats code as unreachable, it ends the function where that code began,
// without a return. The assembler then adds a return, so that the machine code of the function
// looks complete: it returns without having done its work. The defect is visible in PTX only. So is
// whether the function of an operator keeps its caller's registers (RESIDENT_OPERATOR_ABI).
//
// INVALID_ARGUMENT: control can reach the end of a function, or the function of an operator is not
// one that RESIDENT_OPERATOR defines; the message names it.
absl::Status CheckPtxFunctions(std::string_view ptx);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_INSPECT_H_
