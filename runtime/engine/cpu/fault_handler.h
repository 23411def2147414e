// What the CPU engine does when an operator faults: say which worker and why, in the
// shared region, and end the process. A GPU context ends in the same way.
//
// Thread safety: InstallFaultHandler once, before the workers start; NoteFaultContext
// from each worker.
#ifndef RESIDENT_RUNTIME_ENGINE_CPU_FAULT_HANDLER_H_
#define RESIDENT_RUNTIME_ENGINE_CPU_FAULT_HANDLER_H_

#include "kernels/layout/ring_layout.h"
#include "runtime/ring/shared_region.h"

namespace resident {

// Exit status of an engine that ended because of a fault.
inline constexpr int kFaultExitStatus = 3;

// Handles SIGSEGV, SIGBUS, SIGFPE and SIGILL from now on: a signal on a worker that is
// at a task writes exit_reason, marks the worker's breadcrumb and exits with
// kFaultExitStatus; any other one takes its default course.
void InstallFaultHandler(const SharedRegion& region);

// The calling worker is at the task of this breadcrumb.
void NoteFaultContext(Breadcrumb* breadcrumb);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CPU_FAULT_HANDLER_H_
