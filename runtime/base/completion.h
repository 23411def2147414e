// Completion of a program's commands and flags in bash, zsh and fish.
//
// Thread safety: none.
#ifndef RESIDENT_RUNTIME_BASE_COMPLETION_H_
#define RESIDENT_RUNTIME_BASE_COMPLETION_H_

#include "runtime/base/command_line.h"

namespace resident {

// Adds the commands `completion bash`, `completion zsh` and `completion fish`, which print a
// script for the shell with all that the program has when the command runs.
void AddCompletionCommand(Command& program);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_COMPLETION_H_
