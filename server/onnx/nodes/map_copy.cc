// Operators that arrange elements anew: each part of the result is copied from a view.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

// Copies of one node.
constexpr int64_t kMaxCopies = 1024;

// The elements [begin, begin + size) of one dimension.
Value Part(const Value& value, size_t axis, int64_t begin, int64_t size) {
  Value part = value;
  part.offset += begin * part.strides[axis];
  part.shape[axis] = size;
  return part;
}

}  // namespace

absl::Status MapConcat(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, std::numeric_limits<size_t>::max()));
  ASSIGN_OR_RETURN(const size_t axis,
                   node.Axis(node.Int("axis", node.opset() < 4 ? 1 : 0), node.in(0).rank()));
  Sizes64 shape = node.in(0).shape;
  shape[axis] = 0;
  for (size_t i = 0; i < node.inputs(); ++i) {
    if (!node.has(i)) return node.Refuse(109, "an input is missing");
    const Value& x = node.in(i);
    bool fits = x.rank() == shape.size() && x.type == node.in(0).type;
    for (size_t d = 0; fits && d < shape.size(); ++d) fits = d == axis || x.size(d) == shape[d];
    if (!fits) {
      return node.Refuse(302, StrCat("inputs of the shapes ", ShapeText(node.in(0).shape), " and ",
                                     ShapeText(x.shape), " cannot be joined along axis ", axis));
    }
    shape[axis] = std::min(shape[axis] + x.size(axis), kMaxElements);
  }
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, node.in(0).type, shape));
  int64_t at = 0;
  for (size_t i = 0; i < node.inputs(); ++i) {
    const int64_t size = node.in(i).size(axis);
    if (size == 0) continue;  // An empty constant.
    node.Call("copy", {node.In(node.in(i)), node.Out(Part(out, axis, at, size))});
    at += size;
  }
  return absl::OkStatus();
}

namespace {

struct Padding {
  std::vector<int64_t> before, after;
};

absl::StatusOr<Padding> ReadPadding(NodeContext& node) {
  const size_t rank = node.in(0).rank();
  std::vector<int64_t> pads;
  if (node.opset() < 11) {
    pads = node.Ints("pads").value_or(std::vector<int64_t>());
  } else {
    RETURN_IF_ERROR(node.CheckInputs(2, 4));
    ASSIGN_OR_RETURN(pads, node.RequireIntegers(1, "the widths"));
  }
  std::vector<int64_t> axes;
  if (node.has(3)) {
    ASSIGN_OR_RETURN(axes, node.RequireIntegers(3, "the axes"));
  } else {
    for (size_t d = 0; d < rank; ++d) axes.push_back(static_cast<int64_t>(d));
  }
  if (pads.size() != 2 * axes.size()) {
    return node.Refuse(302, StrCat("it has ", pads.size(), " widths for ", axes.size(), " axes"));
  }
  Padding padding{std::vector<int64_t>(rank, 0), std::vector<int64_t>(rank, 0)};
  for (size_t i = 0; i < axes.size(); ++i) {
    ASSIGN_OR_RETURN(const size_t d, node.Axis(axes[i], rank));
    padding.before[d] = pads[i];
    padding.after[d] = pads[i + axes.size()];
    if (std::abs(pads[i] / 2) > kMaxElements / 4 ||
        std::abs(pads[i + axes.size()] / 2) > kMaxElements / 4) {
      return node.Refuse(302, "a width is out of range");
    }
  }
  return padding;
}

// The value with which constant padding fills; nullopt: 0.
absl::StatusOr<std::optional<Value>> ReadFill(NodeContext& node) {
  const ElementType type = node.in(0).type;
  if (node.opset() < 11) {
    const double value = node.Float("value", 0);
    if (value == 0) return std::nullopt;
    if (!IsFloatType(type)) return node.RefuseType(type);
    return ConstantValue(Constant::Reals({}, {value}, type));
  }
  if (!node.has(2)) return std::nullopt;
  if (node.in(2).type != type || node.in(2).elements() != 1) {
    return node.Refuse(302, "its filling value is not one number of the input's type");
  }
  ASSIGN_OR_RETURN(Value value, node.Reshape(node.in(2), {}));
  return value;
}

// The runs of an axis of the result: `count` elements from `from`, in steps of `step`.
struct Run {
  int64_t to, from, count, step;
};

// Where the elements of an axis come from. Empty: the padding is too wide for this mode.
std::vector<Run> FindRuns(const std::string& mode, int64_t size, int64_t before, int64_t after) {
  std::vector<Run> runs;
  const int64_t skip = std::max<int64_t>(-before, 0), drop = std::max<int64_t>(-after, 0);
  before = std::max<int64_t>(before, 0);
  after = std::max<int64_t>(after, 0);
  const int64_t inner = size - skip - drop;
  if (inner <= 0) return {};
  if (mode == "edge") {
    if (before > 0) runs.push_back({0, skip, before, 0});
    if (after > 0) runs.push_back({before + inner, skip + inner - 1, after, 0});
  } else if (mode == "reflect") {
    if (before >= inner || after >= inner) return {};
    if (before > 0) runs.push_back({0, skip + before, before, -1});
    if (after > 0) runs.push_back({before + inner, skip + inner - 2, after, -1});
  } else {  // wrap
    if (before > inner || after > inner) return {};
    if (before > 0) runs.push_back({0, skip + inner - before, before, 1});
    if (after > 0) runs.push_back({before + inner, skip, after, 1});
  }
  runs.push_back({before, skip, inner, 1});
  return runs;
}

}  // namespace

absl::Status MapPad(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 4));
  const Value& x = node.in(0);
  ASSIGN_OR_RETURN(const Padding padding, ReadPadding(node));
  Sizes64 shape = x.shape;
  for (size_t d = 0; d < x.rank(); ++d) {
    shape[d] = std::min(shape[d] + padding.before[d] + padding.after[d], kMaxElements);
  }
  const std::string mode = node.String("mode", "constant");
  if (mode == "constant") {
    ASSIGN_OR_RETURN(const std::optional<Value> fill, ReadFill(node));
    ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, shape));
    if (fill.has_value()) {
      node.Call("copy", {node.In(*fill), node.Out(out)});
    } else {
      node.Call("zero", {node.Out(out)});
    }
    // Negative widths cut the input.
    Value from = NodeContext::Strided(x), to = out;
    for (size_t d = 0; d < x.rank(); ++d) {
      const int64_t skip = std::max<int64_t>(-padding.before[d], 0);
      const int64_t size = x.size(d) - skip - std::max<int64_t>(-padding.after[d], 0);
      if (size <= 0) return absl::OkStatus();  // Nothing of the input remains.
      from = Part(from, d, skip, size);
      to = Part(to, d, std::max<int64_t>(padding.before[d], 0), size);
    }
    ASSIGN_OR_RETURN(from, node.Settle(std::move(from)));
    node.Call("copy", {node.In(from), node.Out(to)});
    return absl::OkStatus();
  }
  if (mode != "edge" && mode != "reflect" && mode != "wrap") {
    return node.Refuse(302, StrCat("the mode ", mode, " is not supported"));
  }
  // Each combination of runs is one copy.
  std::vector<std::vector<Run>> runs;
  int64_t copies = 1;
  for (size_t d = 0; d < x.rank(); ++d) {
    runs.push_back(FindRuns(mode, x.size(d), padding.before[d], padding.after[d]));
    if (runs.back().empty()) return node.Refuse(302, StrCat("it is too wide for the mode ", mode));
    copies *= static_cast<int64_t>(runs.back().size());
  }
  if (copies > kMaxCopies) return node.Refuse(302, "it has too many parts");
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, shape));
  for (int64_t i = 0; i < copies; ++i) {
    Value from = NodeContext::Strided(x), to = out;
    int64_t rest = i;
    for (size_t d = 0; d < x.rank(); ++d) {
      const auto choices = static_cast<int64_t>(runs[d].size());
      const Run& run = runs[d][static_cast<size_t>(rest % choices)];
      rest /= choices;
      from = Part(from, d, run.from, run.count);
      from.strides[d] *= run.step;
      to = Part(to, d, run.to, run.count);
    }
    ASSIGN_OR_RETURN(from, node.Settle(std::move(from)));
    node.Call("copy", {node.In(from), node.Out(to)});
  }
  return absl::OkStatus();
}

absl::Status MapTile(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  const Value& x = node.in(0);
  ASSIGN_OR_RETURN(const std::vector<int64_t> repeats, node.RequireIntegers(1, "the repeats"));
  if (repeats.size() != x.rank()) return node.Refuse(302, "it has not one number for each axis");
  Value view = NodeContext::Strided(x);
  Sizes64 shape;
  Sizes64 split, strides;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (repeats[d] < 1 || repeats[d] > kMaxElements / x.size(d)) {
      return node.Refuse(404, StrCat("it repeats an axis ", repeats[d], " times"));
    }
    shape.push_back(x.size(d) * repeats[d]);
    if (repeats[d] > 1) {
      split.push_back(repeats[d]);
      strides.push_back(0);
    }
    split.push_back(x.size(d));
    strides.push_back(view.strides[d]);
  }
  if (!CountElements(shape).has_value()) return node.Refuse(501, "its result is too large");
  view.shape = split;
  view.strides = strides;
  ASSIGN_OR_RETURN(view, node.Settle(std::move(view)));
  ASSIGN_OR_RETURN(view, node.Reshape(view, shape));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

absl::Status MapDepthAndSpace(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const Value& x = node.in(0);
  const int64_t block = node.Int("blocksize", 0);
  if (x.rank() != 4 || block < 1 || block > kMaxElements / x.elements() / block) {
    return node.Refuse(302, "it needs four dimensions and a positive blocksize");
  }
  const int64_t n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
  const bool to_space = node.op() == "DepthToSpace";
  if (to_space ? c % (block * block) != 0 : h % block != 0 || w % block != 0) {
    return node.Refuse(302,
                       StrCat("the shape ", ShapeText(x.shape), " is not divisible by blocks"));
  }
  Value view;
  Sizes64 shape;
  if (to_space) {
    const int64_t depth = c / (block * block);
    shape = {n, depth, h * block, w * block};
    const std::string mode = node.String("mode", "DCR");
    if (mode == "DCR") {
      ASSIGN_OR_RETURN(view, node.Reshape(x, {n, block, block, depth, h, w}));
      ASSIGN_OR_RETURN(view, node.Transpose(view, {0, 3, 4, 1, 5, 2}));
    } else if (mode == "CRD") {
      ASSIGN_OR_RETURN(view, node.Reshape(x, {n, depth, block, block, h, w}));
      ASSIGN_OR_RETURN(view, node.Transpose(view, {0, 1, 4, 2, 5, 3}));
    } else {
      return node.Refuse(302, "its mode is neither DCR nor CRD");
    }
  } else {
    shape = {n, c * block * block, h / block, w / block};
    ASSIGN_OR_RETURN(view, node.Reshape(x, {n, c, h / block, block, w / block, block}));
    // Blocks before channels, or channels before blocks.
    const std::string mode = node.String("mode", "DCR");
    if (mode != "DCR" && mode != "CRD") return node.Refuse(302, "its mode is neither DCR nor CRD");
    ASSIGN_OR_RETURN(view, mode == "DCR" ? node.Transpose(view, {0, 3, 5, 1, 2, 4})
                                         : node.Transpose(view, {0, 1, 3, 5, 2, 4}));
  }
  ASSIGN_OR_RETURN(view, node.Reshape(view, shape));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

namespace {

// The element of the input whose value Resize gives an element of the output; nearest.
absl::StatusOr<int64_t> NearestIndex(const NodeContext& node, int64_t at, int64_t from, int64_t to,
                                     double scale, const std::string& coordinates,
                                     const std::string& rounding) {
  double x;
  const auto position = static_cast<double>(at);
  if (coordinates == "half_pixel" || (coordinates == "pytorch_half_pixel" && to > 1)) {
    x = (position + 0.5) / scale - 0.5;
  } else if (coordinates == "asymmetric") {
    x = position / scale;
  } else if (coordinates == "pytorch_half_pixel") {
    x = 0;
  } else if (coordinates == "align_corners") {
    x = to == 1 ? 0 : position * static_cast<double>(from - 1) / static_cast<double>(to - 1);
  } else {
    return node.Refuse(302, StrCat("coordinates ", coordinates, " are not supported"));
  }
  double rounded;
  if (rounding == "round_prefer_floor") {
    rounded = std::ceil(x - 0.5);
  } else if (rounding == "round_prefer_ceil") {
    rounded = std::floor(x + 0.5);
  } else if (rounding == "floor") {
    rounded = std::floor(x);
  } else if (rounding == "ceil") {
    rounded = std::ceil(x);
  } else {
    return node.Refuse(302, StrCat("the rounding ", rounding, " is not supported"));
  }
  return static_cast<int64_t>(std::clamp(rounded, 0.0, static_cast<double>(from - 1)));
}

// The scales of Resize or Upsample, for all axes.
absl::StatusOr<std::vector<double>> ReadScales(NodeContext& node, Sizes64* shape) {
  const Value& x = node.in(0);
  const bool upsample = node.op() == "Upsample";
  const size_t scales_at = upsample || node.opset() < 11 ? 1 : 2;
  std::vector<double> scales;
  if (upsample && node.opset() < 9) {
    const AttributeProto* const attribute = node.FindAttribute("scales");
    if (attribute == nullptr) return node.Refuse(109, "it has no scales");
    scales.assign(attribute->floats().begin(), attribute->floats().end());
  } else if (node.has(scales_at) &&
             !(node.in(scales_at).is_constant() && node.in(scales_at).elements() == 0)) {
    ASSIGN_OR_RETURN(const Constant given, node.RequireConstant(scales_at, "the scales"));
    for (int64_t i = 0; i < std::min<int64_t>(given.elements(), kMaxRank); ++i)
      scales.push_back(given.Real(i));
  } else {
    if (!node.has(3)) return node.Refuse(109, "it has neither scales nor sizes");
    ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, node.RequireIntegers(3, "the sizes"));
    if (sizes.size() != x.rank()) return node.Refuse(302, "it has not one size for each axis");
    for (size_t d = 0; d < x.rank(); ++d) {
      if (sizes[d] < 1) return node.Refuse(404, "a size is not positive");
      scales.push_back(static_cast<double>(sizes[d]) / static_cast<double>(x.size(d)));
    }
    *shape = sizes;
    return scales;
  }
  if (scales.size() != x.rank()) return node.Refuse(302, "it has not one scale for each axis");
  for (size_t d = 0; d < x.rank(); ++d) {
    const double size = std::floor(static_cast<double>(x.size(d)) * scales[d]);
    if (!(size >= 1 && size < 1e12)) return node.Refuse(302, "a scale is out of range");
    shape->push_back(static_cast<int64_t>(size));
  }
  return scales;
}

}  // namespace

// Whole factors and the nearest element: each element is repeated.
absl::Status MapResize(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 4));
  const Value& x = node.in(0);
  if (node.String("mode", "nearest") != "nearest") {
    return node.Refuse(302, "only the mode nearest is supported");
  }
  for (const char* const attribute : {"axes", "keep_aspect_ratio_policy"}) {
    if (node.FindAttribute(attribute) != nullptr) {
      return node.Refuse(302, StrCat("the attribute ", attribute, " is not supported"));
    }
  }
  Sizes64 shape;
  ASSIGN_OR_RETURN(const std::vector<double> scales, ReadScales(node, &shape));
  const bool early = node.op() == "Upsample" || node.opset() < 11;
  const std::string coordinates =
      early ? "asymmetric" : node.String("coordinate_transformation_mode", "half_pixel");
  const std::string rounding = early ? "floor" : node.String("nearest_mode", "round_prefer_floor");
  Value view = NodeContext::Strided(x);
  Sizes64 split, strides;
  for (size_t d = 0; d < x.rank(); ++d) {
    const int64_t factor = shape[d] / x.size(d);
    if (factor < 1 || factor * x.size(d) != shape[d] || scales[d] != static_cast<double>(factor)) {
      return node.Refuse(302, StrCat("a size of ", x.size(d), " becomes ", shape[d],
                                     ", and only whole factors are supported"));
    }
    RETURN_IF_ERROR(node.Charge(shape[d], ElementType::kInt64));
    for (int64_t i = 0; i < shape[d]; ++i) {
      ASSIGN_OR_RETURN(const int64_t from, NearestIndex(node, i, x.size(d), shape[d], scales[d],
                                                        coordinates, rounding));
      if (from != i / factor) {
        return node.Refuse(302,
                           StrCat(coordinates, " with ", rounding, " does not repeat elements"));
      }
    }
    split.push_back(x.size(d));
    strides.push_back(view.strides[d]);
    if (factor == 1) continue;
    split.push_back(factor);
    strides.push_back(0);
  }
  if (!CountElements(shape).has_value()) return node.Refuse(501, "its result is too large");
  view.shape = split;
  view.strides = strides;
  ASSIGN_OR_RETURN(view, node.Settle(std::move(view)));
  ASSIGN_OR_RETURN(view, node.Reshape(view, shape));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

namespace {

// Copies of constant indices; more are gathered.
constexpr size_t kMaxIndexCopies = 8;

// x and indices as views of the shape of the result, in which the last dimension of the indices is
// the axis.
absl::Status GatherAlong(NodeContext& node, size_t axis, const Value& given) {
  const Value& x = node.in(0);
  Value from = NodeContext::Strided(node.Stored(x));
  Value indices = NodeContext::Strided(node.Stored(given));
  Sizes64 shape(x.shape.begin(), x.shape.begin() + static_cast<int64_t>(axis));
  shape.insert(shape.end(), indices.shape.begin(), indices.shape.end());
  shape.insert(shape.end(), x.shape.begin() + static_cast<int64_t>(axis) + 1, x.shape.end());
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, shape));
  Value to = out;
  if (indices.rank() == 0) {
    // One index: the axis has the size 1.
    indices.shape = {1};
    indices.strides = {1};
    to.shape.insert(to.shape.begin() + static_cast<int64_t>(axis), 1);
    to.strides = DenseStrides(to.shape);
  }
  const size_t added = indices.rank() - 1;
  const auto at = static_cast<int64_t>(axis);
  from.shape.insert(from.shape.begin() + at, indices.shape.begin(), indices.shape.end() - 1);
  from.strides.insert(from.strides.begin() + at, added, 0);
  indices.shape = to.shape;
  indices.strides.insert(indices.strides.begin(), axis, 0);
  indices.strides.resize(indices.shape.size(), 0);
  node.Call("gather", {node.In(from), node.In(indices), node.Out(to),
                       node.Integer(static_cast<int64_t>(axis + added))});
  return absl::OkStatus();
}

// With constant indices: one view or a few copies.
absl::Status GatherConstant(NodeContext& node, size_t axis, const Value& indices) {
  const Value x = NodeContext::Strided(node.in(0));
  RETURN_IF_ERROR(node.Charge(indices.elements(), indices.type));
  std::vector<int64_t> at = indices.constant.AllIntegers();
  for (int64_t& index : at) {
    if (index < -x.size(axis) || index >= x.size(axis)) {
      return node.Refuse(302, StrCat("index ", index, " is out of range of ", x.size(axis)));
    }
    if (index < 0) index += x.size(axis);
  }
  Sizes64 shape(x.shape.begin(), x.shape.begin() + static_cast<int64_t>(axis));
  shape.insert(shape.end(), indices.shape.begin(), indices.shape.end());
  shape.insert(shape.end(), x.shape.begin() + static_cast<int64_t>(axis) + 1, x.shape.end());
  if (at.empty()) return node.Refuse(404, "it has no indices");
  const int64_t step = at.size() > 1 ? at[1] - at[0] : 1;
  bool regular = true;
  for (size_t i = 1; i < at.size(); ++i) regular &= at[i] - at[i - 1] == step;
  if (regular) {
    Value view = Part(x, axis, at[0], static_cast<int64_t>(at.size()));
    view.strides[axis] *= step;
    ASSIGN_OR_RETURN(view, node.Settle(std::move(view)));
    ASSIGN_OR_RETURN(view, node.Reshape(view, shape));
    node.SetResult(0, std::move(view));
    return absl::OkStatus();
  }
  if (at.size() > kMaxIndexCopies) return GatherAlong(node, axis, indices);
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, shape));
  // The result with one dimension for all indices.
  Sizes64 flat = x.shape;
  flat[axis] = static_cast<int64_t>(at.size());
  Value rows = out;
  rows.shape = flat;
  rows.strides = DenseStrides(flat);
  for (size_t i = 0; i < at.size(); ++i) {
    ASSIGN_OR_RETURN(const Value from, node.Settle(Part(x, axis, at[i], 1)));
    node.Call("copy", {node.In(from), node.Out(Part(rows, axis, static_cast<int64_t>(i), 1))});
  }
  return absl::OkStatus();
}

}  // namespace

// Rows of a table of floats are those of embedding, which refuses negative indices when it runs.
absl::Status MapGather(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  const Value &x = node.in(0), &indices = node.in(1);
  if (x.rank() == 0) return node.Refuse(302, "its input has no dimensions");
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", 0), x.rank()));
  if (indices.type != ElementType::kInt64 && indices.type != ElementType::kInt32) {
    return node.RefuseType(indices.type);
  }
  if (x.rank() + indices.rank() > kMaxRank)
    return node.Refuse(103, "its result has too many dimensions");
  if (indices.is_constant()) return GatherConstant(node, axis, indices);
  if (axis != 0 || x.rank() < 2 || !x.is_constant() || !node.CheckFloat(0).ok()) {
    return GatherAlong(node, axis, indices);
  }
  const int64_t columns = x.elements() / x.size(0);
  ASSIGN_OR_RETURN(const Value table, node.Reshape(x, {x.size(0), columns}));
  ASSIGN_OR_RETURN(const Value ids, node.Dense(indices));
  Sizes64 shape = indices.shape;
  shape.insert(shape.end(), x.shape.begin() + 1, x.shape.end());
  ASSIGN_OR_RETURN(Value out, node.NewResult(0, x.type, shape));
  out.shape = indices.shape;
  out.shape.push_back(columns);
  out.strides = DenseStrides(out.shape);
  node.Call("embedding", {node.In(ids), node.In(table), node.Out(out)});
  return absl::OkStatus();
}

// The indices may have fewer elements than x in the other dimensions.
absl::Status MapGatherElements(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  const Value &x = node.in(0), &indices = node.in(1);
  if (indices.type != ElementType::kInt64 && indices.type != ElementType::kInt32) {
    return node.RefuseType(indices.type);
  }
  if (x.rank() == 0 || x.rank() != indices.rank()) {
    return node.Refuse(302, "its inputs have different numbers of dimensions");
  }
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", 0), x.rank()));
  Value from = NodeContext::Strided(node.Stored(x));
  for (size_t d = 0; d < x.rank(); ++d) {
    if (d == axis) continue;
    if (indices.size(d) > x.size(d)) {
      return node.Refuse(302, StrCat("indices of the shape ", ShapeText(indices.shape),
                                     " do not fit the shape ", ShapeText(x.shape)));
    }
    from.shape[d] = indices.size(d);
  }
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, indices.shape));
  node.Call("gather", {node.In(from), node.In(indices), node.Out(out),
                       node.Integer(static_cast<int64_t>(axis))});
  return absl::OkStatus();
}

namespace {

// Where the elements of GatherND begin: strides if they are regular, otherwise nullopt. `starts`:
// by element of the shape, row-major.
std::optional<Sizes64> FindStrides(const std::vector<int64_t>& starts, const Sizes64& shape) {
  Sizes64 strides(shape.size(), 0);
  const Sizes64 dense = DenseStrides(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1) strides[d] = starts[static_cast<size_t>(dense[d])] - starts[0];
  }
  for (size_t i = 0; i < starts.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), at = starts[0];
    for (size_t d = shape.size(); d-- > 0;) {
      at += rest % shape[d] * strides[d];
      rest /= shape[d];
    }
    if (at != starts[i]) return std::nullopt;
  }
  return strides;
}

}  // namespace

// The indices must be constant: a view if they are regular, as those that exporters write for all
// elements of a mask.
absl::Status MapGatherNd(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  const Value &x = node.in(0), &indices = node.in(1);
  if (node.Int("batch_dims", 0) != 0) return node.Refuse(302, "batch_dims is not 0");
  ASSIGN_OR_RETURN(const std::vector<int64_t> at, node.RequireIntegers(1, "the indices"));
  const size_t count = indices.rank() == 0 ? 0 : static_cast<size_t>(indices.shape.back());
  if (count < 1 || count > x.rank()) {
    return node.Refuse(302, StrCat("indices of the shape ", ShapeText(indices.shape),
                                   " do not fit the shape ", ShapeText(x.shape)));
  }
  Value view = NodeContext::Strided(x);
  std::vector<int64_t> starts;  // Of parts, in elements.
  for (size_t i = 0; i < at.size(); i += count) {
    int64_t start = 0;
    for (size_t d = 0; d < count; ++d) {
      const int64_t index = at[i + d] < 0 ? at[i + d] + x.size(d) : at[i + d];
      if (index < 0 || index >= x.size(d)) {
        return node.Refuse(302, StrCat("index ", at[i + d], " is out of range of ", x.size(d)));
      }
      start += index * view.strides[d];
    }
    starts.push_back(start);
  }
  if (starts.empty()) return node.Refuse(404, "it has no indices");
  const Sizes64 outer(indices.shape.begin(), indices.shape.end() - 1);
  const std::optional<Sizes64> strides = FindStrides(starts, outer);
  const auto parts = static_cast<int64_t>(count);
  if (!node.choices().Choose(strides.has_value())) {
    return node.Refuse(302, "its indices are not regular");
  }
  view.offset += starts[0];
  view.shape.erase(view.shape.begin(), view.shape.begin() + parts);
  view.strides.erase(view.strides.begin(), view.strides.begin() + parts);
  view.shape.insert(view.shape.begin(), outer.begin(), outer.end());
  const Sizes64 regular = strides.value_or(Sizes64(outer.size(), 0));
  view.strides.insert(view.strides.begin(), regular.begin(), regular.end());
  ASSIGN_OR_RETURN(view, node.Settle(std::move(view)));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

// Columns of x, for all indices in their order; of an x with one dimension, one row of them.
absl::Status MapArrayFeatureExtractor(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  const Value& x = node.in(0);
  if (x.rank() == 0) return node.Refuse(302, "its input has no dimensions");
  if (node.in(1).type != ElementType::kInt64) return node.RefuseType(node.in(1).type);
  const int64_t count = node.in(1).elements();
  const bool row = x.rank() == 1;
  if (node.in(1).is_constant()) {
    ASSIGN_OR_RETURN(const Value indices,
                     node.Reshape(node.in(1), row ? Sizes64{1, count} : Sizes64{count}));
    return GatherConstant(node, x.rank() - 1, indices);
  }
  // Such as the classes of computed indices: one for each row.
  if (!row) return node.Refuse(302, "its indices are computed");
  ASSIGN_OR_RETURN(const Value indices, node.Reshape(node.in(1), {count, 1}));
  ASSIGN_OR_RETURN(const Value from, node.Broadcast(node.Stored(x), {count, x.size(0)}));
  ASSIGN_OR_RETURN(const Value out, node.NewTemporary(x.type, {count, 1}));
  node.Call("gather", {node.In(from), node.In(indices), node.Out(out), node.Integer(1)});
  ASSIGN_OR_RETURN(Value result, node.Reshape(out, {1, count}));
  node.SetResult(0, std::move(result));
  return absl::OkStatus();
}

}  // namespace resident::onnx
