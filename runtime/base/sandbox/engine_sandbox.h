// The sandbox of an engine process. A malicious operator can reach the resources of its engine, but
// nothing else on the machine.
//
//              EngineProfile::kNative                 EngineProfile::kDriver
//   layer      (the CPU engine)                       (the CUDA engine)
//   Landlock   can open only the files with the       can open the driver's devices, and read the
//              number of CPUs (an operator's          system's libraries and the files in which
//              shared object is in memory)            the kernel describes devices
//   seccomp    a list of allowed calls: threads,      a list of refused calls: new sockets, other
//              memory, time, open descriptors         processes, programs, kernel interfaces
//
// Operators of a GPU make no system calls. There the layers confine a driver or an engine that was
// compromised through the memory that it shares with its kernel.
//
// A layer that the kernel does not support is omitted, and DescribeSandbox (sandbox.h) reports it.
// Not restricted: the engine's own memory, CPU time, amounts of memory, and reading attributes of
// files (stat) by path.
//
// For measurements, $RESIDENTD_ENGINE_SANDBOX of the daemon selects layers: "off": none; "files":
// only Landlock; "calls": only seccomp; "report": all, and the number of each refused call is
// written to stderr (a driver's thread that blocks SIGSYS is killed by it). Otherwise: all.
//
// Thread safety: the functions that confine are called once, from one thread.
//
//   ConfineEngineFiles(...)   before the process starts threads: Landlock applies to the calling
//                             thread and to the threads that it starts
//   ConfineEngineCalls(...)   kNative: directly after it. kDriver: when the driver is initialised.
#ifndef RESIDENT_RUNTIME_BASE_SANDBOX_ENGINE_SANDBOX_H_
#define RESIDENT_RUNTIME_BASE_SANDBOX_ENGINE_SANDBOX_H_

#include <cstdint>

#include "absl/status/status.h"

namespace resident {

inline constexpr char kEngineSandboxVariable[] = "RESIDENTD_ENGINE_SANDBOX";

// Whether $RESIDENTD_ENGINE_SANDBOX enables the layer.
bool EngineFilesConfined();
bool EngineCallsConfined();

// What runs in an engine's process, and so what the process may do: a column of the table above.
enum class EngineProfile : uint8_t {
  // This project's code, and operators as native code.
  kNative,
  // NVIDIA's driver.
  kDriver,
};

// INTERNAL: a layer that the kernel supports could not be applied.
absl::Status ConfineEngineFiles(EngineProfile profile);
// Applies to all threads of the process. REQUIRES: ConfineEngineFiles was called.
absl::Status ConfineEngineCalls(EngineProfile profile);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SANDBOX_ENGINE_SANDBOX_H_
