// CompileTarget: what operators are compiled for, and by which toolchain. An engine reports the
// name of its target (EngineTraits::compile_target); jobs, units and the cache contain that name.
// Only this package interprets it.
//
// Thread safety: a value.
//
//   ASSIGN_OR_RETURN(const CompileTarget target, CompileTarget::Find("sm_90"));
#ifndef RESIDENT_RUNTIME_COMPILE_COMPILE_TARGET_H_
#define RESIDENT_RUNTIME_COMPILE_COMPILE_TARGET_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace resident {

enum class Toolchain : uint8_t {
  // A host compiler, for this machine's processor: x86-64.
  kHost,
  // NVRTC and nvJitLink, for a GPU.
  kCuda,
};

struct CompileTarget {
  Toolchain toolchain = Toolchain::kHost;
  // kCuda: 90 for sm_90.
  int architecture = 0;

  bool operator==(const CompileTarget&) const = default;

  // "x86-64", "sm_90": also the key of InstallProgress::resources.
  std::string name() const;
  // Returns the target with this name. INVALID_ARGUMENT: there is none.
  static absl::StatusOr<CompileTarget> Find(std::string_view name);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_COMPILE_TARGET_H_
