// Inspection: whether a compiled unit can be part of a generation, before it is.
//
// Refused, always with the numbers and what to do: another SDK than this daemon's, no
// entry, calls of what is not there, names that others could have too, variables that
// would outlive a task, and more registers, stack, shared or constant memory or code than
// there is. Objects may be damaged or hostile; reading them is safe.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_COMPILE_INSPECT_H_
#define RESIDENT_RUNTIME_COMPILE_INSPECT_H_

#include <string>
#include <string_view>

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
  // Of a unit that was made here; empty: whatever single operator the object exports.
  std::string symbol;
  // The NAME of RESIDENT_OPERATOR(NAME) that the symbol stands for, for messages.
  std::string function;
  // GPU: as in 90.
  int architecture = 0;
  // GPU: of a thread.
  uint32_t max_registers = kMaxRegisters;
  // CPU: what the compiler wrote with -fcallgraph-info=su, or empty: then the stack is
  // unknown, and not checked.
  std::string call_graph;
};

// A relocatable cubin, or a linked one that holds the unit (`linked`: then names were
// looked at before, and what others export is not this unit's fault).
absl::StatusOr<InspectedUnit> InspectCubin(const InspectRequest& request, bool linked = false);
// A shared object for x86-64.
absl::StatusOr<InspectedUnit> InspectSharedObject(const InspectRequest& request);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_INSPECT_H_
