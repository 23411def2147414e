// Value types that the Compiler and the compile process share: a job, what it is compiled for, its
// limits and its result.
#ifndef RESIDENT_RUNTIME_COMPILE_COMPILE_JOB_H_
#define RESIDENT_RUNTIME_COMPILE_COMPILE_JOB_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/isolation.h"

namespace resident {

// Resources that a version of an operator needs on its device, as measured by inspection.
struct ResourceUse {
  // Registers of a thread; 0 for a CPU.
  uint32_t registers = 0;
  // Frames of the operator and of its deepest chain of calls.
  uint32_t stack_bytes = 0;
  // Static shared memory. It is 0, because inspection refuses other values.
  uint32_t shared_bytes = 0;
  uint32_t code_bytes = 0;
};

// Limits of one compilation. A compilation that exceeds one is refused or killed.
// Limit on the size of the folder that a host compiler works in.
inline constexpr uint64_t kMaxCompileFolderMib = 256;
inline constexpr uint64_t kMaxCompileFolderEntries = 10'000;

struct CompileLimits {
  // --compile_cpu_time, --compile_wall_time.
  std::chrono::seconds cpu_time{60};
  std::chrono::milliseconds wall_time{60'000};
  // --compile_memory_mib: address space of each of its processes.
  uint64_t memory_mib = 4096;
  // Total size of the files in its folder.
  uint64_t folder_mib = kMaxCompileFolderMib;
};

// Limits that cannot be configured. Limits on what clients send are in runtime/base/limits.h.
// A message between front end and compile process: sources, or a unit with the log.
inline constexpr uint64_t kMaxMessageBytes = 64u << 20;
inline constexpr uint64_t kMaxCompilerLogBytes = 256u << 10;
// Machine code of one unit.
inline constexpr uint32_t kMaxUnitCodeBytes = 1u << 20;
// Stack of an operator on the CPU. The stack of a worker thread is 8 MiB.
inline constexpr uint32_t kMaxHostStackBytes = 256u << 10;

// A source that is compiled into a unit.
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
  // A unit that needs more than kMaxRegisters registers spills them to the stack instead of
  // being refused.
  bool allow_spills = false;
  // Bytes of Block::scratch() that the version may use; 0: all. The checked build enforces it.
  uint64_t scratch_bytes = 0;
  // kTrusted; kStoppable: it is refused if it does not pass; kUnspecified: the higher of these two
  // that it passes. A checked build is always trusted.
  Isolation isolation = Isolation::kTrusted;
  // Called repeatedly during the compilation, on the calling thread. If it returns true, the
  // result is CANCELLED.
  std::function<bool()> cancelled;
};

// A unit that a client compiled: PTX or a relocatable cubin with the SDK's ABI. It exports one
// function resident_op_<16 hex digits>; its author chose the digits.
struct ObjectJob {
  std::string target;  // The name of a GPU's CompileTarget.
  std::string bytes;
  // As CompileJob's. A cubin is always trusted.
  Isolation isolation = Isolation::kTrusted;
  std::function<bool()> cancelled = nullptr;
};

using CompileSteps = std::vector<std::pair<std::string, std::chrono::nanoseconds>>;

struct CompileResult {
  // OK; INVALID_ARGUMENT: it does not compile (see `log`), or exceeds a limit on sources;
  // DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED: over a limit of time or memory; UNAVAILABLE:
  // no compiler; CANCELLED.
  absl::Status compiled;
  // Valid when compiled.ok(). INVALID_ARGUMENT: the unit cannot be part of a generation; the
  // message has the measured values and the limits.
  absl::Status inspected;
  // The compiler's whole output; file names and lines are those of the files sent.
  std::string log;
  // The function that the unit exports: GenerationOperator::symbol.
  std::string symbol;
  // What an engine loads, a shared object or a module: GenerationOperator::object.
  std::shared_ptr<const std::string> object;
  ResourceUse resources;
  // kTrusted or kStoppable, and why it is not higher than kTrusted if it could be.
  Isolation isolation = Isolation::kTrusted;
  std::string isolation_reason;
  RewriteCounts rewritten;
  // The result came from the cache; no compiler was run.
  bool cached = false;
  CompileSteps steps;

  bool ok() const { return compiled.ok() && inspected.ok(); }
};

// Returns the NAME of RESIDENT_OPERATOR(NAME): "my_op_1" for "my.op-1".
std::string OperatorFunctionName(const std::string& operator_name);

// CompileTarget: what operators are compiled for, and by which toolchain. An engine reports the
// name of its target (EngineTraits::compile_target); jobs, units and the cache contain that name.
// Only this package interprets it.
//
//   ASSIGN_OR_RETURN(const CompileTarget target, CompileTarget::Find("sm_90"));

enum class Toolchain : uint8_t {
  // A host compiler, for this machine's processor: x86-64.
  kHost,
  // NVRTC and nvJitLink, for a GPU.
  kCuda,
};

struct CompileTarget {
  Toolchain toolchain = Toolchain::kHost;
  // kCuda: 90 for sm_90.
  int architecture = 0;

  bool operator==(const CompileTarget&) const = default;

  // "x86-64", "sm_90": also the key of InstallProgress::resources.
  std::string name() const;
  // Returns the target with this name. INVALID_ARGUMENT: there is none.
  static absl::StatusOr<CompileTarget> Find(std::string_view name);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_COMPILE_JOB_H_
