#include "server/operator_setup.h"

#include "absl/memory/memory.h"
#include "runtime/base/limits.h"
#include "runtime/base/log.h"
#include "runtime/base/sandbox/sandbox.h"
#include "runtime/base/share.h"
#include "runtime/base/status_macros.h"
#include "server/auth/trusted_file.h"

namespace resident {
namespace {

constexpr std::chrono::hours kYear(24 * 365);
constexpr char kAboveZero[] = "give a threshold above 0, or --bake_action=off";

const FlagRule<std::chrono::milliseconds> kTime = {
    .low = std::chrono::milliseconds(1), .high = kYear, .fix = "give up to a year, e.g. 10s"};
const FlagRule<Share> kShare = {.holds = [](Share share) { return share.value > 0; },
                                .fix = "give a share above 0, as 1% or 0.01, or --bake_action=off"};

}  // namespace

// A value of --flux_native.
struct FluxNative {
  bool installed = true;
  operator bool() const { return installed; }
};

bool AbslParseFlag(absl::string_view text, FluxNative* native, std::string*) {
  native->installed = text == "installed";
  return true;
}

std::string AbslUnparseFlag(FluxNative native) { return native.installed ? "installed" : "off"; }

struct DefaultIsolation {
  Isolation level = kDefaultIsolation;
  operator Isolation() const { return level; }
};

bool AbslParseFlag(absl::string_view text, DefaultIsolation* isolation, std::string*) {
  isolation->level = text == "stoppable" ? Isolation::kStoppable : Isolation::kTrusted;
  return true;
}

std::string AbslUnparseFlag(DefaultIsolation isolation) { return IsolationName(isolation.level); }

// For --bake_action, whose rule admits no other texts.
bool AbslParseFlag(absl::string_view text, BakeAction* action, std::string*) {
  *action = text == "off"    ? BakeAction::kOff
            : text == "warn" ? BakeAction::kWarn
                             : BakeAction::kRollBack;
  return true;
}

std::string AbslUnparseFlag(BakeAction action) {
  return action == BakeAction::kOff ? "off" : action == BakeAction::kWarn ? "warn" : "roll_back";
}

void AddOperatorFlags(Command& serve, OperatorOptions& options) {
  CompilerOptions& compiler = options.compiler;
  LiveOperatorManager::Options& manager = options.manager;
  BakeOptions& bake = manager.bake;
  serve.Flag("state_dir", &options.state_dir,
             "folder for operators, their history, compiled code and durable buffers, which a "
             "restarted daemon restores; empty: they are lost when the daemon ends");
  serve.Flag("operators_dir", &options.operators_dir,
             "folder with a set of operators (operators.yaml and its files), which is applied when "
             "the daemon starts, before it is ready, and when the folder changes; empty: none");
  serve.Flag("park_deadline", &manager.park_deadline,
             "how long a new version waits for running tasks to end before its install fails",
             kTime);
  serve.Flag("host_compiler", &compiler.host_compiler,
             "compiler of operators for the CPU; empty: the first of g++, c++, clang++ in $PATH");
  serve.Flag("compile_cpu_time", &compiler.limits.cpu_time,
             "processor time limit of each program of a compilation",
             {.low = std::chrono::seconds(1), .high = kYear, .fix = kTime.fix});
  serve.Flag("compile_wall_time", &compiler.limits.wall_time, "time limit of a compilation", kTime);
  serve.Flag("compile_memory_mib", &compiler.limits.memory_mib,
             "address space limit of each process of a compilation", {.low = 256, .high = 1 << 20});
  serve.Flag("compile_processes", &compiler.max_processes,
             "concurrent compilations; the others wait", {.low = 1, .high = 256});
  serve.Flag("compile_cache_mib", &compiler.cache_mib,
             "size of the compiled operators that are kept on disk");
  serve.FlagAs<FluxNative>(
      "flux_native", &manager.flux_native,
      "which FLUX programs get native code: installed, or off (the interpreter runs all)",
      {.one_of = {"installed", "off"}});
  serve.Flag("max_native_forms", &manager.max_native_forms,
             "largest number of FLUX programs whose native code is in the kernel",
             {.low = 1, .high = kMaxNativeForms});
  serve.Flag(
      "allow_objects", &manager.allow_objects,
      "whether operators may be installed as PTX or cubins, which cannot be reviewed as source");
  serve.FlagAs<DefaultIsolation>("isolation", &manager.isolation,
                                 "level of installs that name none: stoppable, for those that pass "
                                 "(the others are trusted), or "
                                 "trusted, as the compiler makes them",
                                 {.one_of = {"trusted", "stoppable"}});
  serve.Flag("bake_action", &bake.action,
             "what to do with a version that regresses in its bake time: off, warn, roll_back",
             {.one_of = {"off", "warn", "roll_back"}});
  serve.Flag("bake_time", &bake.time, "how long a version is monitored after it begins to serve",
             kTime);
  serve.FlagAs<Share>("bake_max_error_rate", &bake.max_error_rate,
                      "largest accepted share of failed tasks: 1% or 0.01", kShare);
  serve.Flag("bake_max_latency_ratio", &bake.max_latency_ratio,
             "largest accepted p99 of the device time, as a multiple of the previous version's",
             {.holds = [](double ratio) { return ratio > 0; }, .fix = kAboveZero});
  serve.FlagAs<Share>(
      "bake_max_mismatch_rate", &bake.max_mismatch_rate,
      "largest accepted share of shadowed tasks whose outputs differ: 0.1% or 0.001", kShare);
  serve.Flag("bake_min_tasks", &bake.min_tasks,
             "a version is not evaluated before it has run this number of tasks",
             {.low = 1, .fix = kAboveZero});
}

absl::StatusOr<std::unique_ptr<Operators>> Operators::Open(const ServeOptions& options,
                                                           const OperatorOptions& operator_options,
                                                           DeviceSet& devices) {
  std::vector<std::string> warnings;
  CompilerOptions compiling = operator_options.compiler;
  if (!operator_options.state_dir.empty()) {
    RETURN_IF_ERROR(CheckTrustedFolder(operator_options.state_dir, &warnings));
    compiling.cache_dir = operator_options.state_dir + "/cache";
  }
  ASSIGN_OR_RETURN(auto state, StateStore::Open({.directory = operator_options.state_dir}));
  for (const DeviceControl* device : devices.started()) {
    compiling.ahead.push_back(device->snapshot().info.traits.compile_target);
  }
  ASSIGN_OR_RETURN(auto compiler, Compiler::Create(compiling));
  for (const std::string& warning : state->warnings()) warnings.push_back(warning);
  for (std::string& open : DescribeSandbox().missing) warnings.push_back(std::move(open));
  LiveOperatorManager::Options manager = operator_options.manager;
  manager.task_time_limit = options.task_time_limit;
  if (!operator_options.state_dir.empty()) {
    manager.native_quarantine_file = operator_options.state_dir + "/native_quarantine";
  }
  return absl::WrapUnique(
      new Operators(std::move(state), std::move(compiler), manager, devices, std::move(warnings)));
}

absl::Status Operators::Restore(Graphs& graphs, Models& models) {
  Core& core = graphs.core;
  const absl::Status restored = manager_.Restore(&warnings_);
  for (std::string& warning : core.buffers.Load(state_.get())) {
    warnings_.push_back(std::move(warning));
  }
  for (std::string& warning : graphs.store.Restore(state_.get())) {
    warnings_.push_back(std::move(warning));
  }
  for (std::string& warning : models.Restore(state_.get(), bake_)) {
    warnings_.push_back(std::move(warning));
  }
  for (Device* device : core.devices) {
    if (const auto session = device->session()) core.RestoreBuffers(*device, *session);
  }
  for (const std::string& warning : warnings_) LogWarning(warning);
  warnings_.clear();
  return restored;
}

}  // namespace resident
