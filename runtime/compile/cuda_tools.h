// NVRTC, which compiles sources to relocatable device code, and nvJitLink, which links units into
// modules. Both are opened at run time and need no GPU.
//
// In a build without CUDA the functions exist and return an error.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_COMPILE_CUDA_TOOLS_H_
#define RESIDENT_RUNTIME_COMPILE_CUDA_TOOLS_H_

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
};

// Returns a relocatable cubin. INVALID_ARGUMENT: the source does not compile, or the compiler has
// dropped code (CheckPtxFunctions). Writes the compiler's whole output to `log` in either case.
absl::StatusOr<std::string> NvrtcCompile(const NvrtcSource& source, std::string* log);

// Returns the module of an inspected cubin (runtime/image/link.h).
// INVALID_ARGUMENT: it cannot be linked; the message has the linker's.
absl::StatusOr<std::string> LinkModule(const std::string& symbol, const std::string& unit,
                                       int architecture);

// Like InspectCubin, for PTX: links it, inspects the result and stores it in `module`.
absl::StatusOr<InspectedUnit> InspectPtx(const InspectRequest& request, std::string* module);

// Returns "nvJitLink 13.0", for example.
absl::StatusOr<std::string> LinkerVersion();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_CUDA_TOOLS_H_
