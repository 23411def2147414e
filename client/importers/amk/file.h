// The contents of an AMK file: its JSON, opcodes and parameters.
//
// Thread safety: pure functions; Params reads the JSON that it was made from.
#ifndef RESIDENT_CLIENT_IMPORTERS_AMK_FILE_H_
#define RESIDENT_CLIENT_IMPORTERS_AMK_FILE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace resident::cli::amk {

using Json = nlohmann::json;
using Shape = std::vector<int64_t>;

inline constexpr size_t kMaxFileBytes = size_t{1} << 28;

// Parses a file of at most kMaxFileBytes. INVALID_ARGUMENT: the message has the position of the
// first syntax error. Deep nesting is refused before a tree is made.
absl::StatusOr<Json> ParseFile(const std::string& text);

// INVALID_ARGUMENT.
absl::Status Refuse(const std::string& what);
// Text of the file for a message: quoted, without control characters, and not too long.
std::string Quoted(const std::string& text);
// A field of an object, or null.
const Json& Field(const Json& object, const char* key);
// A whole number that fits; nullopt: it is none.
std::optional<int64_t> Integer(const Json& value);
absl::StatusOr<uint32_t> Index(const Json& value, const std::string& what);
// At most 8 dimensions of at least 1.
absl::StatusOr<Shape> ParseShape(const Json& value);

enum class Op : uint8_t {
  kNop,
  kCopy,
  kEmbed,
  kRmsNorm,
  kLayerNorm,
  kGemvTile,
  kGemmTile,
  kAttentionTile,
  kRope,
  kSiluMul,
  kGelu,
  kAdd,
  kMul,
  kDequant,
  kSoftmax,
  kAllReduceShard,
  kKvAppend,
  kSampleArgmax,
  kAttentionCombine,
  kFused
};

struct OpInfo {
  const char* name;
  size_t min_inputs;
  size_t max_inputs;
  // Parameters without which AMK refuses the task; space separated.
  const char* required;
};

inline constexpr size_t kOpCount = static_cast<size_t>(Op::kFused) + 1;

const OpInfo& GetOpInfo(Op op);
std::optional<Op> FindOp(std::string_view name);
// Whether AMK knows a parameter of this name.
bool IsKnownParam(std::string_view name);

// Parameters of one task or step.
class Params {
 public:
  explicit Params(const Json& json) : json_(json) {}

  bool Has(const char* key) const { return json_.is_object() && json_.contains(key); }

  absl::StatusOr<int64_t> Int(const char* key, std::optional<int64_t> fallback = {}) const {
    if (!Has(key)) {
      if (fallback.has_value()) return *fallback;
      return Refuse(absl::StrCat("the parameter '", key, "' is missing"));
    }
    const std::optional<int64_t> value = Integer(json_.at(key));
    if (!value.has_value() || *value < std::numeric_limits<int32_t>::min() ||
        *value > std::numeric_limits<int32_t>::max()) {
      return Refuse(absl::StrCat("the parameter '", key, "' is not a whole number of 32 bits"));
    }
    return *value;
  }

  absl::StatusOr<double> Real(const char* key, std::optional<double> fallback = {}) const {
    if (!Has(key)) {
      if (fallback.has_value()) return *fallback;
      return Refuse(absl::StrCat("the parameter '", key, "' is missing"));
    }
    const Json& value = json_.at(key);
    if (!value.is_number())
      return Refuse(absl::StrCat("the parameter '", key, "' is not a number"));
    const double number = value.get<double>();
    if (!(std::abs(number) <= std::numeric_limits<float>::max())) {
      return Refuse(absl::StrCat("the parameter '", key, "' does not fit float32"));
    }
    return number;
  }

  const Json& json() const { return json_; }

 private:
  const Json& json_;
};

}  // namespace resident::cli::amk

#endif  // RESIDENT_CLIENT_IMPORTERS_AMK_FILE_H_
