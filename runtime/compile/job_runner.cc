
#include "runtime/compile/job_runner.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/resident/kernel_parameters.h"
#include "runtime/base/limits.h"
#include "runtime/base/process/frames.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/compile/compile_job.h"
#include "runtime/compile/cuda_tools.h"
#include "runtime/compile/inspect.h"
#include "runtime/compile/ptx/ptx_rewriter.h"
#include "runtime/compile/ptx/ptx_verifier.h"
#include "runtime/compile/unit.h"

namespace resident {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMaxRegistersOfGpu = 255;
// Eight registers, which a function call saves in any case.
constexpr uint32_t kMaxSilentSpillBytes = 32;

bool IsPtx(const std::string& object) {
  return !absl::StartsWith(object,
                           "\x7f"
                           "ELF");
}

// Measures the steps of a job, each from the end of the previous one.
class Steps {
 public:
  explicit Steps(internal::CompileResponse* response) : response_(response) {}

  void End(const std::string& step) {
    const auto now = Clock::now();
    auto* const added = response_->add_steps();
    added->set_step(step);
    added->set_duration_ns(std::chrono::nanoseconds(now - begin_).count());
    begin_ = now;
  }

 private:
  internal::CompileResponse* const response_;
  Clock::time_point begin_ = Clock::now();
};

CompileJob ReadJob(const internal::CompileSource& source) {
  CompileJob job;
  job.target = source.target();
  for (const auto& [name, text] : source.files()) job.files[name] = text;
  job.main_file = source.main_file();
  job.function = source.function();
  job.content_hash = source.content_hash();
  job.checked = source.checked();
  job.allow_spills = source.allow_spills();
  job.scratch_bytes = source.scratch_bytes();
  job.isolation = static_cast<Isolation>(source.isolation());
  return job;
}

void SetUnit(const absl::StatusOr<InspectedUnit>& unit, internal::CompileResponse* response) {
  SetStatus(unit.status(), response->mutable_inspected());
  if (!unit.ok()) return;
  response->set_symbol(unit->symbol);
  response->set_registers(unit->resources.registers);
  response->set_stack_bytes(unit->resources.stack_bytes);
  response->set_shared_bytes(unit->resources.shared_bytes);
  response->set_code_bytes(unit->resources.code_bytes);
}

// Returns a program's output without the path of its folder, so that the files have the names under
// which they were sent.
std::string WithoutFolder(const std::string& text, const std::string& folder) {
  if (folder.empty()) return text;
  return absl::StrReplaceAll(text, {{absl::StrCat(folder, "/"), ""}, {folder, "."}});
}

absl::Status WithoutFolder(const absl::Status& status, const std::string& folder) {
  return absl::Status(status.code(), WithoutFolder(std::string(status.message()), folder));
}

void SetLog(std::string log, internal::CompileResponse* response) {
  // The compilers' messages do not say what a source may include.
  if (absl::StrContains(log, "cannot open source file") ||
      absl::StrContains(log, "could not open source file") ||
      absl::StrContains(log, "No such file or directory") ||
      absl::StrContains(log, "Permission denied")) {
    absl::StrAppend(&log,
                    "\nnote: a source may include the files that were sent with it, by the names "
                    "they were sent under, and headers of the SDK such as "
                    "\"resident/operator.h\"; there are no system headers\n");
  }
  // The log may contain any bytes, for example from the source. UTF-8 text can be longer.
  std::string text = ToUtf8(log);
  if (text.size() > kMaxCompilerLogBytes) {
    text.resize(CutUtf8(text, kMaxCompilerLogBytes).size());
    text += "\n... (the log is longer)\n";
  }
  response->set_log(std::move(text));
}

bool CheckSize(const std::string& object, internal::CompileResponse* response) {
  if (object.size() <= kMaxInstallObjectBytes) return true;
  SetStatus(absl::InvalidArgumentError(absl::StrCat("the unit has ", object.size(),
                                                    " bytes; the limit is ", kMaxInstallObjectBytes,
                                                    ". Fix: pass large tables as tensors")),
            response->mutable_inspected());
  return false;
}

NvrtcSource CudaSource(const CompileJob& job, const Unit& unit, int architecture, bool capped) {
  NvrtcSource source;
  source.main_name = unit.main_name;
  source.main_text = unit.main_text;
  source.headers = SdkHeaders();
  source.headers.insert(job.files.begin(), job.files.end());
  // Functions without an annotation are device functions, because the CPU compiles the same source.
  source.options = {"-std=c++20", "-rdc=true", absl::StrCat("-arch=sm_", architecture),
                    "-default-device",
                    // Without textures and the runtime API's types, which no operator can use.
                    "-minimal",
                    // A function must not use constant memory: it would see the kernel's.
                    "--ptxas-options=--disable-optimizer-constants"};
  source.options.insert(source.options.end(), unit.definitions.begin(), unit.definitions.end());
  if (capped) source.options.push_back(absl::StrCat("-maxrregcount=", kMaxRegisters));
  return source;
}

// Returns what the unit needs; all zeros if inspection refuses it for any reason.
ResourceUse MeasureResources(const InspectRequest& request, const std::string& object) {
  InspectRequest inspect = request;
  inspect.object = object;
  const auto unit = InspectCubin(inspect);
  return unit.ok() ? unit->resources : ResourceUse();
}

// Without a limit, the compiler uses more registers than the kernel has, because that is a little
// faster; with a limit, it often needs no spills. If it needs some, the unit without the limit is
// returned, and inspection refuses it. Where spills are allowed, the limit is always set.
absl::StatusOr<std::string> CompileForCuda(const CompileJob& job, const Unit& unit,
                                           const InspectRequest& inspect, std::string* log) {
  const auto compile = [&](bool capped, std::string* output) {
    return NvrtcCompile(CudaSource(job, unit, inspect.architecture, capped), output);
  };
  if (job.allow_spills || job.checked) return compile(/*capped=*/true, log);
  auto object = compile(/*capped=*/false, log);
  if (!object.ok()) return object;
  InspectRequest unlimited = inspect;
  unlimited.max_registers = kMaxRegistersOfGpu;
  const ResourceUse use = MeasureResources(unlimited, *object);
  if (use.registers <= kMaxRegisters) return object;
  std::string again;
  auto capped = compile(/*capped=*/true, &again);
  if (!capped.ok()) return object;
  const ResourceUse capped_use = MeasureResources(inspect, *capped);
  const bool spills =
      capped_use.registers == 0 || capped_use.stack_bytes > use.stack_bytes + kMaxSilentSpillBytes;
  return spills ? object : capped;
}

// PTX in place of a cubin, with the lines of the source.
NvrtcSource PtxSource(const CompileJob& job, const Unit& unit, int architecture) {
  NvrtcSource source = CudaSource(job, unit, architecture, /*capped=*/false);
  for (std::string& option : source.options) {
    if (absl::StartsWith(option, "-arch=")) option = absl::StrCat("-arch=compute_", architecture);
  }
  source.options.push_back("-lineinfo");
  source.ptx = true;
  return source;
}

// The files of a source are in the compiler's folder, as it says.
absl::Status WithoutWorkingFolder(const absl::Status& status) {
  std::error_code error;
  return WithoutFolder(status, std::filesystem::current_path(error).string());
}

// PTX is compiled within the kernel's registers. That must not spill many values silently.
absl::Status CheckSpills(const InspectRequest& inspect, const ResourceUse& use) {
  InspectRequest unlimited = inspect;
  unlimited.max_registers = kMaxRegistersOfGpu;
  std::string module;
  ASSIGN_OR_RETURN(const InspectedUnit unit, InspectPtx(unlimited, &module));
  if (use.stack_bytes <= unit.resources.stack_bytes + kMaxSilentSpillBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the unit needs ", unit.resources.registers,
      " registers a thread when it is stoppable; the "
      "kernel has ",
      kMaxRegisters,
      ". Fix: keep fewer values at the same time, allow spills (allow_spills), or install it with "
      "--isolation=trusted"));
}

// What a unit exports: see CubinInspection::CheckNames.
absl::Status CheckExports(const RewrittenPtx& ptx, const InspectRequest& inspect) {
  RETURN_IF_ERROR(FindEntry(inspect, ptx.functions).status());
  for (const std::string& name : ptx.functions) {
    if (!IsUnitsOwn(name, inspect.symbol)) return RefuseForeignName(name);
  }
  for (const std::string& name : ptx.weak_functions) {
    if (!IsUnitsOwn(name, inspect.symbol) && !IsSharedFunction(name)) {
      return RefuseForeignName(name);
    }
  }
  return CheckVariableNames(ptx.variables);
}

// Makes the module of PTX that is rewritten so that it stops, and sets the response. Returns why it
// cannot: then the response has not changed. `object`: whether a client sent the PTX.
absl::Status MakeStoppable(const std::string& ptx, InspectRequest inspect, bool object,
                           bool allow_spills, Steps* steps, internal::CompileResponse* response) {
  if (object) {
    inspect.object = ptx;
    ASSIGN_OR_RETURN(inspect.symbol, CheckPtxObject(inspect));
  }
  auto rewritten = RewritePtx(ptx, inspect.architecture);
  if (!rewritten.ok()) return WithoutWorkingFolder(rewritten.status());
  if (const absl::Status verified = VerifyPtx(rewritten->text, inspect.architecture);
      !verified.ok()) {
    SetLog(absl::StrCat(response->log(), rewritten->text), response);
    return absl::InternalError(absl::StrCat("the verifier refuses what the rewriter made (",
                                            verified.message(),
                                            "). Fix: report this with the source and the log, and "
                                            "install it with --isolation=trusted"));
  }
  if (!object) RETURN_IF_ERROR(CheckExports(*rewritten, inspect));
  steps->End(absl::StrCat("isolate ", "sm_", inspect.architecture));
  inspect.object = rewritten->text;
  std::string module;
  ASSIGN_OR_RETURN(const InspectedUnit unit, InspectPtx(inspect, &module));
  if (!allow_spills && unit.resources.registers == kMaxRegisters &&
      unit.resources.stack_bytes > 0) {
    RETURN_IF_ERROR(CheckSpills(inspect, unit.resources));
  }
  SetUnit(unit, response);
  response->set_object(std::move(module));
  response->set_isolation(static_cast<uint32_t>(Isolation::kStoppable));
  const RewriteCounts& counts = rewritten->counts;
  internal::CompileRewrites* const rewrites = response->mutable_rewrites();
  rewrites->set_loops(counts.loops);
  rewrites->set_counted_loops(counts.counted_loops);
  rewrites->set_short_loops(counts.short_loops);
  rewrites->set_endless_loops(counts.endless_loops);
  rewrites->set_looks(counts.looks);
  rewrites->set_barriers(counts.barriers);
  rewrites->set_warp_operations(counts.warp_operations);
  steps->End(absl::StrCat("inspect ", "sm_", inspect.architecture));
  return absl::OkStatus();
}

// Whether the job is decided: the unit is stoppable, or has to be. Otherwise it is trusted, for the
// reason in the response.
bool IsDecided(const absl::Status& status, Isolation isolation,
               internal::CompileResponse* response) {
  if (!status.ok() && isolation == Isolation::kStoppable) {
    SetStatus(status, response->mutable_inspected());
  } else if (!status.ok()) {
    response->set_isolation_reason(ToUtf8(std::string(status.message())));
  }
  return status.ok() || isolation == Isolation::kStoppable;
}

// Returns whether the job is decided.
bool CompileStoppable(const CompileJob& job, const Unit& unit, const InspectRequest& inspect,
                      Steps* steps, internal::CompileResponse* response) {
  std::string log;
  const auto ptx = NvrtcCompile(PtxSource(job, unit, inspect.architecture), &log);
  SetStatus(ptx.status(), response->mutable_compiled());
  SetLog(std::move(log), response);
  steps->End(absl::StrCat("compile ", job.target));
  if (!ptx.ok()) return true;
  return IsDecided(
      MakeStoppable(*ptx, inspect, /*object=*/false, job.allow_spills, steps, response),
      job.isolation, response);
}

bool TakeStoppable(const internal::CompileObject& object, const InspectRequest& inspect,
                   Steps* steps, internal::CompileResponse* response) {
  const auto isolation = static_cast<Isolation>(object.isolation());
  if (isolation == Isolation::kTrusted) return false;
  const absl::Status status =
      IsPtx(object.object())
          ? MakeStoppable(object.object(), inspect, /*object=*/true, /*allow_spills=*/true, steps,
                          response)
          : absl::InvalidArgumentError(
                "a cubin cannot be made stoppable. Fix: send PTX or the source, or install it "
                "with --isolation=trusted");
  return IsDecided(status, isolation, response);
}

}  // namespace

internal::CompileResponse RunHostJob(const HostCompiler& compiler, const std::string& folder,
                                     const internal::CompileRequest& request) {
  internal::CompileResponse response;
  Steps steps(&response);
  const CompileJob job = ReadJob(request.source());
  absl::Status status = CheckSources(job);
  HostUnit compiled;
  const Unit unit = status.ok() ? MakeUnit(job) : Unit();
  if (status.ok()) {
    std::string log;
    auto result = HostCompile(compiler, folder, unit, job.files, &log);
    SetLog(WithoutFolder(log, folder), &response);
    status = WithoutFolder(result.status(), folder);
    if (result.ok()) compiled = *std::move(result);
    steps.End(absl::StrCat("compile ", job.target));
  }
  SetStatus(status, response.mutable_compiled());
  if (!status.ok() || !CheckSize(compiled.object, &response)) return response;
  InspectRequest inspect;
  inspect.object = compiled.object;
  inspect.symbol = unit.symbol;
  inspect.function = job.function;
  inspect.call_graph = compiled.call_graph;
  SetUnit(InspectSharedObject(inspect), &response);
  // The engine ends a task with a signal, whatever its code is.
  response.set_isolation(static_cast<uint32_t>(
      job.isolation == Isolation::kTrusted ? Isolation::kTrusted : Isolation::kStoppable));
  response.set_object(std::move(compiled.object));
  steps.End(absl::StrCat("inspect ", job.target));
  return response;
}

internal::CompileResponse RunCudaJob(const internal::CompileRequest& request) {
  internal::CompileResponse response;
  Steps steps(&response);
  InspectRequest inspect;
  const std::string name =
      request.has_object() ? request.object().target() : request.source().target();
  const auto target = CompileTarget::Find(name);
  if (!target.ok()) {
    SetStatus(target.status(), response.mutable_compiled());
    return response;
  }
  inspect.architecture = target->architecture;
  std::string object;
  if (request.has_object()) {
    object = request.object().object();
    SetStatus(absl::OkStatus(), response.mutable_compiled());
  } else {
    const CompileJob job = ReadJob(request.source());
    if (absl::Status status = CheckSources(job); !status.ok()) {
      SetStatus(status, response.mutable_compiled());
      return response;
    }
    const Unit unit = MakeUnit(job);
    inspect.symbol = unit.symbol;
    inspect.function = job.function;
    std::string log;
    if (job.isolation != Isolation::kTrusted && !job.checked &&
        CompileStoppable(job, unit, inspect, &steps, &response)) {
      return response;
    }
    auto result = CompileForCuda(job, unit, inspect, &log);
    SetLog(std::move(log), &response);
    SetStatus(result.status(), response.mutable_compiled());
    steps.End(absl::StrCat("compile ", name));
    if (!result.ok()) return response;
    object = *std::move(result);
  }
  if (!CheckSize(object, &response)) return response;
  inspect.object = object;
  std::string module;
  if (request.has_object() && TakeStoppable(request.object(), inspect, &steps, &response)) {
    return response;
  }
  response.set_isolation(static_cast<uint32_t>(Isolation::kTrusted));
  if (request.has_object() && IsPtx(object)) {
    const auto symbol = CheckPtxObject(inspect);
    if (!symbol.ok()) {
      SetStatus(symbol.status(), response.mutable_inspected());
      return response;
    }
    inspect.symbol = *symbol;
    SetUnit(InspectPtx(inspect, &module), &response);
    steps.End(absl::StrCat("inspect ", name));
  } else {
    const auto unit = InspectCubin(inspect);
    SetUnit(unit, &response);
    steps.End(absl::StrCat("inspect ", name));
    if (!unit.ok()) return response;
    auto linked = LinkModule(unit->symbol, object, inspect.architecture);
    if (!linked.ok()) SetStatus(linked.status(), response.mutable_inspected());
    if (linked.ok()) module = *std::move(linked);
    steps.End(absl::StrCat("link ", name));
  }
  response.set_object(std::move(module));
  return response;
}

absl::StatusOr<std::string> WarmCudaTools() {
  // An error here would occur for every unit: the tools are broken.
  const auto broken = [](const absl::Status& status) {
    return absl::UnavailableError(
        absl::StrCat("the CUDA toolkit does not work: ", status.message(),
                     ". Fix: install NVRTC and nvJitLink of one release of CUDA 13"));
  };
  const auto unit = WarmNvrtc();
  if (absl::IsUnavailable(unit.status())) return unit.status();
  if (!unit.ok()) return broken(unit.status());
  const auto module = LinkModule(kWarmFunction, *unit, kWarmArchitecture);
  if (absl::IsUnavailable(module.status())) return module.status();
  if (!module.ok()) return broken(module.status());
  const auto compiler = NvrtcVersion();
  const auto linker = LinkerVersion();
  if (!compiler.ok()) return compiler.status();
  if (!linker.ok()) return linker.status();
  return absl::StrCat(*compiler, ", ", *linker);
}

}  // namespace resident
