// Serves a request in a compile process: check, compile, inspect, link. Call it in the confined
// process only: elsewhere nothing protects the process from hostile sources.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_COMPILE_JOB_RUNNER_H_
#define RESIDENT_RUNTIME_COMPILE_JOB_RUNNER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/internal/compile.pb.h"
#include "runtime/compile/host_compiler.h"

namespace resident {

// Compiles a source for x86-64.
internal::CompileResponse RunHostJob(const HostCompiler& compiler, const std::string& folder,
                                     const internal::CompileRequest& request);
// Compiles a source or inspects an object for a GPU.
internal::CompileResponse RunCudaJob(const internal::CompileRequest& request);

// Opens and uses the tools once, so that nothing has to be opened later. Returns the tools' names
// and versions.
absl::StatusOr<std::string> WarmCudaTools();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_JOB_RUNNER_H_
