// VersionSpec: describes what is installed as a version of an operator. The registry, the state
// store and the install pipeline use it. VersionRef: names a version in a request.
#ifndef RESIDENT_RUNTIME_MODEL_VERSION_SPEC_H_
#define RESIDENT_RUNTIME_MODEL_VERSION_SPEC_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/isolation.h"
#include "runtime/base/limits.h"

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

// Whether the daemon generates the code of such a version, which therefore accesses nothing but the
// elements of its tensors.
constexpr bool IsGenerated(OperatorKind kind) {
  return kind == OperatorKind::kExpression || kind == OperatorKind::kBytecode;
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
  // What the install asked for; once the version is compiled, the level that it has and why that is
  // not higher. What was rewritten is known while it is in the kernel.
  Isolation isolation = Isolation::kUnspecified;
  std::string isolation_reason = {};
  RewriteCounts rewritten = {};
  // Bytecode: the interpreter always runs it.
  bool native_off = false;
  // ChangeContext::set of the install; empty: none.
  std::string set = {};
  // The program, only for kBytecode.
  std::shared_ptr<const std::string> bytecode = nullptr;
};

// The content hash of what is installed as operator `name`: `body` is the name of the main file,
// the expression or the program. Everything that decides what the version computes is hashed: also
// the spec's kind, signature, split, limits and allow_spills, which for an expression are the
// generated ones, and the isolation that the install asked for.
std::string ContentHash(std::string_view name, std::string_view body,
                        const std::map<std::string, std::string>& files, const VersionSpec& spec);

// Data of the install pipeline that must exist as long as a version may run (its objects). The
// registry only keeps it alive.
class VersionPayload {
 public:
  virtual ~VersionPayload() = default;
};

// Which version of an operator a request names. At most one member is set; none: the active
// version.
struct VersionRef {
  // Implicit, because most callers have a number.
  VersionRef(uint32_t version = 0) : number(version) {}

  bool none() const { return number == 0 && content_hash.empty() && label.empty(); }

  uint32_t number = 0;
  // The first kMinHashDigits digits of VersionSpec::content_hash, or more.
  std::string_view content_hash = {};
  std::string_view label = {};
};

inline constexpr size_t kMinHashDigits = 12;
inline constexpr size_t kMaxHashDigits = 64;

// Whether a request can name a version by these digits.
inline bool IsContentHash(std::string_view digits) {
  return digits.size() >= kMinHashDigits && digits.size() <= kMaxHashDigits &&
         digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

inline constexpr size_t kMaxSetNameBytes = 63;

// At most kMaxSetNameBytes of [a-z0-9-], the first one a letter or digit.
inline bool IsSetName(std::string_view set) {
  if (set.empty() || set.size() > kMaxSetNameBytes || set[0] == '-') return false;
  return set.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

// At most kMaxOperatorNameBytes letters, digits, '_', '.' and '-', the first one a letter or digit.
inline bool IsVersionLabel(std::string_view label) {
  const auto alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (label.empty() || label.size() > kMaxOperatorNameBytes || !alphanumeric(label[0]))
    return false;
  for (const char c : label) {
    if (!alphanumeric(c) && c != '_' && c != '.' && c != '-') return false;
  }
  return true;
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_VERSION_SPEC_H_
