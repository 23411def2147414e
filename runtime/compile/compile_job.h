// What is compiled, within which limits, and what comes back: value types that
// the Compiler and the compile process share.
#ifndef RESIDENT_RUNTIME_COMPILE_COMPILE_JOB_H_
#define RESIDENT_RUNTIME_COMPILE_COMPILE_JOB_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/compile/resource_use.h"

namespace resident {

// Limits of one compilation. What is over one of them is refused, or killed.
// Of the folder that a host compiler works in, with all that it writes there.
inline constexpr uint64_t kMaxCompileFolderMib = 256;
inline constexpr uint64_t kMaxCompileFolderEntries = 10'000;

struct CompileLimits {
  // --compile_cpu_time, --compile_wall_time.
  std::chrono::seconds cpu_time{60};
  std::chrono::milliseconds wall_time{60'000};
  // --compile_memory_mib: address space of each of its processes.
  uint64_t memory_mib = 4096;
  // Of all files in its folder (kMaxCompileFolderMib).
  uint64_t folder_mib = kMaxCompileFolderMib;
};

// Limits that are not set. Those of what is sent are in runtime/base/limits.h.
// Between front end and compile process: sources, or a unit, and what is said of it.
inline constexpr uint64_t kMaxMessageBytes = 64u << 20;
inline constexpr uint64_t kMaxCompilerLogBytes = 256u << 10;
// Machine code of one unit.
inline constexpr uint32_t kMaxUnitCodeBytes = 1u << 20;
// Stack of an operator on the CPU: the worker threads' own is 8 MiB.
inline constexpr uint32_t kMaxHostStackBytes = 256u << 10;

// A source, to be compiled into a unit.
struct CompileJob {
  // The name of a CompileTarget (EngineTraits::compile_target).
  std::string target;
  std::map<std::string, std::string> files;  // Name, as an #include gives it, to text.
  std::string main_file;
  // The NAME of the RESIDENT_OPERATOR(NAME) to look for: OperatorFunctionName().
  std::string function;
  // 64 hex digits; the first 16 become part of every name that the unit exports.
  std::string content_hash;
  // With bounds checks (kernels/sdk/checks.h).
  bool checked = false;
  // Registers over kMaxRegisters are spilled to the stack in place of being refused.
  bool allow_spills = false;
  // Bytes of Block::scratch() that the version may use; 0: all. The checked build refuses
  // more.
  uint64_t scratch_bytes = 0;
  // Asked while it is compiled, from the calling thread; true: CANCELLED.
  std::function<bool()> cancelled;
};

// A unit that came compiled: PTX or a relocatable cubin of the SDK's ABI. It exports one
// resident_op_<16 hex digits>, whose digits its author chose.
struct ObjectJob {
  std::string target;  // A GPU's.
  std::string bytes;
  std::function<bool()> cancelled = nullptr;
};

using CompileSteps = std::vector<std::pair<std::string, std::chrono::nanoseconds>>;

struct CompileResult {
  // OK; INVALID_ARGUMENT: does not compile (the log says why), or a limit on sources;
  // DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED: over a limit of time or memory; UNAVAILABLE:
  // no compiler; CANCELLED.
  absl::Status compiled;
  // Meaningful when compiled.ok(). INVALID_ARGUMENT: it cannot be part of a generation,
  // with the numbers.
  absl::Status inspected;
  // All that the compiler said, with the lines of the files sent.
  std::string log;
  // The function that the unit exports: of GenerationOperator.
  std::string symbol;
  // What an engine loads: a shared object, or a module (of GenerationOperator).
  std::shared_ptr<const std::string> object;
  ResourceUse resources;
  // From the cache: nothing was run.
  bool cached = false;
  CompileSteps steps;

  bool ok() const { return compiled.ok() && inspected.ok(); }
};

// "my.op-1" is RESIDENT_OPERATOR(my_op_1).
std::string OperatorFunctionName(const std::string& operator_name);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_COMPILE_JOB_H_
