// Links relocatable device code into a cubin with nvJitLink, opened at run time.
//
// Needs no GPU and no context. In a build without CUDA there is no such library target.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_IMAGE_LINK_H_
#define RESIDENT_RUNTIME_IMAGE_LINK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/resident/kernel_parameters.h"

namespace resident {

struct LinkInput {
  std::string name;
  // A relocatable cubin, or PTX. For PTX, bytes.data()[bytes.size()] must be zero.
  std::string_view bytes;
  bool is_ptx = false;
};

// Returns the cubin for an architecture (90 for sm_90). PTX is compiled like operators: within the
// kernel's registers and without constant memory. UNAVAILABLE: there is no nvJitLink.
// INTERNAL: it failed; the message has its log.
absl::StatusOr<std::string> LinkImage(const std::vector<LinkInput>& inputs, int architecture,
                                      uint32_t max_registers = kMaxRegisters);

// Returns "nvJitLink 13.0", for example. UNAVAILABLE: see above.
absl::StatusOr<std::string> JitLinkVersion();

// Operator modules: units of operators, linked so that each can be loaded separately from the
// kernel, which is already on the device.
//
// The kernel calls operators through a table of addresses in its constant memory. With
// -rdc=true a function's address is absolute, so the table may contain functions of any
// module. A function must not read constant memory, because it would access the kernel's
// banks. Inspection enforces that (runtime/compile/inspect.h).

// A module has a variable of eight bytes for each operator, SYMBOL_entry, with its address.
inline constexpr char kEntrySuffix[] = "_entry";
// The kernel's table, by slot: kMaxOperatorSlots addresses (resident::kJumpTable).
inline constexpr char kJumpTableName[] = "_ZN8resident10kJumpTableE";
// That of the limits of tasks (resident::kTaskLimits).
inline constexpr char kTaskLimitsName[] = "_ZN8resident11kTaskLimitsE";

// Returns the module of `unit`, a relocatable cubin or PTX that defines the operators `symbols`.
// Errors: see LinkImage.
absl::StatusOr<std::string> LinkOperatorModule(const std::vector<std::string>& symbols,
                                               const std::string& unit, int architecture,
                                               uint32_t max_registers = kMaxRegisters);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_IMAGE_LINK_H_
