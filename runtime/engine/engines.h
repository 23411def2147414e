// The table of engines. A new engine is a folder beside this file, a row in engines.cc and, if
// its operators are compiled for something new, a target in runtime/compile/compile_job.h.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_ENGINE_ENGINES_H_
#define RESIDENT_RUNTIME_ENGINE_ENGINES_H_

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/engine/engine_type.h"

namespace resident {

// In the order in which --devices=all prefers them. The last one has a device on every machine.
std::span<const EngineType> EngineTypes();

// The row of this name. INVALID_ARGUMENT, with the names that there are.
absl::StatusOr<const EngineType*> FindEngineType(std::string_view name);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_ENGINES_H_
