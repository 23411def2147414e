// Runs another program to its end and returns what it said. For programs that are known
// to end; there is no limit on time here.
//
// Thread safety: may be called from any thread.
//
//   ASSIGN_OR_RETURN(ProgramOutput said, RunProgram({"/usr/bin/g++", "--version"}, {}));
#ifndef RESIDENT_RUNTIME_COMPILE_RUN_PROGRAM_H_
#define RESIDENT_RUNTIME_COMPILE_RUN_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident {

struct ProgramPlace {
  std::string folder;               // Current folder; empty: this process's.
  std::string input_file;           // Standard input; empty: /dev/null.
  std::string temporary;            // $TMPDIR; empty: /tmp.
  uint64_t most_output = 1u << 20;  // What it says beyond that is dropped.
};

struct ProgramOutput {
  std::string text;  // Standard output and standard error, as they came.
  bool success = false;
  int status = 0;  // As of waitpid(2).
};

// `arguments[0]` is the program's path. UNAVAILABLE: it cannot be run.
absl::StatusOr<ProgramOutput> RunProgram(const std::vector<std::string>& arguments,
                                         const ProgramPlace& place);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_RUN_PROGRAM_H_
