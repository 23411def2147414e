// UnitPayload: the compiled form of a version, kept for as long as the version may run.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_UNIT_PAYLOAD_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_UNIT_PAYLOAD_H_

#include <map>
#include <memory>
#include <string>

#include "runtime/compile/compile_job.h"
#include "runtime/model/version_spec.h"

namespace resident {

struct CompiledUnit {
  std::shared_ptr<const std::string> object;
  ResourceUse resources;
};

struct UnitPayload : VersionPayload {
  // The function that every object defines.
  std::string symbol;
  // By compile target (EngineTraits::compile_target).
  std::map<std::string, CompiledUnit> units;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_UNIT_PAYLOAD_H_
