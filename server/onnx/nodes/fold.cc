// Computes nodes at import whose inputs are constants: what exporters write around shapes, and
// constants of a few megabytes. Values of floating-point types are computed in float64 and rounded
// once. Layout operators (map_layout.cc) fold constants themselves.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

Constant FoldedBytes(ElementType type, Sizes64 shape, std::string bytes) {
  return {type, std::move(shape), std::make_shared<const std::string>(std::move(bytes)), ""};
}

// The inputs of an element-by-element operator, element by element in the broadcast shape.
class Operands {
 public:
  static absl::StatusOr<Operands> Make(NodeContext& node) {
    Operands operands;
    std::vector<Sizes64> shapes;
    for (size_t i = 0; i < node.inputs(); ++i) {
      if (!node.has(i)) return node.Refuse(109, StrCat("input ", i, " is missing"));
      operands.constants_.push_back(&node.in(i).constant);
      shapes.push_back(node.in(i).shape);
    }
    ASSIGN_OR_RETURN(operands.shape_, node.BroadcastShape(shapes));
    if (!CountElements(operands.shape_).has_value()) {
      return node.Refuse(501, "its result is too large");
    }
    for (const Sizes64& shape : shapes) {
      Sizes64 strides = DenseStrides(shape);
      for (size_t d = 0; d < shape.size(); ++d) {
        if (shape[d] == 1) strides[d] = 0;
      }
      strides.insert(strides.begin(), operands.shape_.size() - shape.size(), 0);
      operands.strides_.push_back(std::move(strides));
    }
    return operands;
  }

  const Sizes64& shape() const { return shape_; }

  // Calls body(indices), where indices[i] is the index of the element of input i.
  template <typename Body>
  void ForEach(const Body& body) const {
    std::vector<int64_t> at(constants_.size(), 0);
    Sizes64 index(shape_.size(), 0);
    const int64_t count = *CountElements(shape_);
    for (int64_t n = 0; n < count; ++n) {
      body(std::span<const int64_t>(at));
      for (size_t d = shape_.size(); d-- > 0;) {
        for (size_t i = 0; i < at.size(); ++i) at[i] += strides_[i][d];
        if (++index[d] < shape_[d]) break;
        for (size_t i = 0; i < at.size(); ++i) at[i] -= strides_[i][d] * shape_[d];
        index[d] = 0;
      }
    }
  }

 private:
  std::vector<const Constant*> constants_;
  std::vector<Sizes64> strides_;
  Sizes64 shape_;
};

int64_t Wrap(uint64_t value) { return static_cast<int64_t>(value); }

int64_t IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  uint64_t result = 1, square = static_cast<uint64_t>(base);
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= square;
    square *= square;
  }
  return Wrap(result);
}

struct BinaryRow {
  double (*real)(double, double);
  int64_t (*integer)(int64_t, int64_t);
};

const absl::flat_hash_map<std::string_view, BinaryRow>& BinaryRows() {
  using I = int64_t;
  using U = uint64_t;
  static const auto* const rows = new absl::flat_hash_map<std::string_view, BinaryRow>{
      {"Add",
       {[](double a, double b) { return a + b; }, [](I a, I b) { return Wrap(U(a) + U(b)); }}},
      {"Sub",
       {[](double a, double b) { return a - b; }, [](I a, I b) { return Wrap(U(a) - U(b)); }}},
      {"Mul",
       {[](double a, double b) { return a * b; }, [](I a, I b) { return Wrap(U(a) * U(b)); }}},
      {"Div",
       {[](double a, double b) { return a / b; },
        [](I a, I b) { return b == -1 ? Wrap(-U(a)) : a / b; }}},
      {"Pow", {[](double a, double b) { return std::pow(a, b); }, IntegerPower}},
      {"Max",
       {[](double a, double b) { return std::isnan(a) || a > b ? a : b; },
        [](I a, I b) { return std::max(a, b); }}},
      {"Min",
       {[](double a, double b) { return std::isnan(a) || a < b ? a : b; },
        [](I a, I b) { return std::min(a, b); }}},
      {"Mod",
       {[](double a, double b) { return std::fmod(a, b); },
        [](I a, I b) {
          const I rest = b == -1 ? 0 : a % b;
          return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
        }}},
  };
  return *rows;
}

absl::StatusOr<Constant> FoldBinary(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, std::numeric_limits<size_t>::max()));
  const BinaryRow row = BinaryRows().at(node.op());
  ASSIGN_OR_RETURN(const Operands operands, Operands::Make(node));
  const ElementType type = node.in(0).type;
  const bool c_remainder = node.op() == "Mod" && node.Int("fmod", 0) != 0;
  for (size_t i = 1; i < node.inputs(); ++i) {
    if (IsFloatType(node.in(i).type) != IsFloatType(type)) {
      return node.Refuse(302, "it mixes integers and floating-point numbers");
    }
  }
  if (IsFloatType(type) && node.op() == "Mod" && !c_remainder) {
    return node.Refuse(302, "a remainder of floating-point numbers needs fmod=1");
  }
  const int64_t count = *CountElements(operands.shape());
  RETURN_IF_ERROR(node.Charge(count, type));
  std::string bytes;
  bool division_by_zero = false;
  operands.ForEach([&](std::span<const int64_t> at) {
    if (IsFloatType(type)) {
      double value = node.in(0).constant.Real(at[0]);
      for (size_t i = 1; i < at.size(); ++i)
        value = row.real(value, node.in(i).constant.Real(at[i]));
      AppendReal(type, value, &bytes);
      return;
    }
    int64_t value = node.in(0).constant.Integer(at[0]);
    for (size_t i = 1; i < at.size(); ++i) {
      const int64_t other = node.in(i).constant.Integer(at[i]);
      if (other == 0 && (node.op() == "Div" || node.op() == "Mod")) {
        division_by_zero = true;
        value = 0;
      } else if (c_remainder) {
        value = other == -1 ? 0 : value % other;
      } else {
        value = row.integer(value, other);
      }
    }
    AppendInteger(type, value, &bytes);
  });
  if (division_by_zero) return node.Refuse(302, "it divides integers by 0");
  return FoldedBytes(type, operands.shape(), std::move(bytes));
}

double RoundHalfToEven(double x) { return std::nearbyint(x); }

using UnaryFunction = double (*)(double);

const absl::flat_hash_map<std::string_view, UnaryFunction>& UnaryFunctions() {
  static const auto* const functions = new absl::flat_hash_map<std::string_view, UnaryFunction>{
      {"Abs", [](double x) { return std::fabs(x); }},
      {"Ceil", [](double x) { return std::ceil(x); }},
      {"Cos", [](double x) { return std::cos(x); }},
      {"Erf", [](double x) { return std::erf(x); }},
      {"Exp", [](double x) { return std::exp(x); }},
      {"Floor", [](double x) { return std::floor(x); }},
      {"Log", [](double x) { return std::log(x); }},
      {"Neg", [](double x) { return -x; }},
      {"Reciprocal", [](double x) { return 1 / x; }},
      {"Relu", [](double x) { return x < 0 ? 0 : x; }},
      {"Round", RoundHalfToEven},
      {"Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"Sign", [](double x) { return x > 0   ? 1.0
                                     : x < 0 ? -1.0
                                             : x; }},
      {"Sin", [](double x) { return std::sin(x); }},
      {"Sqrt", [](double x) { return std::sqrt(x); }},
      {"Tanh", [](double x) { return std::tanh(x); }},
  };
  return *functions;
}

absl::StatusOr<Constant> FoldUnary(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const Value& x = node.in(0);
  RETURN_IF_ERROR(node.Charge(x.elements(), x.type));
  std::string bytes;
  const UnaryFunction function = UnaryFunctions().at(node.op());
  for (int64_t i = 0; i < x.elements(); ++i) {
    if (IsFloatType(x.type)) {
      AppendReal(x.type, function(x.constant.Real(i)), &bytes);
      continue;
    }
    const int64_t value = x.constant.Integer(i);
    if (node.op() == "Neg") {
      AppendInteger(x.type, Wrap(-static_cast<uint64_t>(value)), &bytes);
    } else if (node.op() == "Abs") {
      AppendInteger(x.type, value < 0 ? Wrap(-static_cast<uint64_t>(value)) : value, &bytes);
    } else if (node.op() == "Sign") {
      AppendInteger(x.type, (value > 0) - (value < 0), &bytes);
    } else {
      return node.RefuseType(x.type);
    }
  }
  return FoldedBytes(x.type, x.shape, std::move(bytes));
}

template <typename T>
bool Compare(std::string_view op, T a, T b) {
  if (op == "Equal") return a == b;
  if (op == "Less") return a < b;
  if (op == "LessOrEqual") return a <= b;
  if (op == "Greater") return a > b;
  return a >= b;
}

absl::StatusOr<Constant> FoldComparison(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  ASSIGN_OR_RETURN(const Operands operands, Operands::Make(node));
  RETURN_IF_ERROR(node.Charge(*CountElements(operands.shape()), ElementType::kBool));
  const Constant &x = node.in(0).constant, &y = node.in(1).constant;
  std::string bytes;
  operands.ForEach([&](std::span<const int64_t> at) {
    const bool result = IsFloatType(x.type) || IsFloatType(y.type)
                            ? Compare(node.op(), x.Real(at[0]), y.Real(at[1]))
                            : Compare(node.op(), x.Integer(at[0]), y.Integer(at[1]));
    bytes.push_back(result ? 1 : 0);
  });
  return FoldedBytes(ElementType::kBool, operands.shape(), std::move(bytes));
}

absl::StatusOr<Constant> FoldLogical(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(node.op() == "Not" ? 1 : 2, node.op() == "Not" ? 1 : 2));
  ASSIGN_OR_RETURN(const Operands operands, Operands::Make(node));
  RETURN_IF_ERROR(node.Charge(*CountElements(operands.shape()), ElementType::kBool));
  std::string bytes;
  operands.ForEach([&](std::span<const int64_t> at) {
    const bool a = node.in(0).constant.Integer(at[0]) != 0;
    const bool b = at.size() > 1 && node.in(1).constant.Integer(at[1]) != 0;
    const bool result = node.op() == "Not"   ? !a
                        : node.op() == "And" ? a && b
                        : node.op() == "Or"  ? a || b
                                             : a != b;
    bytes.push_back(result ? 1 : 0);
  });
  return FoldedBytes(ElementType::kBool, operands.shape(), std::move(bytes));
}

absl::StatusOr<Constant> FoldWhere(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(3, 3));
  ASSIGN_OR_RETURN(const Operands operands, Operands::Make(node));
  const Constant &x = node.in(1).constant, &y = node.in(2).constant;
  if (x.type != y.type) return node.Refuse(302, "its values have two types");
  RETURN_IF_ERROR(node.Charge(*CountElements(operands.shape()), x.type));
  const size_t size = SizeOf(DTypeOf(x.type));
  std::string bytes;
  operands.ForEach([&](std::span<const int64_t> at) {
    const bool first = node.in(0).constant.Integer(at[0]) != 0;
    const std::string_view from = first ? x.data() : y.data();
    bytes.append(from.substr(static_cast<size_t>(at[first ? 1 : 2]) * size, size));
  });
  return FoldedBytes(x.type, operands.shape(), std::move(bytes));
}

absl::StatusOr<Constant> FoldCast(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  const bool like = node.op() == "CastLike";
  if (like) RETURN_IF_ERROR(node.CheckInputs(2, 2));
  const ElementType to = like ? node.in(1).type : static_cast<ElementType>(node.Int("to", 0));
  const Value& x = node.in(0);
  if (DTypeOf(to) == DType::kInvalid) return node.RefuseType(to);
  if (to == x.type) return x.constant;
  RETURN_IF_ERROR(node.Charge(x.elements(), to));
  std::string bytes;
  for (int64_t i = 0; i < x.elements(); ++i) {
    if (to == ElementType::kBool) {
      bytes.push_back(IsFloatType(x.type) ? x.constant.Real(i) != 0 : x.constant.Integer(i) != 0);
    } else if (IsFloatType(to)) {
      AppendReal(to, x.constant.Real(i), &bytes);
    } else {
      AppendInteger(to, x.constant.Integer(i), &bytes);
    }
  }
  return FoldedBytes(to, x.shape, std::move(bytes));
}

absl::StatusOr<Constant> FoldRange(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(3, 3));
  const ElementType type = node.in(0).type;
  for (size_t i = 0; i < 3; ++i) {
    if (node.in(i).type != type || node.in(i).elements() != 1) {
      return node.Refuse(302, "its inputs must be three numbers of one type");
    }
  }
  const Constant &start = node.in(0).constant, &limit = node.in(1).constant,
                 &step = node.in(2).constant;
  const double count = std::max(0.0, std::ceil((limit.Real(0) - start.Real(0)) / step.Real(0)));
  if (!(count <= static_cast<double>(kMaxFoldedElements))) {
    return node.Refuse(501, "it has too many elements, or a step of 0");
  }
  const auto elements = static_cast<int64_t>(count);
  RETURN_IF_ERROR(node.Charge(elements, type));
  std::string bytes;
  for (int64_t i = 0; i < elements; ++i) {
    if (IsFloatType(type)) {
      AppendReal(type, start.Real(0) + static_cast<double>(i) * step.Real(0), &bytes);
    } else {
      AppendInteger(type,
                    Wrap(static_cast<uint64_t>(start.Integer(0)) +
                         static_cast<uint64_t>(i) * static_cast<uint64_t>(step.Integer(0))),
                    &bytes);
    }
  }
  return FoldedBytes(type, {elements}, std::move(bytes));
}

absl::StatusOr<Constant> FoldConcat(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, std::numeric_limits<size_t>::max()));
  ASSIGN_OR_RETURN(const size_t axis,
                   node.Axis(node.Int("axis", node.opset() < 4 ? 1 : 0), node.in(0).rank()));
  Sizes64 shape = node.in(0).shape;
  shape[axis] = 0;
  for (size_t i = 0; i < node.inputs(); ++i) {
    if (!node.has(i)) return node.Refuse(109, "an input is missing");
    const Value& x = node.in(i);
    for (size_t d = 0; d < shape.size(); ++d) {
      if (x.rank() != shape.size() || (d != axis && x.size(d) != shape[d]) ||
          x.type != node.in(0).type) {
        return node.Refuse(302, "shapes or types of its inputs do not fit together");
      }
    }
    shape[axis] = std::min(shape[axis] + x.size(axis), 2 * kMaxElements);
  }
  const std::optional<int64_t> elements = CountElements(shape);
  if (!elements.has_value()) return node.Refuse(501, "its result is too large");
  RETURN_IF_ERROR(node.Charge(*elements, node.in(0).type));
  int64_t outer = 1;
  for (size_t d = 0; d < axis; ++d) outer *= shape[d];
  std::string bytes;
  for (int64_t row = 0; row < outer; ++row) {
    for (size_t i = 0; i < node.inputs(); ++i) {
      const std::string_view data = node.in(i).constant.data();
      const size_t size = data.size() / static_cast<size_t>(outer);
      bytes.append(data.substr(static_cast<size_t>(row) * size, size));
    }
  }
  return FoldedBytes(node.in(0).type, shape, std::move(bytes));
}

absl::StatusOr<Constant> FoldGather(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  const Value &x = node.in(0), &indices = node.in(1);
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", 0), x.rank()));
  Sizes64 shape(x.shape.begin(), x.shape.begin() + static_cast<int64_t>(axis));
  shape.insert(shape.end(), indices.shape.begin(), indices.shape.end());
  shape.insert(shape.end(), x.shape.begin() + static_cast<int64_t>(axis) + 1, x.shape.end());
  const std::optional<int64_t> elements = CountElements(shape);
  if (!elements.has_value()) return node.Refuse(501, "its result is too large");
  RETURN_IF_ERROR(node.Charge(*elements + indices.elements(), x.type));
  const std::vector<int64_t> at = indices.constant.AllIntegers();
  int64_t outer = 1;
  for (size_t d = 0; d < axis; ++d) outer *= x.size(d);
  size_t inner = SizeOf(DTypeOf(x.type));
  for (size_t d = axis + 1; d < x.rank(); ++d) inner *= static_cast<size_t>(x.size(d));
  std::string bytes;
  if (*elements == 0) outer = 0;
  for (int64_t row = 0; row < outer; ++row) {
    for (const int64_t index : at) {
      if (index < -x.size(axis) || index >= x.size(axis)) {
        return node.Refuse(302, StrCat("index ", index, " is out of range of ", x.size(axis)));
      }
      const int64_t from = row * x.size(axis) + (index < 0 ? index + x.size(axis) : index);
      bytes.append(x.constant.data().substr(static_cast<size_t>(from) * inner, inner));
    }
  }
  return FoldedBytes(x.type, shape, std::move(bytes));
}

absl::StatusOr<Constant> FoldConstantOfShape(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  ASSIGN_OR_RETURN(const std::vector<int64_t> shape, node.RequireIntegers(0, "the sizes"));
  Constant value = Constant::Reals({1}, {0});
  if (const AttributeProto* const attribute = node.FindAttribute("value")) {
    TensorProto tensor = attribute->t();
    value.type = static_cast<ElementType>(tensor.data_type());
    if (DTypeOf(value.type) == DType::kInvalid) return node.RefuseType(value.type);
    value.bytes = std::make_shared<const std::string>(tensor.raw_data());
  }
  const size_t size = SizeOf(DTypeOf(value.type));
  const std::optional<int64_t> elements = CountElements(shape);
  if (!elements.has_value() || value.bytes->size() != size || shape.size() > kMaxRank) {
    return node.Refuse(302, StrCat("it cannot make the shape ", ShapeText(shape)));
  }
  RETURN_IF_ERROR(node.Charge(*elements, value.type));
  std::string bytes;
  for (int64_t i = 0; i < *elements; ++i) bytes.append(*value.bytes);
  return FoldedBytes(value.type, shape, std::move(bytes));
}

// out[r, c] = x[r, c] if it is in the triangle, otherwise 0.
absl::StatusOr<Constant> FoldTrilu(NodeContext& node) {
  ASSIGN_OR_RETURN(const Triangle triangle, ReadTriangle(node));
  const Value& x = node.in(0);
  RETURN_IF_ERROR(node.Charge(x.elements(), x.type));
  std::string bytes = *x.constant.bytes;
  const size_t size = SizeOf(DTypeOf(x.type));
  const int64_t rows = x.size(x.rank() - 2), columns = x.size(x.rank() - 1);
  for (int64_t i = 0; i < x.elements(); ++i) {
    if (!triangle.Keeps(i / columns % rows, i % columns))
      std::memset(bytes.data() + static_cast<size_t>(i) * size, 0, size);
  }
  return FoldedBytes(x.type, x.shape, std::move(bytes));
}

// Sum, product, largest and smallest over axes.
absl::StatusOr<Constant> FoldReduce(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  const Value& x = node.in(0);
  ASSIGN_OR_RETURN(const auto axes, node.Axes(1));
  std::vector<bool> reduced(x.rank(), !axes.has_value() || axes->empty());
  if ((!axes.has_value() || axes->empty()) && node.Int("noop_with_empty_axes", 0) != 0) {
    return x.constant;
  }
  for (const int64_t axis : axes.value_or(std::vector<int64_t>())) {
    ASSIGN_OR_RETURN(const size_t d, node.Axis(axis, x.rank()));
    reduced[d] = true;
  }
  const bool keep = node.Int("keepdims", 1) != 0;
  Sizes64 shape, kept = x.shape;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (reduced[d]) kept[d] = 1;
    if (!reduced[d] || keep) shape.push_back(kept[d]);
  }
  const bool product = node.op() == "ReduceProd", sum = node.op() == "ReduceSum";
  if (x.elements() == 0) return node.Refuse(404, "it reduces an empty tensor");
  RETURN_IF_ERROR(node.Charge(x.elements(), ElementType::kDouble));
  std::vector<double> real(static_cast<size_t>(*CountElements(kept)));
  std::vector<int64_t> integer(real.size());
  std::vector<bool> begun(real.size());
  const Sizes64 strides = DenseStrides(kept);
  Sizes64 index(x.rank());
  for (int64_t i = 0; i < x.elements(); ++i) {
    int64_t to = 0, rest = i;
    for (size_t d = x.rank(); d-- > 0;) {
      index[d] = rest % x.size(d);
      rest /= x.size(d);
      if (!reduced[d]) to += index[d] * strides[d];
    }
    const auto at = static_cast<size_t>(to);
    const double value = x.constant.Real(i);
    const int64_t whole = x.constant.Integer(i);
    if (!begun[at]) {
      begun[at] = true;
      real[at] = value;
      integer[at] = whole;
    } else if (sum) {
      real[at] += value;
      integer[at] = Wrap(static_cast<uint64_t>(integer[at]) + static_cast<uint64_t>(whole));
    } else if (product) {
      real[at] *= value;
      integer[at] = Wrap(static_cast<uint64_t>(integer[at]) * static_cast<uint64_t>(whole));
    } else {
      const bool largest = node.op() == "ReduceMax";
      if (std::isnan(value) || (largest ? value > real[at] : value < real[at])) real[at] = value;
      integer[at] = largest ? std::max(integer[at], whole) : std::min(integer[at], whole);
    }
  }
  return IsFloatType(x.type) ? Constant::Reals(shape, real, x.type)
                             : Constant::Integers(shape, integer, x.type);
}

const absl::flat_hash_map<std::string_view, Fold>& Folds() {
  static const auto* const folds = [] {
    auto* const all = new absl::flat_hash_map<std::string_view, Fold>;
    for (const auto& row : BinaryRows()) (*all)[row.first] = FoldBinary;
    for (const auto& row : UnaryFunctions()) (*all)[row.first] = FoldUnary;
    for (const char* const op : {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}) {
      (*all)[op] = FoldComparison;
    }
    for (const char* const op : {"And", "Or", "Xor", "Not"}) (*all)[op] = FoldLogical;
    for (const char* const op : {"ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"}) {
      (*all)[op] = FoldReduce;
    }
    (*all)["Cast"] = (*all)["CastLike"] = FoldCast;
    (*all)["Concat"] = FoldConcat;
    (*all)["ConstantOfShape"] = FoldConstantOfShape;
    (*all)["Gather"] = FoldGather;
    (*all)["Range"] = FoldRange;
    (*all)["Trilu"] = FoldTrilu;
    (*all)["Where"] = FoldWhere;
    return all;
  }();
  return *folds;
}

}  // namespace

Fold FindFold(std::string_view op) {
  const auto found = Folds().find(op);
  return found == Folds().end() ? nullptr : found->second;
}

}  // namespace resident::onnx
