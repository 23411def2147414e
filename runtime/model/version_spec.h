// VersionSpec: describes what is installed as a version of an operator. The registry, the state
// store and the install pipeline use it.
#ifndef RESIDENT_RUNTIME_MODEL_VERSION_SPEC_H_
#define RESIDENT_RUNTIME_MODEL_VERSION_SPEC_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace resident {

// Slot of a version without a slot: it is bytecode, or no longer in the kernel.
inline constexpr uint32_t kNoSlot = UINT32_MAX;

enum class OperatorKind : uint8_t {
  kBuiltin = 0,
  // These three are native: code in the kernel, called with tasks.
  kSource = 1,
  kExpression = 2,
  kObject = 3,
  // A FLUX program, which flux.run executes. It has no slot and no signature, and is called with
  // programs.
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
  // In text form (runtime/model/signature.h, split_rule.h). Bytecode has neither.
  std::string signature = {};
  std::string split = {};
  // SHA-256 of the installed contents, in hex.
  std::string content_hash = {};
  std::string installed_by = {};
  int64_t installed_ms = 0;  // Since 1970.
  // 0: the daemon's --task_time_limit.
  std::chrono::milliseconds task_time_limit{0};
  uint64_t scratch_bytes = 0;
  bool allow_spills = false;
  // Bytecode: the interpreter always runs it.
  bool native_off = false;
  // The program, only for kBytecode.
  std::shared_ptr<const std::string> bytecode = nullptr;
};

// Data of the install pipeline that must exist as long as a version may run (its objects). The
// registry only keeps it alive.
class VersionPayload {
 public:
  virtual ~VersionPayload() = default;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_VERSION_SPEC_H_
