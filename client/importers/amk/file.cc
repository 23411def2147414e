#include "client/importers/amk/file.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/escaping.h"

namespace resident::cli::amk {

namespace {

using absl::StrCat;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxDims = 8;
constexpr int64_t kMaxElements = int64_t{1} << 56;

// Finds the first syntax error with its position, and refuses deep nesting before a tree is made.
class SyntaxCheck : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool key(std::string&) override { return true; }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library's text begins with a number in brackets.
    const std::string_view what = error.what();
    const size_t end = what.find("] ");
    error_ = StrCat("byte ", position, ": ",
                    absl::Utf8SafeCEscape(std::string(
                        what.substr(end == std::string_view::npos ? 0 : end + 2, 200))));
    return false;
  }
  const std::string& error() const { return error_; }

 private:
  bool Open() {
    if (++depth_ <= kMaxDepth) return true;
    error_ = StrCat("objects and arrays are nested more than ", kMaxDepth, " levels deep");
    return false;
  }
  bool Close() {
    --depth_;
    return true;
  }
  int depth_ = 0;
  std::string error_;
};

// By opcode. GEMV_TILE, GEMM_TILE take zeros as a fourth input, which AMK refuses.
constexpr OpInfo kOps[] = {
    {"NOP", 0, 0, ""},
    {"COPY", 1, 1, ""},
    {"EMBED", 2, 2, "hidden"},
    {"RMSNORM", 2, 2, "eps hidden"},
    {"LAYERNORM", 2, 3, "eps hidden"},
    {"GEMV_TILE", 2, 4, "K N_tile n_off"},
    {"GEMM_TILE", 2, 4, "M_tile K N_tile n_off"},
    {"ATTENTION_TILE", 3, 4, "head_dim kv_start kv_len scale n_heads n_kv_heads"},
    {"ROPE", 2, 2, "head_dim theta"},
    {"SILU_MUL", 2, 2, ""},
    {"GELU", 1, 1, ""},
    {"ADD", 2, 2, ""},
    {"MUL", 1, 2, ""},
    {"DEQUANT", 2, 3, "qdtype group"},
    {"SOFTMAX", 1, 1, ""},
    {"ALLREDUCE_SHARD", 1, 8, ""},
    {"KV_APPEND", 2, 2, "pos"},
    {"SAMPLE_ARGMAX", 1, 1, ""},
    {"ATTENTION_COMBINE", 2, 8, "head_dim n_heads"},
    {"FUSED", 1, 8, "recipe"},
};
static_assert(std::size(kOps) == kOpCount);

constexpr std::string_view kKnownParams[] = {
    "K",     "N",        "M",       "N_tile",     "M_tile",   "n_off",  "m_off", "hidden",
    "vocab", "head_dim", "n_heads", "n_kv_heads", "kv_start", "kv_len", "pos",   "qdtype",
    "group", "flags",    "dim",     "eps",        "scale",    "theta",  "recipe"};

}  // namespace

absl::StatusOr<Json> ParseFile(const std::string& text) {
  if (text.size() > kMaxFileBytes) {
    return Refuse(StrCat("the file has ", text.size(), " bytes; at most ", kMaxFileBytes));
  }
  SyntaxCheck syntax;
  if (!Json::sax_parse(text, &syntax)) return Refuse(std::string(syntax.error()));
  Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) return Refuse("the file is not JSON");
  return file;
}

absl::Status Refuse(const std::string& what) { return absl::InvalidArgumentError(what); }

std::string Quoted(const std::string& text) {
  constexpr size_t kShownBytes = 60;
  return StrCat("'", absl::Utf8SafeCEscape(text.substr(0, kShownBytes)),
                text.size() > kShownBytes ? "...'" : "'");
}

const Json& Field(const Json& object, const char* key) {
  static const Json* const none = new Json;
  const auto found = object.find(key);
  return found == object.end() ? *none : *found;
}

std::optional<int64_t> Integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

absl::StatusOr<uint32_t> Index(const Json& value, const std::string& what) {
  const std::optional<int64_t> number = Integer(value);
  if (!number.has_value() || *number < 0 || *number > std::numeric_limits<int32_t>::max()) {
    return Refuse(StrCat(what, " is not a whole number from 0 to 2147483647"));
  }
  return static_cast<uint32_t>(*number);
}

absl::StatusOr<Shape> ParseShape(const Json& value) {
  if (!value.is_array()) return Refuse("its shape is not an array");
  if (value.size() > kMaxDims) return Refuse(StrCat("it has more than ", kMaxDims, " dimensions"));
  Shape shape;
  int64_t elements = 1;
  for (const Json& dim : value) {
    const std::optional<int64_t> size = Integer(dim);
    if (!size.has_value() || *size < 1) {
      return Refuse("a dimension is not a whole number of at least 1");
    }
    if (*size > kMaxElements / elements) {
      return Refuse(StrCat("it has more than ", kMaxElements, " elements"));
    }
    elements *= *size;
    shape.push_back(*size);
  }
  return shape;
}

const OpInfo& GetOpInfo(Op op) { return kOps[static_cast<size_t>(op)]; }

std::optional<Op> FindOp(std::string_view name) {
  for (size_t i = 0; i < kOpCount; ++i) {
    if (name == kOps[i].name) return static_cast<Op>(i);
  }
  return std::nullopt;
}

bool IsKnownParam(std::string_view name) {
  return std::find(std::begin(kKnownParams), std::end(kKnownParams), name) !=
         std::end(kKnownParams);
}

}  // namespace resident::cli::amk
