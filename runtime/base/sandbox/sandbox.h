// Sandbox: takes from the calling process, and from all that it will start, what a
// compiler does not need. There is no way back.
//
//   layer      what holds                                            needs
//   rlimits    CPU time, address space, size of a written file,      any Linux
//              descriptors, no core file
//   Landlock   no file can be opened but those given; programs can    Linux 5.13
//              be executed only from the given places
//   seccomp    a list of allowed system calls, without sockets,      any Linux with seccomp
//              other processes' signals, memory and limits,
//              changes of files by their path alone, and the
//              kernel's interfaces; with `single_process` without
//              other processes and programs, and files to read only
//
// A layer that is not to be had is left out, and DescribeSandbox says so. Not held back:
// reading attributes of files (stat), the time, CPU use within the limits.
//
// Thread safety: ConfineProcess before the process starts threads.
#ifndef RESIDENT_RUNTIME_BASE_SANDBOX_SANDBOX_H_
#define RESIDENT_RUNTIME_BASE_SANDBOX_SANDBOX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace resident {

struct SandboxOptions {
  // 0, in these three: no limit.
  uint64_t cpu_seconds = 0;
  uint64_t memory_bytes = 0;
  uint64_t file_bytes = 0;
  // Files, and folders with all below them. Those that do not exist are left out.
  std::vector<std::string> readable;
  std::vector<std::string> executable;  // Readable too.
  std::vector<std::string> writable;    // Readable too.
  // No fork and no exec.
  bool single_process = false;
};

// INTERNAL: a layer that the kernel has could not be put in place.
absl::Status ConfineProcess(const SandboxOptions& options);

// What confines processes here, for people.
struct SandboxLayers {
  // Compilers: "limits, Landlock (version 7), seccomp".
  std::string held;
  // Engines (engine_sandbox.h): "Landlock (version 7), seccomp"; "nothing"; with the value of
  // $RESIDENTD_ENGINE_SANDBOX if it is set: "nothing (RESIDENTD_ENGINE_SANDBOX=off)".
  std::string engines;
  // Of each layer that is not to be had or that engines are started without: what is open, and what
  // to do.
  std::vector<std::string> missing;
};
// Asks the kernel, and changes nothing: for a process that is not confined.
SandboxLayers DescribeSandbox();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SANDBOX_SANDBOX_H_
