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

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_INSPECT_H_
