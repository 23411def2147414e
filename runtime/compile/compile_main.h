// `residentd compile`: the process in which compilers run. It confines itself, sends Hello on
// descriptor 3 and answers the requests that arrive there
// (proto/resident/internal/compile.proto) until the other side closes it. Started by
// CompileProcess only.
//
//   --kind=host|cuda  the toolchain; determines what it may open and start
//   --folder=PATH          host: the one folder it may write to
//   --compiler=PATH, --readable=PATH..., --executable=PATH...   host: HostCompiler
//   --cpu_seconds=N, --memory_mib=N
//
// With RESIDENT_VERIFY_ONLY=FILE in the environment it only verifies rewritten PTX: exit status 0,
// or 1 and the reason.
#ifndef RESIDENT_RUNTIME_COMPILE_COMPILE_MAIN_H_
#define RESIDENT_RUNTIME_COMPILE_COMPILE_MAIN_H_

namespace resident {

inline constexpr int kCompileFd = 3;

// Returns the exit status.
int CompileMain(int argc, char** argv);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_COMPILE_MAIN_H_
