// The flags of `residentd serve` for installed operators: how they are compiled, loaded and
// monitored. operator_flags.cc has their names, texts and ranges.
//
// Thread safety: a value; a function without state.
#ifndef RESIDENT_SERVER_OPERATOR_FLAGS_H_
#define RESIDENT_SERVER_OPERATOR_FLAGS_H_

#include <string>

#include "runtime/base/command_line.h"
#include "runtime/compile/compiler.h"
#include "runtime/operators/install/live_operator_manager.h"

namespace resident {

struct OperatorOptions {
  // --state_dir; empty: nothing is kept.
  std::string state_dir;
  // --compile_*, --host_compiler. cache_dir is set from --state_dir.
  CompilerOptions compiler;
  // --park_deadline, --bake_*, --allow_objects; task_time_limit is set from ServeOptions.
  LiveOperatorManager::Options manager;
};

// Declares the flags, which set the options. The current values of the options are the defaults.
void AddOperatorFlags(Command& serve, OperatorOptions& options);

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATOR_FLAGS_H_
