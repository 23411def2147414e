// Units: what a compiler is given for one version of an operator.
//
// The sources that were sent stay as they are; a generated main file includes the SDK and
// then the version's main file inside a namespace of the unit's own. So equal names in two
// versions do not meet, and a compiler names the files and
// lines that were sent. Exported are (kernels/sdk/operator.h):
//
//   resident_op_<id>           the operator; resident_opc_<id> of the checked build
//   resident_sdk_<version>_<id>
//
// Thread safety: pure functions.
//
//   RETURN_IF_ERROR(CheckSources(job));
//   Unit unit = MakeUnit(job);
#ifndef RESIDENT_RUNTIME_COMPILE_UNIT_H_
#define RESIDENT_RUNTIME_COMPILE_UNIT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/compile/compile_job.h"

namespace resident {

struct Unit {
  // Name and text of the generated main file. The name is none that a client may send.
  std::string main_name;
  std::string main_text;
  // Options for any of the compilers: "-DRESIDENT_UNIT=0123456789abcdef", ...
  std::vector<std::string> definitions;
  std::string symbol;
};

// Refuses what no compiler is asked about: too much of it, or names that are none.
// INVALID_ARGUMENT: which file, which limit.
absl::Status CheckSources(const CompileJob& job);

// REQUIRES: CheckSources(job).ok().
Unit MakeUnit(const CompileJob& job);

// The digits of a unit's symbol with their prefix ("c" of a checked build); empty if the
// name is not of that form.
std::string ParseUnitId(const std::string& symbol);
// Prefix of the names that a unit's other functions have, mangled.
std::string UnitNamespace(const std::string& unit_id);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_UNIT_H_
