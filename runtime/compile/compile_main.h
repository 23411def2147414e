// `residentd compile`: the process in which compilers run. Confines itself, says Hello on
// descriptor 3 and answers what comes there (proto/resident/internal/compile.proto) until
// the other side closes it. Started by CompileProcess only.
//
//   --kind=host|cuda  what it is for, and so what it may open and start
//   --folder=PATH          host: the one folder it may write to
//   --compiler=PATH, --readable=PATH..., --executable=PATH...   host: HostCompiler
//   --cpu_seconds=N, --memory_mib=N
#ifndef RESIDENT_RUNTIME_COMPILE_COMPILE_MAIN_H_
#define RESIDENT_RUNTIME_COMPILE_COMPILE_MAIN_H_

namespace resident {

inline constexpr int kCompileFd = 3;

// The exit status.
int CompileMain(int argc, char** argv);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_COMPILE_MAIN_H_
