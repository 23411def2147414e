#include "runtime/model/signature.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/errors.h"

namespace resident {
namespace {

// Larger numbers of elements are refused: no memory is that large, and sums must not overflow.
constexpr int64_t kMaxElements = int64_t{1} << 62;

// Reads a signature from left to right.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool AtEnd() {
    SkipSpace();
    return position_ == text_.size();
  }
  bool Take(char c) {
    SkipSpace();
    if (position_ == text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  // Reads letters, digits and underscores; returns an empty string if there are none.
  std::string TakeWord() {
    SkipSpace();
    const size_t begin = position_;
    while (
        position_ < text_.size() &&
        (std::isalnum(static_cast<unsigned char>(text_[position_])) || text_[position_] == '_')) {
      ++position_;
    }
    return std::string(text_.substr(begin, position_ - begin));
  }
  // Reads everything up to the next comma.
  std::string TakeValue() {
    SkipSpace();
    const size_t begin = position_;
    while (position_ < text_.size() && text_[position_] != ',') ++position_;
    size_t end = position_;
    while (end > begin && text_[end - 1] == ' ') --end;
    return std::string(text_.substr(begin, end - begin));
  }
  absl::Status Error(const std::string& what) const {
    return errors::BadSignature(std::string(text_), position_, what);
  }

 private:
  void SkipSpace() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }
  const std::string_view text_;
  size_t position_ = 0;
};

bool IsNumber(const std::string& word) {
  return !word.empty() && word.size() <= 18 &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

uint32_t VariableIndex(std::vector<std::string>& variables, const std::string& name) {
  const auto found = std::find(variables.begin(), variables.end(), name);
  if (found != variables.end()) return found - variables.begin();
  variables.push_back(name);
  return variables.size() - 1;
}

absl::StatusOr<DType> ReadDType(Reader& reader, const std::string& word) {
  if (const DTypeInfo* const info = FindDType(word)) return info->dtype;
  return reader.Error(absl::StrCat(errors::Quote(word), " is not a dtype (", DTypeNames(), ")"));
}

absl::Status ReadShape(Reader& reader, Parameter& parameter, std::vector<std::string>& variables) {
  bool spread = false;
  while (!reader.Take(']')) {
    if (!parameter.dims.empty() && !reader.Take(',')) {
      return reader.Error("expected ',' or ']' in the shape");
    }
    DimPattern dim;
    const bool star = reader.Take('*');
    const std::string word = reader.TakeWord();
    if (word.empty()) return reader.Error("expected a number or a name in the shape");
    if (star) {
      if (spread) return reader.Error("a shape has at most one '*'");
      spread = true;
      dim.kind = DimPattern::Kind::kSpread;
      dim.variable = VariableIndex(variables, "*" + word);
      if (reader.Take('~')) {
        if (parameter.kind != ParameterKind::kInput) {
          return reader.Error("only an input may broadcast ('~')");
        }
        dim.kind = DimPattern::Kind::kBroadcast;
      }
    } else if (IsNumber(word)) {
      dim.kind = DimPattern::Kind::kFixed;
      dim.size = std::atoll(word.c_str());
    } else if (std::isdigit(static_cast<unsigned char>(word[0]))) {
      return reader.Error(absl::StrCat(errors::Quote(word), " is neither a number nor a name"));
    } else {
      dim.kind = DimPattern::Kind::kNamed;
      dim.variable = VariableIndex(variables, word);
    }
    parameter.dims.push_back(dim);
    // Before the next one is compared with all variables.
    if (parameter.dims.size() > kMaxRank + (spread ? 1 : 0)) {
      return reader.Error(absl::StrCat("more than ", kMaxRank, " dimensions"));
    }
  }
  const uint32_t fixed = parameter.dims.size() - (spread ? 1 : 0);
  parameter.min_rank = fixed;
  parameter.max_rank = spread ? kMaxRank : fixed;
  return absl::OkStatus();
}

absl::Status ReadDefault(Reader& reader, Parameter& parameter) {
  const DType dtype = parameter.dtypes[0];
  const std::string value = reader.TakeValue();
  char* end = nullptr;
  errno = 0;
  if (IsFloat(dtype)) {
    const double number = std::strtod(value.c_str(), &end);
    // Of a value that is too small for a double, strtod returns the nearest one, which may be 0.
    const bool too_large = errno == ERANGE && std::isinf(number);
    if (value.empty() || *end != 0 || too_large || !ScalarFits(dtype, number)) {
      return reader.Error(absl::StrCat(errors::Quote(value), " is not a ", DTypeName(dtype)));
    }
    parameter.default_bits = ScalarBits(dtype, number);
  } else {
    const int64_t number = std::strtoll(value.c_str(), &end, 10);
    if (value.empty() || *end != 0 || errno == ERANGE || !ScalarFits(dtype, number)) {
      return reader.Error(absl::StrCat(errors::Quote(value), " is not a ", DTypeName(dtype)));
    }
    parameter.default_bits = ScalarBits(dtype, number);
  }
  return absl::OkStatus();
}

absl::StatusOr<Parameter> ReadParameter(Reader& reader, std::vector<std::string>& variables) {
  Parameter parameter;
  parameter.name = reader.TakeWord();
  if (parameter.name.empty()) return reader.Error("expected a parameter's name");
  if (!reader.Take(':')) return reader.Error("expected ':' after the parameter's name");
  const std::string kind = reader.TakeWord();
  if (kind == "in") {
    parameter.kind = ParameterKind::kInput;
  } else if (kind == "out") {
    parameter.kind = ParameterKind::kOutput;
  } else if (kind == "inout") {
    parameter.kind = ParameterKind::kInOut;
  } else if (kind == "scalar") {
    parameter.kind = ParameterKind::kScalar;
  } else {
    return reader.Error(absl::StrCat(errors::Quote(kind), " is not one of in, out, inout, scalar"));
  }
  std::string word = reader.TakeWord();
  if (word == "strided" && !parameter.scalar()) {
    parameter.strided = true;
    word = reader.TakeWord();
  }
  while (true) {
    ASSIGN_OR_RETURN(const DType dtype, ReadDType(reader, word));
    parameter.dtypes.push_back(dtype);
    if (!reader.Take('|')) break;
    word = reader.TakeWord();
  }

  if (parameter.scalar()) {
    if (parameter.dtypes.size() > 1) return reader.Error("a scalar takes one dtype");
    if (reader.Take('=')) {
      RETURN_IF_ERROR(ReadDefault(reader, parameter));
    }
  } else {
    if (!reader.Take('[')) return reader.Error("expected '[' before a tensor's shape");
    RETURN_IF_ERROR(ReadShape(reader, parameter, variables));
  }
  return parameter;
}

// Whether the parameter accepts float32, and a vector.
bool AcceptsAnyVector(const Parameter& parameter) {
  return std::find(parameter.dtypes.begin(), parameter.dtypes.end(), DType::kF32) !=
             parameter.dtypes.end() &&
         parameter.dims.size() == 1 && parameter.dims[0].kind != DimPattern::Kind::kFixed;
}

// Whether all tensors may be float32, and the operator cannot distinguish tensors of one size from
// vectors of the same elements: shapes of several dimensions are one variable's, so that they are
// equal. Of "x: in f32[*S], out: out f32[*R]" two shapes could be meant by 6 and 6 elements.
bool TensorsAreVectors(const std::vector<Parameter>& parameters) {
  const DimPattern* first = nullptr;
  for (const Parameter& parameter : parameters) {
    if (parameter.scalar()) continue;
    if (!AcceptsAnyVector(parameter)) return false;
    const DimPattern& dim = parameter.dims[0];
    if (first == nullptr) first = &dim;
    const bool vectors =
        dim.kind == DimPattern::Kind::kNamed && first->kind == DimPattern::Kind::kNamed;
    if (!vectors && dim.variable != first->variable) return false;
  }
  return true;
}

// Whether `from` broadcasts to `to`.
bool BroadcastsTo(absl::Span<const int64_t> from, absl::Span<const int64_t> to) {
  if (from.size() > to.size()) return false;
  to.remove_prefix(to.size() - from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1 && from[i] != to[i]) return false;
  }
  return true;
}

// Whether the pattern matches any number of dimensions.
bool IsSpread(DimPattern::Kind kind) {
  return kind == DimPattern::Kind::kSpread || kind == DimPattern::Kind::kBroadcast;
}

std::string DTypeList(const std::vector<DType>& dtypes) {
  return absl::StrJoin(dtypes, " or ",
                       [](std::string* out, DType dtype) { out->append(DTypeName(dtype)); });
}

}  // namespace

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::optional<int64_t> ElementCount(absl::Span<const int64_t> shape) {
  int64_t count = 1;
  bool zero = false;
  for (const int64_t dim : shape) {
    if (dim < 0 || dim > kMaxElements) return std::nullopt;
    if (dim == 0) {
      zero = true;
      continue;
    }
    if (count > kMaxElements / dim) return std::nullopt;
    count *= dim;
  }
  return zero ? 0 : count;
}

std::string ParameterKindText(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kInput:
      return "an input";
    case ParameterKind::kOutput:
      return "an output";
    case ParameterKind::kInOut:
      return "read and written in place";
    case ParameterKind::kScalar:
      return "a scalar";
  }
  return "unknown";
}

std::string AcceptedColumns(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kInput:
    case ParameterKind::kInOut:
      return "a buffer column or an inline column";
    case ParameterKind::kOutput:
      return "a buffer column or a returned column";
    case ParameterKind::kScalar:
      return "a scalar column";
  }
  return "nothing";
}

absl::StatusOr<Signature> Signature::Parse(std::string_view text) {
  Signature signature;
  Reader reader(text);
  do {
    ASSIGN_OR_RETURN(Parameter parameter, ReadParameter(reader, signature.variables_));
    for (const Parameter& other : signature.parameters_) {
      if (other.name == parameter.name) {
        return reader.Error(absl::StrCat("two parameters are named ", errors::Quote(other.name)));
      }
    }
    if (signature.parameters_.size() == kMaxArguments) {
      return reader.Error(absl::StrCat("more than ", kMaxArguments, " parameters"));
    }
    signature.parameters_.push_back(std::move(parameter));
  } while (reader.Take(','));
  if (!reader.AtEnd()) return reader.Error("expected ',' or the end");

  for (const Parameter& parameter : signature.parameters_) {
    for (const DimPattern& dim : parameter.dims) {
      if (dim.kind == DimPattern::Kind::kBroadcast && !signature.Binds(dim.variable)) {
        const std::string name = signature.variables_[dim.variable].substr(1);
        return reader.Error(absl::StrCat("'*", name, "~' of '", parameter.name,
                                         "' broadcasts to a shape that no parameter sets; write '*",
                                         name, "' in the output"));
      }
    }
  }

  signature.required_ = signature.parameters_.size();
  while (signature.required_ > 0 &&
         signature.parameters_[signature.required_ - 1].default_bits.has_value()) {
    --signature.required_;
  }
  signature.compact_ =
      signature.parameters_.size() <= kCompactArguments && TensorsAreVectors(signature.parameters_);
  return signature;
}

bool Signature::Binds(uint32_t variable) const {
  return std::any_of(parameters_.begin(), parameters_.end(), [&](const Parameter& parameter) {
    return std::any_of(parameter.dims.begin(), parameter.dims.end(), [&](const DimPattern& dim) {
      return dim.kind != DimPattern::Kind::kFixed && dim.kind != DimPattern::Kind::kBroadcast &&
             dim.variable == variable;
    });
  });
}

// The function is long because it is one pass over the arguments, which every request takes, and
// each error contains what the pass has bound so far.
absl::Status Signature::Match(const std::string& operator_name,
                              absl::Span<const ArgumentType> arguments, Bindings* bindings) const {
  if (arguments.size() < required_ || arguments.size() > parameters_.size()) {
    const std::string names =
        absl::StrJoin(parameters_, ", ", [](std::string* out, const Parameter& parameter) {
          absl::StrAppend(out, parameter.name, parameter.default_bits ? " (optional)" : "");
        });
    return errors::ArgumentCount(operator_name, arguments.size(), required_, parameters_.size(),
                                 names);
  }
  // For each variable, the shape to which it is bound, and the argument that bound it (-1: none).
  absl::InlinedVector<Shape, 4> bound(variables_.size());
  absl::InlinedVector<int, 4> binder(variables_.size(), -1);

  // Dimensions to check once the variable is bound.
  struct Broadcast {
    size_t argument;
    uint32_t variable;
    absl::Span<const int64_t> part;
  };
  absl::InlinedVector<Broadcast, 4> broadcasts;

  for (size_t a = 0; a < arguments.size(); ++a) {
    const Parameter& parameter = parameters_[a];
    const ArgumentType& argument = arguments[a];
    const errors::ArgumentRef place{operator_name, a, parameter.name};
    if (argument.scalar != parameter.scalar()) {
      return errors::ArgumentKind(place, ParameterKindText(parameter.kind),
                                  argument.scalar ? "a scalar column" : "a tensor column",
                                  AcceptedColumns(parameter.kind));
    }
    if (std::find(parameter.dtypes.begin(), parameter.dtypes.end(), argument.dtype) ==
        parameter.dtypes.end()) {
      return errors::ArgumentDType(place, DTypeName(argument.dtype), DTypeList(parameter.dtypes));
    }
    if (parameter.scalar()) continue;
    if (!argument.dense && !parameter.strided) return errors::ArgumentStrided(place);

    const absl::Span<const int64_t> shape = argument.shape;
    if (shape.size() < parameter.min_rank || shape.size() > parameter.max_rank) {
      return errors::ArgumentRank(place, ShapeText(shape), parameter.min_rank, parameter.max_rank);
    }
    const size_t spread_rank = shape.size() - parameter.min_rank;
    size_t at = 0;
    for (const DimPattern& dim : parameter.dims) {
      const size_t width = IsSpread(dim.kind) ? spread_rank : 1;
      const absl::Span<const int64_t> part = shape.subspan(at, width);
      at += width;
      if (dim.kind == DimPattern::Kind::kBroadcast) {
        broadcasts.push_back({a, dim.variable, part});
        continue;
      }
      if (dim.kind == DimPattern::Kind::kFixed) {
        if (part[0] != dim.size) {
          return errors::ArgumentFixedDim(place, ShapeText(shape), at - 1, dim.size);
        }
        continue;
      }
      if (binder[dim.variable] < 0) {
        binder[dim.variable] = static_cast<int>(a);
        bound[dim.variable].assign(part.begin(), part.end());
      } else if (absl::MakeConstSpan(bound[dim.variable]) != part) {
        const std::string name = variables_[dim.variable];
        const bool spread = dim.kind == DimPattern::Kind::kSpread;
        return errors::ArgumentShape(
            place, ShapeText(shape), spread ? name.substr(1) : name,
            spread ? ShapeText(bound[dim.variable]) : absl::StrCat(bound[dim.variable][0]),
            parameters_[binder[dim.variable]].name);
      }
    }
  }
  for (const Broadcast& broadcast : broadcasts) {
    const Shape& to = bound[broadcast.variable];
    if (BroadcastsTo(broadcast.part, to)) continue;
    return errors::ArgumentBroadcast(
        {operator_name, broadcast.argument, parameters_[broadcast.argument].name},
        ShapeText(arguments[broadcast.argument].shape), variables_[broadcast.variable].substr(1),
        ShapeText(to), parameters_[binder[broadcast.variable]].name);
  }
  if (bindings != nullptr) bindings->values.assign(bound.begin(), bound.end());
  return absl::OkStatus();
}

}  // namespace resident
