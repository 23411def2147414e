// Sandbox: removes from the calling process, and from all processes that it starts, the rights
// that a compiler does not need. This cannot be undone.
//
//   layer      restriction                                           needs
//   rlimits    CPU time, address space, size of a written file,      any Linux
//              descriptors, no core file
//   Landlock   only the given files can be opened; only programs     Linux 5.13
//              in the given folders can be executed
//   seccomp    a list of allowed system calls, without sockets,      any Linux with seccomp
//              other processes' signals, memory and limits,
//              changes of files by their path alone, and the
//              kernel's interfaces; with `single_process` without
//              other processes and programs, and files can only
//              be read
//
// A layer that the kernel does not support is omitted, and DescribeSandbox reports it. Not
// restricted: reading attributes of files (stat), the time, CPU use within the limits.
//
// Thread safety: call ConfineProcess before the process starts threads.
#ifndef RESIDENT_RUNTIME_BASE_SANDBOX_SANDBOX_H_
#define RESIDENT_RUNTIME_BASE_SANDBOX_SANDBOX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace resident {

struct SandboxOptions {
  // For each of these three, 0 means no limit.
  uint64_t cpu_seconds = 0;
  uint64_t memory_bytes = 0;
  uint64_t file_bytes = 0;
  // Files, and folders with everything below them. Paths that do not exist are ignored.
  std::vector<std::string> readable;
  std::vector<std::string> executable;  // Readable too.
  std::vector<std::string> writable;    // Readable too.
  // No fork and no exec.
  bool single_process = false;
};

// INTERNAL: a layer that the kernel supports could not be applied.
absl::Status ConfineProcess(const SandboxOptions& options);

// The layers that are used on this machine, for messages.
struct SandboxLayers {
  // Layers of compilers: "limits, Landlock (version 7), seccomp".
  std::string held;
  // Layers of engines (engine_sandbox.h): "Landlock (version 7), seccomp"; "nothing"; with the
  // value of $RESIDENTD_ENGINE_SANDBOX if it is set: "nothing (RESIDENTD_ENGINE_SANDBOX=off)".
  std::string engines;
  // One message for each layer that is not supported or is disabled for engines: what is not
  // restricted, and the fix.
  std::vector<std::string> missing;
};
// Queries the kernel and changes nothing. Call it from a process that is not confined.
SandboxLayers DescribeSandbox();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SANDBOX_SANDBOX_H_
