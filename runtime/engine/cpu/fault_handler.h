// Handles a fault of an operator in the CPU engine: writes the worker and the reason to the
// shared region and ends the process. A fault on a GPU also ends its engine.
//
// Thread safety: InstallFaultHandler once, before the workers start; NoteFaultContext
// from each worker.
#ifndef RESIDENT_RUNTIME_ENGINE_CPU_FAULT_HANDLER_H_
#define RESIDENT_RUNTIME_ENGINE_CPU_FAULT_HANDLER_H_

#include "kernels/layout/ring_layout.h"
#include "runtime/ring/shared_region.h"

namespace resident {

// Handles SIGSEGV, SIGBUS, SIGFPE and SIGILL from now on: a signal on a worker that runs a
// task writes exit_reason, marks the worker's breadcrumb and exits with
// kEngineFaultStatus; on other threads the default action is taken.
void InstallFaultHandler(const SharedRegion& region);

// Must be called by a worker before it runs the task of this breadcrumb.
void NoteFaultContext(Breadcrumb* breadcrumb);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CPU_FAULT_HANDLER_H_
