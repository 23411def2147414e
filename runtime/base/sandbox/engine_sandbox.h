// What confines an engine process, so that an operator that means harm reaches what the engine
// has, and nothing else of the machine.
//
//              EngineProfile::kNative                 EngineProfile::kDriver
//   layer      (the CPU engine)                       (the CUDA engine)
//   Landlock   no file can be opened, except for       the driver's devices; to read: the system's
//              the number of CPUs. (An operator's      libraries and what the kernel says of
//              devices object is memory.)
//   seccomp    a list of allowed calls: threads,      a list of refused calls: new sockets, other
//              memory, time, what is open already     processes, programs, kernel interfaces
//
// Operators of a GPU make no system calls; there the layers hold a driver or an engine that was
// taken over through the memory that it shares with its kernel.
//
// A layer that the kernel does not have is left out, and DescribeSandbox (sandbox.h) says so.
// Not held back: the engine's own memory, CPU time, amounts of memory, attributes of files (stat)
// by the path.
//
// For measurements, $RESIDENTD_ENGINE_SANDBOX of the daemon chooses layers: "off"; "files": without
// the filter; "calls": without Landlock; "report": all, and each refused call is written to stderr
// with its number (a driver's thread that blocks SIGSYS is killed by it). Otherwise: all.
//
// Thread safety: the functions that confine are called once, from one thread.
//
//   ConfineEngineFiles(...)   before the process starts threads: Landlock binds the calling
//                             thread and those that it starts
//   ConfineEngineCalls(...)   kNative: at once after it. kDriver: when the driver is up.
#ifndef RESIDENT_RUNTIME_BASE_SANDBOX_ENGINE_SANDBOX_H_
#define RESIDENT_RUNTIME_BASE_SANDBOX_ENGINE_SANDBOX_H_

#include <cstdint>

#include "absl/status/status.h"

namespace resident {

inline constexpr char kEngineSandboxVariable[] = "RESIDENTD_ENGINE_SANDBOX";

// Whether $RESIDENTD_ENGINE_SANDBOX leaves the layer on.
bool EngineFilesConfined();
bool EngineCallsConfined();

// What runs in an engine's process, and so what the process may do: a column of the table above.
enum class EngineProfile : uint8_t {
  // This project's code, and operators as native code.
  kNative,
  // NVIDIA's driver.
  kDriver,
};

// INTERNAL: a layer that the kernel has could not be put in place.
absl::Status ConfineEngineFiles(EngineProfile profile);
// All threads of the process. REQUIRES: ConfineEngineFiles.
absl::Status ConfineEngineCalls(EngineProfile profile);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SANDBOX_ENGINE_SANDBOX_H_
