// Runs another program until it ends and returns its output. There is no time limit: use it only
// for programs that are known to end.
//
// Thread safety: may be called from any thread.
//
//   ASSIGN_OR_RETURN(ProgramOutput output, RunProgram({"/usr/bin/g++", "--version"}, {}));
#ifndef RESIDENT_RUNTIME_COMPILE_RUN_PROGRAM_H_
#define RESIDENT_RUNTIME_COMPILE_RUN_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident {

struct ProgramPlace {
  std::string folder;              // Current folder; empty: this process's.
  std::string input_file;          // Standard input; empty: /dev/null.
  std::string temporary;           // $TMPDIR; empty: /tmp.
  uint64_t max_output = 1u << 20;  // Output beyond this limit is dropped.
};

struct ProgramOutput {
  std::string text;  // Standard output and standard error, in order of arrival.
  bool success = false;
  int status = 0;  // From waitpid(2).
};

// `arguments[0]` is the program's path. UNAVAILABLE: it cannot be run.
absl::StatusOr<ProgramOutput> RunProgram(const std::vector<std::string>& arguments,
                                         const ProgramPlace& place);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_RUN_PROGRAM_H_
