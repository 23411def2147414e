// Units: the input of a compiler for one version of an operator, which is made of the files of an
// install and of the headers of the SDK.
//
// The sources that were sent are not changed. A generated main file includes the SDK and
// then the version's main file inside a namespace of the unit's own. So equal names in two
// versions do not conflict, and a compiler's messages have the files and lines that were sent.
// A unit exports (kernels/sdk/operator.h):
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

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/compile/compile_job.h"

namespace resident {

struct Unit {
  // Name and text of the generated main file. A client cannot send a file with this name.
  std::string main_name;
  std::string main_text;
  // Options for any of the compilers: "-DRESIDENT_UNIT=0123456789abcdef", ...
  std::vector<std::string> definitions;
  std::string symbol;
};

// Refuses a job before it is compiled: sources over a limit, or invalid names. INVALID_ARGUMENT:
// the message has the file or the limit.
absl::Status CheckSources(const CompileJob& job);

// REQUIRES: CheckSources(job).ok().
Unit MakeUnit(const CompileJob& job);

// Returns the digits of a unit's symbol with their prefix ("c" for a checked build); empty if the
// name does not have that form.
std::string ParseUnitId(const std::string& symbol);
// Returns the mangled prefix of the names of a unit's other functions.
std::string UnitNamespace(const std::string& unit_id);

// Checks the name of an install's file, under which others include it. Names become paths below the
// folder of a compilation, next to those of the SDK's headers. The front end and the compile process
// use the same check.
//
// INVALID_ARGUMENT: not a relative path of letters, digits and _-./ that stays below its
// folder; longer than kMaxInstallFileNameBytes; in a folder of the SDK.
absl::Status CheckFileName(const std::string& name);

// INVALID_ARGUMENT: the file to compile is not among `files` (name to contents).
absl::Status CheckMainFile(const std::map<std::string, std::string>& files,
                           const std::string& main_file);

// The headers of the operator SDK as text, for compilers. They are part of this program, so that a
// daemon needs no other files of the project.
//
// Maps the name in an #include to the text. Each header has two names: "kernels/sdk/operator.h"
// and its short form "resident/operator.h".
const std::map<std::string, std::string>& SdkHeaders();

// Hash of names and texts, which is part of the cache key of a compiled unit.
const std::string& SdkHash();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_UNIT_H_
