#include "runtime/operators/install/version_builder.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/compiler.h"

namespace resident {
namespace {

// One compilation of the request: for a target, with or without checks.
struct Compilation {
  std::string target;
  bool checked;
  CompileResult result;

  std::string Name() const { return absl::StrCat(target, checked ? " checked" : ""); }
};

Isolation FindIsolation(const BuildRequest& request) {
  const bool trusted = request.isolation == Isolation::kUnspecified &&
                       request.default_isolation == Isolation::kTrusted;
  return trusted ? Isolation::kTrusted : request.isolation;
}

CompileResult CompileOne(Compiler& compiler, const BuildRequest& request,
                         const Compilation& compilation) {
  if (request.kind == OperatorKind::kObject) {
    return compiler.CompileObject({compilation.target, request.files.at(request.main_file),
                                   FindIsolation(request), request.cancelled});
  }
  CompileJob job;
  job.target = compilation.target;
  job.files = request.files;
  job.main_file = request.main_file;
  job.function = OperatorFunctionName(request.operator_name);
  job.content_hash = request.content_hash;
  job.checked = compilation.checked;
  job.allow_spills = request.allow_spills;
  // The checked build is not rewritten.
  job.isolation = compilation.checked ? Isolation::kTrusted : FindIsolation(request);
  job.scratch_bytes = request.scratch_bytes;
  job.cancelled = request.cancelled;
  return compiler.Compile(job);
}

// The compilers of several targets report the same error: each text is appended once.
void AppendLog(const Compilation& compilation, std::string* log) {
  const std::string& text = compilation.result.log;
  if (text.empty() || log->find(text) != std::string::npos) return;
  absl::StrAppend(log, "[", compilation.Name(), "]\n", text, text.back() == '\n' ? "" : "\n");
}

absl::Status ForTarget(const absl::Status& status, const Compilation& compilation) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(compilation.Name(), ": ", status.message()));
}

}  // namespace

VersionBuilder::VersionBuilder(Compiler* compiler, const std::vector<DeviceControl*>& devices)
    : compiler_(compiler) {
  for (const Device* device : devices) {
    std::string target = device->snapshot().info.traits.compile_target;
    if (std::find(targets_.begin(), targets_.end(), target) != targets_.end()) continue;
    targets_.push_back(std::move(target));
  }
}

absl::StatusOr<BuiltVersion> VersionBuilder::Build(const BuildRequest& request,
                                                   std::string* log) const {
  const bool with_checked = request.with_checked && request.kind != OperatorKind::kObject;
  std::vector<Compilation> compilations;
  for (const std::string& target : targets_) {
    compilations.push_back({target, /*checked=*/false, {}});
    if (with_checked) compilations.push_back({target, true, {}});
  }
  std::vector<std::thread> threads;
  for (size_t i = 1; i < compilations.size(); ++i) {
    threads.emplace_back(
        [&, i] { compilations[i].result = CompileOne(*compiler_, request, compilations[i]); });
  }
  compilations[0].result = CompileOne(*compiler_, request, compilations[0]);
  for (std::thread& thread : threads) thread.join();

  for (const Compilation& compilation : compilations) AppendLog(compilation, log);
  for (const Compilation& compilation : compilations) {
    RETURN_IF_ERROR(ForTarget(compilation.result.compiled, compilation));
  }
  auto payload = std::make_shared<UnitPayload>();
  auto checked = std::make_shared<UnitPayload>();
  BuiltVersion built;
  built.cached = true;
  for (Compilation& compilation : compilations) {
    CompileResult& result = compilation.result;
    // The checked build must pass too: the validation needs it.
    if (built.inspected.ok()) built.inspected = ForTarget(result.inspected, compilation);
    built.cached &= result.cached;
    for (auto& [step, duration] : result.steps) {
      auto& steps = absl::StartsWith(step, "inspect") ? built.inspect_steps : built.compile_steps;
      steps.emplace_back(absl::StrCat(step, compilation.checked ? " checked" : ""), duration);
    }
    if (!compilation.checked) {
      const bool lowest =
          built.isolation == Isolation::kUnspecified || result.isolation < built.isolation;
      if (lowest) built.isolation = result.isolation;
      if (lowest) built.isolation_reason = result.isolation_reason;
      if (result.resources.registers != 0) built.rewritten = result.rewritten;
    }
    UnitPayload& of = compilation.checked ? *checked : *payload;
    of.symbol = result.symbol;
    of.units[compilation.target] = {
        result.object, result.resources,
        !compilation.checked && result.isolation == Isolation::kStoppable};
  }
  built.log = *log;
  if (!built.inspected.ok()) return built;
  built.payload = std::move(payload);
  if (with_checked) built.checked = std::move(checked);
  return built;
}

absl::StatusOr<std::shared_ptr<const Generation>> VersionBuilder::MakeGeneration(
    const std::string& target, uint64_t number, const std::vector<Member>& members) {
  auto generation = std::make_shared<Generation>();
  generation->number = number;
  for (const Member& member : members) {
    const auto unit = member.payload->units.find(target);
    if (unit == member.payload->units.end()) {
      return absl::InternalError(
          absl::StrCat(member.payload->symbol, " was not compiled for ", target));
    }
    generation->operators.push_back({.slot = member.slot,
                                     .symbol = member.payload->symbol,
                                     .object = unit->second.object,
                                     .time_limit = member.time_limit,
                                     .stoppable = unit->second.stoppable});
  }
  return generation;
}

}  // namespace resident
