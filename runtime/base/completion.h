// A program's commands and flags as other programs want them: scripts that complete them in bash,
// zsh and fish, and a manual page.
//
// Thread safety: none.
#ifndef RESIDENT_RUNTIME_BASE_COMPLETION_H_
#define RESIDENT_RUNTIME_BASE_COMPLETION_H_

#include "runtime/base/command_line.h"

namespace resident {

// Adds the commands `completion bash`, `completion zsh` and `completion fish`. Each prints a script
// for the shell with all commands and flags that the program has at that time.
void AddCompletionCommand(Command& program);

// Adds the command `manual`, which prints a manual page with all commands and flags that the
// program has at that time, in the format of man(7). `section`: 1 for programs of users, 8 for
// daemons.
void AddManualCommand(Command& program, int section);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_COMPLETION_H_
