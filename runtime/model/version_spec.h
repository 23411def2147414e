// VersionSpec: what is installed as a version of an operator, as the registry, the state
// store and the install pipeline pass it on.
#ifndef RESIDENT_RUNTIME_MODEL_VERSION_SPEC_H_
#define RESIDENT_RUNTIME_MODEL_VERSION_SPEC_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace resident {

// Slot of a version that has none: bytecode, or no longer in the kernel.
inline constexpr uint32_t kNoSlot = UINT32_MAX;

enum class OperatorKind : uint8_t {
  kBuiltin = 0,
  // Native: code in the kernel, called with tasks.
  kSource = 1,
  kExpression = 2,
  kObject = 3,
  // A FLUX program, which flux.run runs: no slot, no signature; called with programs.
  kBytecode = 4,
};

// "source"; empty for kBuiltin.
constexpr const char* OperatorKindName(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::kBuiltin:
      return "";
    case OperatorKind::kSource:
      return "source";
    case OperatorKind::kExpression:
      return "expression";
    case OperatorKind::kObject:
      return "object";
    case OperatorKind::kBytecode:
      return "bytecode";
  }
  return "unknown";
}

struct VersionSpec {
  OperatorKind kind = OperatorKind::kSource;
  std::string summary = {};
  // As text (runtime/model/signature.h, split_rule.h). Bytecode has neither.
  std::string signature = {};
  std::string split = {};
  // SHA-256 of what was installed, in hex.
  std::string content_hash = {};
  std::string installed_by = {};
  int64_t installed_ms = 0;  // Since 1970.
  // 0: the daemon's --task_time_limit.
  std::chrono::milliseconds task_time_limit{0};
  uint64_t scratch_bytes = 0;
  bool allow_spills = false;
  // kBytecode: the program.
  std::shared_ptr<const std::string> bytecode = nullptr;
};

// What the install pipeline keeps with a version for as long as it may run (its objects).
// The registry only holds it.
class VersionPayload {
 public:
  virtual ~VersionPayload() = default;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_VERSION_SPEC_H_
