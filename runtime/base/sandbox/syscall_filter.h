// Seccomp filters: system calls that a process has no use for fail with EPERM. There is one
// policy for each kind of process.
//
//   policy               kind of list     why
//   kCompiler            refused calls    a compiler's own calls differ from version to version,
//   kCompilerAlone       refused calls    and a filter that breaks it protects nobody
//   kCpuEngine           allowed calls    the engine is this project's code, and operators are
//                                         native code in it: a call that is not known is refused
//   kGpuEngine           refused calls    the driver's calls differ from version to version
//
// Files are restricted by Landlock (landlock.h). kCpuEngine opens files to read only, also where
// there is no Landlock.
//
// Thread safety: the functions may be called from any thread. A filter binds the calling thread
// and the threads and processes that it starts, or all threads of the process (FilterOptions).
#ifndef RESIDENT_RUNTIME_BASE_SANDBOX_SYSCALL_FILTER_H_
#define RESIDENT_RUNTIME_BASE_SANDBOX_SYSCALL_FILTER_H_

#include "absl/status/status.h"

namespace resident {

// Whether the kernel has filters.
bool HasSyscallFilters();

// Refused by all policies: new sockets and connections; signals to, inspection of and limits and
// schedules for other processes; System V and POSIX message queues, semaphores and shared memory;
// changing a file by its path alone (truncate, modes, owners, times, attributes); mounts,
// namespaces, keys, modules, clocks, io_uring, bpf, leaving the process group. The calling process
// may signal itself, as abort() does.
enum class SyscallPolicy {
  // Also refused: messages on sockets.
  kCompiler,
  // As kCompiler; also refused: fork and exec.
  kCompilerAlone,
  // Allowed: threads, memory, time, and what is open already, sockets among it.
  kCpuEngine,
  // Refused by all, and fork and exec.
  kGpuEngine,
};

struct FilterOptions {
  SyscallPolicy policy = SyscallPolicy::kCompiler;
  // All threads of the process, and not only the calling one.
  bool all_threads = false;
  // A refused call raises SIGSYS in the thread that made it, in place of failing: for a handler
  // that reports it.
  bool trap = false;
};

// REQUIRES: PR_SET_NO_NEW_PRIVS.
absl::Status FilterSyscalls(const FilterOptions& options);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SANDBOX_SYSCALL_FILTER_H_
