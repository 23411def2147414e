// A seccomp filter: system calls that a compiler has no use for fail with EPERM, in the
// calling thread and in what it starts.
//
// It lists what is refused, not what is allowed: a compiler's own calls differ from
// version to version, and a filter that breaks it protects nobody. Files are Landlock's.
//
// Thread safety: as RestrictFiles in landlock.h.
#ifndef RESIDENT_RUNTIME_COMPILE_SYSCALL_FILTER_H_
#define RESIDENT_RUNTIME_COMPILE_SYSCALL_FILTER_H_

#include "absl/status/status.h"

namespace resident {

// Whether the kernel has filters.
bool HasSyscallFilters();

// Refused: sockets of all kinds; signals to, inspection of and limits for other processes;
// changing a file by its path alone (truncate, modes, owners, times, attributes); mounts,
// namespaces, keys, modules, clocks, io_uring, bpf, leaving the process group; with
// `single_process` also fork and exec. The calling process alone may signal itself, as
// abort() does. REQUIRES: PR_SET_NO_NEW_PRIVS.
absl::Status FilterSyscalls(bool single_process);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_SYSCALL_FILTER_H_
