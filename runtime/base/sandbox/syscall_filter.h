// Seccomp filters, made with libseccomp: system calls that a process has no use for fail with
// EPERM. There is one policy for each kind of process.
//
//   policy               kind of list     for
//   kCompiler            allowed calls    a host compiler: a driver and the programs that it starts
//   kCompilerAlone       allowed calls    NVRTC and nvJitLink, in one process
//   kNativeEngine           allowed calls    this project's code, and operators as native code in
//   it kDriverEngine           refused calls    NVIDIA's driver, whose calls differ from version to
//   version
//
// The lists of the compilers have what g++ 12 (with cc1plus, as, collect2, ld and lto1) and NVRTC
// and nvJitLink 13.0 were seen to call, by strace, and calls that do the same or as little.
//
// Files are restricted by Landlock (landlock.h). kCompilerAlone and kNativeEngine open files to
// read only, also where there is no Landlock.
//
// Thread safety: the functions may be called from any thread. A filter binds the calling thread
// and the threads and processes that it starts, or all threads of the process (FilterOptions).
#ifndef RESIDENT_RUNTIME_BASE_SANDBOX_SYSCALL_FILTER_H_
#define RESIDENT_RUNTIME_BASE_SANDBOX_SYSCALL_FILTER_H_

#include "absl/status/status.h"

namespace resident {

// Whether the kernel has filters.
bool HasSyscallFilters();

// No policy allows: new sockets and connections; signals to, inspection of and limits and
// schedules for other processes; System V and POSIX message queues, semaphores and shared memory;
// changing a file by its path alone (truncate, modes, owners, times, attributes); mounts,
// namespaces, keys, modules, clocks, io_uring, bpf, leaving the process group. The calling process
// may signal itself, as abort() does.
enum class SyscallPolicy {
  // Allowed: what is open already, memory, threads, time; files and other programs, as far as
  // Landlock lets it. No messages on sockets.
  kCompiler,
  // Allowed: what is open already, memory, threads, time; opening files to read. No messages on
  // sockets, no fork and no exec.
  kCompilerAlone,
  // Allowed: the same, and messages on sockets that are open already.
  kNativeEngine,
  // Refused: what no policy allows, and fork and exec.
  kDriverEngine,
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
