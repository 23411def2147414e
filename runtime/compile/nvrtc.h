// NVRTC, opened at run time: sources to relocatable device code. Needs no GPU.
//
// In a build without CUDA the functions exist and say so.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_COMPILE_NVRTC_H_
#define RESIDENT_RUNTIME_COMPILE_NVRTC_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// "NVRTC 13.0". UNAVAILABLE: there is no NVRTC on this machine, and what to do.
absl::StatusOr<std::string> NvrtcVersion();

// Compiles a trifle, so that NVRTC has opened all that it needs: it may be confined then.
// The unit, with the function kWarmFunction.
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

// A relocatable cubin. INVALID_ARGUMENT: does not compile, or the compiler has dropped code
// (inspect_ptx.h). `log` gets all that the
// compiler said, in either case.
absl::StatusOr<std::string> NvrtcCompile(const NvrtcSource& source, std::string* log);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_NVRTC_H_
