// UnitPayload: the compiled form of a version, kept with it for as long as it may run.
#ifndef RESIDENT_RUNTIME_INSTALL_UNIT_PAYLOAD_H_
#define RESIDENT_RUNTIME_INSTALL_UNIT_PAYLOAD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/install/operator_manager.h"
#include "runtime/registry/version_spec.h"

namespace resident {

// What a unit is compiled for: a GPU's architecture, as in 90, or kCpuTarget.
using UnitTarget = uint32_t;
inline constexpr UnitTarget kCpuTarget = 0;

// "sm_90", "x86-64".
std::string TargetName(UnitTarget target);

struct CompiledUnit {
  std::shared_ptr<const std::string> object;
  ResourceUse resources;
};

struct UnitPayload : VersionPayload {
  // The function that every object defines.
  std::string symbol;
  std::map<UnitTarget, CompiledUnit> units;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_INSTALL_UNIT_PAYLOAD_H_
