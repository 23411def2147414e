// NVRTC, which compiles sources to relocatable device code, and nvJitLink, which links units into
// modules. Both are opened at run time and need no GPU.
//
// In a build without CUDA the functions exist and return an error.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_COMPILE_CUDA_TOOLS_H_
#define RESIDENT_RUNTIME_COMPILE_CUDA_TOOLS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/compile/inspect.h"

namespace resident {

// Returns "NVRTC 13.0", for example. UNAVAILABLE: there is no NVRTC on this machine; the message
// says what to do.
absl::StatusOr<std::string> NvrtcVersion();

// Compiles a small unit, so that NVRTC opens all files that it needs before the process is
// confined. Returns the unit, which has the function kWarmFunction.
inline constexpr char kWarmFunction[] = "warm";
inline constexpr int kWarmArchitecture = 80;
absl::StatusOr<std::string> WarmNvrtc();

struct NvrtcSource {
  std::string main_name;
  std::string main_text;
  // Everything that may be included: name to text.
  std::map<std::string, std::string> headers;
  std::vector<std::string> options;
  // Return PTX in place of a cubin; the architecture is virtual ("-arch=compute_90").
  bool ptx = false;
};

// Returns a relocatable cubin or PTX. INVALID_ARGUMENT: the source does not compile, or the
// compiler has dropped code (CheckPtxFunctions). Writes the compiler's whole output to `log` in
// either case.
absl::StatusOr<std::string> NvrtcCompile(const NvrtcSource& source, std::string* log);

// Returns the module of an inspected cubin (runtime/image/link.h).
// INVALID_ARGUMENT: it cannot be linked; the message has the linker's. PTX is compiled for at most
// `max_registers` registers.
absl::StatusOr<std::string> LinkModule(const std::string& symbol, const std::string& unit,
                                       int architecture, uint32_t max_registers = kMaxRegisters);

// Checks what the PTX that a client sent declares. Returns the symbol of its operator.
absl::StatusOr<std::string> CheckPtxObject(const InspectRequest& request);
// Like InspectCubin, for PTX that was checked: links it, inspects the result and stores it in
// `module`. REQUIRES: request.symbol is not empty.
absl::StatusOr<InspectedUnit> InspectPtx(const InspectRequest& request, std::string* module);

// Returns "nvJitLink 13.0", for example.
absl::StatusOr<std::string> LinkerVersion();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_CUDA_TOOLS_H_
