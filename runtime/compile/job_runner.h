// What a compile process does with a request: check, compile, inspect, link. Runs in the
// confined process; whoever calls it elsewhere is not protected from what it is given.
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

// Source for x86-64.
internal::CompileResponse RunHostJob(const HostCompiler& compiler, const std::string& folder,
                                     const internal::CompileRequest& request);
// Source or object for a GPU.
internal::CompileResponse RunCudaJob(const internal::CompileRequest& request);

// Opens and uses the tools once, so that nothing has to be opened later. The tool's name
// and version.
absl::StatusOr<std::string> WarmCudaTools();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_JOB_RUNNER_H_
