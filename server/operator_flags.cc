#include "server/operator_flags.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/share.h"
#include "runtime/base/status_macros.h"

ABSL_FLAG(std::string, state_dir, "",
          "folder for operators, their history, compiled code and durable buffers, which a "
          "restarted daemon has again; empty: they end with the daemon");
ABSL_FLAG(absl::Duration, park_deadline, absl::Seconds(2),
          "how long a new version waits for running tasks to end before its install fails");
ABSL_FLAG(std::string, host_compiler, "",
          "compiler of operators for the CPU; empty: the first of g++, c++, clang++ in $PATH");
ABSL_FLAG(absl::Duration, compile_cpu_time, absl::Seconds(60),
          "processor time that the compilation of an operator may take");
ABSL_FLAG(absl::Duration, compile_wall_time, absl::Seconds(60),
          "time that the compilation of an operator may take");
ABSL_FLAG(uint64_t, compile_memory_mib, resident::CompileLimits().memory_mib,
          "address space that each process of a compilation may take");
ABSL_FLAG(uint32_t, compile_processes, resident::CompilerOptions().max_processes,
          "compilations at once");
ABSL_FLAG(uint64_t, compile_cache_mib, resident::CompilerOptions().cache_mib,
          "compiled operators kept on disk");
ABSL_FLAG(bool, allow_objects, false,
          "whether operators may be installed as PTX or cubins, which nobody can read");
ABSL_FLAG(std::string, bake_action, "warn",
          "what to do with a version that regresses in its bake time: off, warn, roll_back");
ABSL_FLAG(absl::Duration, bake_time, absl::Seconds(60),
          "how long a version that begins to serve is watched");
ABSL_FLAG(resident::Share, bake_max_error_rate, {0.01},
          "share of tasks that may fail, of those served: 1% or 0.01");
ABSL_FLAG(double, bake_max_latency_ratio, 2,
          "p99 of the device time that is too slow, as a multiple of the version before");
ABSL_FLAG(resident::Share, bake_max_mismatch_rate, {0.001},
          "share of shadowed tasks that may differ: 0.1% or 0.001");
ABSL_FLAG(uint64_t, bake_min_tasks, 100, "tasks before which a version is not judged");

namespace resident {
namespace {

absl::Status BadFlag(const std::string& flag, const std::string& value, const std::string& fix) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, " makes no sense. Fix: ", fix));
}

absl::StatusOr<BakeAction> ReadBakeAction() {
  const std::string action = absl::GetFlag(FLAGS_bake_action);
  if (action == "off") return BakeAction::kOff;
  if (action == "warn") return BakeAction::kWarn;
  if (action == "roll_back") return BakeAction::kRollBack;
  return BadFlag("bake_action", action, "give off, warn or roll_back");
}

}  // namespace

absl::StatusOr<OperatorOptions> ReadOperatorFlags() {
  OperatorOptions options;
  const struct {
    const char* flag;
    absl::Duration value;
  } durations[] = {{"park_deadline", absl::GetFlag(FLAGS_park_deadline)},
                   {"compile_cpu_time", absl::GetFlag(FLAGS_compile_cpu_time)},
                   {"compile_wall_time", absl::GetFlag(FLAGS_compile_wall_time)},
                   {"bake_time", absl::GetFlag(FLAGS_bake_time)}};
  for (const auto& [flag, value] : durations) {
    if (value <= absl::ZeroDuration() || value > absl::Hours(24 * 365)) {
      return BadFlag(flag, absl::FormatDuration(value), "give up to a year, e.g. 10s");
    }
  }
  options.state_dir = absl::GetFlag(FLAGS_state_dir);
  CompilerOptions& compiler = options.compiler;
  compiler.host_compiler = absl::GetFlag(FLAGS_host_compiler);
  compiler.cache_mib = absl::GetFlag(FLAGS_compile_cache_mib);
  compiler.max_processes = absl::GetFlag(FLAGS_compile_processes);
  compiler.limits.cpu_time = std::chrono::ceil<std::chrono::seconds>(
      absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_compile_cpu_time)));
  compiler.limits.wall_time = absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_compile_wall_time));
  compiler.limits.memory_mib = absl::GetFlag(FLAGS_compile_memory_mib);
  if (compiler.max_processes < 1 || compiler.max_processes > 256) {
    return BadFlag("compile_processes", absl::StrCat(compiler.max_processes), "give 1 to 256");
  }
  if (compiler.limits.memory_mib < 256 || compiler.limits.memory_mib > 1 << 20) {
    return BadFlag("compile_memory_mib", absl::StrCat(compiler.limits.memory_mib),
                   "give 256 to 1048576");
  }

  LiveOperatorManager::Options& manager = options.manager;
  manager.park_deadline = absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_park_deadline));
  manager.allow_objects = absl::GetFlag(FLAGS_allow_objects);
  ASSIGN_OR_RETURN(const auto action, ReadBakeAction());
  manager.bake = {.action = action,
                  .time = absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_bake_time)),
                  .max_error_rate = absl::GetFlag(FLAGS_bake_max_error_rate).value,
                  .max_latency_ratio = absl::GetFlag(FLAGS_bake_max_latency_ratio),
                  .max_mismatch_rate = absl::GetFlag(FLAGS_bake_max_mismatch_rate).value,
                  .min_tasks = absl::GetFlag(FLAGS_bake_min_tasks)};
  if (!(manager.bake.max_error_rate > 0 && manager.bake.max_latency_ratio > 0 &&
        manager.bake.max_mismatch_rate > 0) ||
      manager.bake.min_tasks == 0) {
    return BadFlag("bake_...", "0", "give thresholds above 0, or --bake_action=off");
  }
  return options;
}

}  // namespace resident
