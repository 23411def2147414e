// VersionBuilder: compiles and inspects a version for every target of the daemon's devices,
// and assembles their generations.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_VERSION_BUILDER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_VERSION_BUILDER_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/compile/compile_job.h"
#include "runtime/device/device_control.h"
#include "runtime/engine/generation.h"
#include "runtime/model/version_spec.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/registry/operator_version.h"

namespace resident {

// UnitPayload: the compiled form of a version, kept for as long as the version may run.
struct CompiledUnit {
  std::shared_ptr<const std::string> object;
  ResourceUse resources;
  bool stoppable = false;  // See GenerationOperator.
};

struct UnitPayload : VersionPayload {
  // The function that every object defines.
  std::string symbol;
  // By compile target (EngineTraits::compile_target).
  std::map<std::string, CompiledUnit> units;
};

class Compiler;  // runtime/compile/compiler.h

// What is compiled: an install request without its examples.
struct BuildRequest {
  std::string operator_name;
  // The version's content hash; names the unit.
  std::string content_hash;
  // kSource, also for expressions (then the generated source), or kObject.
  OperatorKind kind = OperatorKind::kSource;
  std::string main_file;  // kObject: the object's file.
  std::map<std::string, std::string> files;
  bool allow_spills = false;
  // As CompileJob's.
  Isolation isolation = Isolation::kTrusted;
  // For kUnspecified: the highest level.
  Isolation default_isolation = Isolation::kStoppable;
  // Whether the version is also compiled with the SDK's checks. Objects never are.
  bool with_checked = true;
  uint64_t scratch_bytes = 0;
  // Like CompileJob's, but called from any thread.
  std::function<bool()> cancelled = nullptr;
};

struct BuiltVersion {
  // INVALID_ARGUMENT: it compiles, but cannot be part of a generation; the message has the
  // numbers. Then only `log`, `cached` and `compile_steps` are set.
  absl::Status inspected;
  std::shared_ptr<const UnitPayload> payload;
  // The same with the SDK's checks, for validation; null if the request does not ask for it.
  std::shared_ptr<const UnitPayload> checked;
  // The lowest of all targets, and why it is not higher; what was rewritten for the first GPU.
  Isolation isolation = Isolation::kUnspecified;
  std::string isolation_reason;
  RewriteCounts rewritten;
  // The output of all compilers.
  std::string log;
  bool cached = false;
  std::vector<std::pair<std::string, std::chrono::nanoseconds>> compile_steps;
  std::vector<std::pair<std::string, std::chrono::nanoseconds>> inspect_steps;
};

class VersionBuilder {
 public:
  VersionBuilder(Compiler* compiler, const std::vector<DeviceControl*>& devices);

  // The compile targets of the devices (EngineTraits::compile_target): each once, in the order of
  // the devices.
  const std::vector<std::string>& targets() const { return targets_; }

  // INVALID_ARGUMENT: it does not compile (the message is the compiler's; `log` has all of
  // it). A refused inspection is reported in the result. DEADLINE_EXCEEDED,
  // RESOURCE_EXHAUSTED: the compiler exceeded its limits. UNAVAILABLE: there is no
  // compiler. CANCELLED: `request.cancelled` returned true.
  absl::StatusOr<BuiltVersion> Build(const BuildRequest& request, std::string* log) const;

  // Assembles a generation of units in slots; one unit may be in several. INTERNAL: a unit
  // was not compiled for the target.
  struct Member {
    uint32_t slot;
    std::shared_ptr<const UnitPayload> payload;
    // VersionSpec::task_time_limit.
    std::chrono::milliseconds time_limit{0};
  };
  static absl::StatusOr<std::shared_ptr<const Generation>> MakeGeneration(
      const std::string& target, uint64_t number, const std::vector<Member>& members);

 private:
  Compiler* const compiler_;
  std::vector<std::string> targets_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_VERSION_BUILDER_H_
