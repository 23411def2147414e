// Shell completion of a program's commands and flags in bash, zsh and fish.
//
// Thread safety: none.
#ifndef RESIDENT_RUNTIME_BASE_COMPLETION_H_
#define RESIDENT_RUNTIME_BASE_COMPLETION_H_

#include "runtime/base/command_line.h"

namespace resident {

// Adds the commands `completion bash`, `completion zsh` and `completion fish`. Each prints a script
// for the shell with all commands and flags that the program has at that time.
void AddCompletionCommand(Command& program);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_COMPLETION_H_
