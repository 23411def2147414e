// Compiler: turns sources into objects that engines load, in separate processes.
//
// A failing or hostile compilation does not affect the daemon: each runs in a new
// `residentd compile`, under limits on time, memory and output, without a network
// and without files except its inputs and the compiler's own (sandbox.h). If it exceeds a
// limit, it is killed with all that it started. A process is started ahead of each
// compilation, so that a compilation does not wait for the start.
//
// Results are cached on disk by content (object_cache.h): a cached result costs a file read
// and starts no process.
//
// Calls block for as long as the compiler takes: milliseconds from the cache, 20 to 500 ms
// otherwise, at most CompileLimits::wall_time. At most `max_processes` compilations run at
// the same time; the others wait.
//
// Thread safety: all members may be called from any thread.
//
//   auto compiler = Compiler::Create({.cache_dir = state_dir + "/cache"});  // absl::StatusOr.
//   CompileResult unit = (*compiler)->Compile(job);
//   if (!unit.compiled.ok()) ...   // unit.log has the lines.
//   if (!unit.inspected.ok()) ...
#ifndef RESIDENT_RUNTIME_COMPILE_COMPILER_H_
#define RESIDENT_RUNTIME_COMPILE_COMPILER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/compile/compile_job.h"

namespace resident {

struct CompilerOptions {
  // Empty: nothing is cached.
  std::string cache_dir;
  // --compile_cache_mib.
  uint64_t cache_mib = 512;
  // --host_compiler: path, or a name in $PATH. Empty: the first of g++, c++, clang++.
  std::string host_compiler;
  // --compile_processes: how many compilations may run at the same time.
  uint32_t max_processes = 4;
  CompileLimits limits;
  // Names of the targets for which processes are started ahead.
  std::vector<std::string> ahead;
  // Program to run as `PROGRAM compile ...`; default: this one (/proc/self/exe).
  std::string program;
};

class Compiler {
 public:
  // INVALID_ARGUMENT, FAILED_PRECONDITION: cache_dir cannot be used; the message says why. A
  // missing compiler is reported by Compile.
  static absl::StatusOr<std::unique_ptr<Compiler>> Create(const CompilerOptions& options);

  virtual ~Compiler() = default;

  virtual CompileResult Compile(const CompileJob& job) = 0;
  // Inspects an object as Compile does. PTX is compiled first.
  virtual CompileResult CompileObject(const ObjectJob& job) = 0;

  struct Counters {
    uint64_t cache_hits = 0;
    uint64_t cache_misses = 0;
    uint64_t killed = 0;  // Exceeded a limit.
    uint64_t cache_bytes = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_COMPILER_H_
