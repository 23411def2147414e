// Seccomp filters, made with libseccomp: system calls that a process does not need fail with
// EPERM. There is one policy for each kind of process.
//
//   policy               kind of list     used for
//   kCompiler            allowed calls    a host compiler: a driver and the programs that it starts
//   kCompilerAlone       allowed calls    NVRTC and nvJitLink, in one process
//   kNativeEngine        allowed calls    this project's code, and operators as native code in it
//   kDriverEngine        refused calls    NVIDIA's driver, whose calls differ between versions
//
// The lists of the compilers contain the calls of g++ 12 (with cc1plus, as, collect2, ld and lto1)
// and of NVRTC and nvJitLink 13.0 that strace showed, and calls that do the same or less.
//
// Landlock restricts files (landlock.h). kCompilerAlone and kNativeEngine can open files only for
// reading, also without Landlock.
//
// Thread safety: the functions may be called from any thread. A filter applies to the calling
// thread and to the threads and processes that it starts, or to all threads of the process
// (FilterOptions).
#ifndef RESIDENT_RUNTIME_BASE_SANDBOX_SYSCALL_FILTER_H_
#define RESIDENT_RUNTIME_BASE_SANDBOX_SYSCALL_FILTER_H_

#include "absl/status/status.h"

namespace resident {

// Whether the kernel supports filters.
bool HasSyscallFilters();

// No policy allows: new sockets and connections; signals to other processes, and their inspection,
// limits and schedules; System V and POSIX message queues, semaphores and shared memory; changing a
// file by its path alone (truncate, modes, owners, times, attributes); mounts, namespaces, keys,
// modules, clocks, io_uring, bpf, leaving the process group. The calling process may signal itself,
// as abort() does.
enum class SyscallPolicy {
  // Allowed: open descriptors, memory, threads, time; files and other programs that Landlock
  // allows. An open socket can be read and written, but no descriptors can be passed over it.
  kCompiler,
  // Allowed: open descriptors, memory, threads, time; opening files for reading. Sockets as above;
  // no fork and no exec.
  kCompilerAlone,
  // Allowed: the same, and descriptors can be received over an open socket.
  kNativeEngine,
  // Refused: what no policy allows, and fork and exec.
  kDriverEngine,
};

struct FilterOptions {
  SyscallPolicy policy = SyscallPolicy::kCompiler;
  // Apply the filter to all threads of the process, and not only to the calling one.
  bool all_threads = false;
  // A refused call raises SIGSYS in the calling thread instead of failing, for a handler that
  // reports it.
  bool trap = false;
};

// REQUIRES: PR_SET_NO_NEW_PRIVS.
absl::Status FilterSyscalls(const FilterOptions& options);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SANDBOX_SYSCALL_FILTER_H_
