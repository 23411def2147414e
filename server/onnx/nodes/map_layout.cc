// Operators that only change the layout: each result is a view, or for a constant another constant.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

absl::Status MapIdentity(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 3));
  if (node.op() == "Dropout") {
    if (node.opset() < 7 && node.Int("is_test", 0) == 0) {
      return node.Refuse(302, "it is in training mode. Fix: export for inference");
    }
    if (node.has(2) && node.in(2).is_constant() && node.in(2).constant.Integer(0) != 0) {
      return node.Refuse(302, "it is in training mode. Fix: export for inference");
    }
    if (node.has(2) && !node.in(2).is_constant()) {
      RETURN_IF_ERROR(node.RequireConstant(2, "the values of training_mode").status());
    }
    if (node.wants(1)) {
      // All elements are kept.
      std::string ones(static_cast<size_t>(1), 1);
      const Value one = ConstantValue({ElementType::kBool, Sizes64(node.in(0).rank(), 1),
                                       std::make_shared<const std::string>(ones), ""});
      ASSIGN_OR_RETURN(Value mask, node.Broadcast(one, node.in(0).shape));
      if (node.opset() < 10) return node.Refuse(302, "its mask is not supported");
      node.SetResult(1, std::move(mask));
    }
  } else {
    RETURN_IF_ERROR(node.CheckInputs(1, 1));
  }
  node.SetResult(0, node.in(0));
  return absl::OkStatus();
}

absl::Status MapShape(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const Sizes64& shape = node.in(0).shape;
  if (node.op() == "Size") {
    const int64_t count = CountElements(shape).value_or(0);
    node.SetResult(0, ConstantValue(Constant::Integers({}, {count})));
    return absl::OkStatus();
  }
  const auto rank = static_cast<int64_t>(shape.size());
  const auto position = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t begin = position(node.Int("start", 0));
  const int64_t end = std::max(begin, position(node.Int("end", rank)));
  const std::vector<int64_t> sizes(shape.begin() + begin, shape.begin() + end);
  node.SetResult(0, ConstantValue(Constant::Integers({end - begin}, sizes)));
  return absl::OkStatus();
}

absl::Status MapReshape(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  const Value& x = node.in(0);
  Sizes64 shape;
  if (node.op() == "Flatten") {
    const auto rank = static_cast<int64_t>(x.rank());
    const int64_t axis = node.Int("axis", 1);
    if (axis < -rank || axis > rank)
      return node.Refuse(302, StrCat("axis ", axis, " does not exist"));
    shape = {1, 1};
    for (int64_t d = 0; d < rank; ++d) {
      shape[d < (axis < 0 ? axis + rank : axis) ? 0 : 1] *= x.size(static_cast<size_t>(d));
    }
  } else {
    RETURN_IF_ERROR(node.CheckInputs(2, 2));
    ASSIGN_OR_RETURN(shape, node.RequireIntegers(1, "the sizes"));
    const bool allow_zero = node.Int("allowzero", 0) != 0;
    int64_t product = 1;
    std::optional<size_t> open;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 0 && !allow_zero) {
        if (d >= x.rank())
          return node.Refuse(302, StrCat("size ", d, " is 0, and the input has none"));
        shape[d] = x.size(d);
      }
      if (shape[d] == -1 && !open.has_value()) {
        open = d;
      } else if (shape[d] < 0) {
        return node.Refuse(302, StrCat("it cannot make the shape ", ShapeText(shape)));
      } else {
        const int64_t size = shape[d];
        if (size != 0 && product > kMaxElements / size) {
          return node.Refuse(302, StrCat("it cannot make the shape ", ShapeText(shape)));
        }
        product *= size;
      }
    }
    if (open.has_value()) {
      if (product == 0 || x.elements() % product != 0) {
        return node.Refuse(302, StrCat("a tensor of shape ", ShapeText(x.shape),
                                       " cannot get the shape ", ShapeText(shape)));
      }
      shape[*open] = x.elements() / product;
    }
  }
  ASSIGN_OR_RETURN(Value view, node.Reshape(x, shape));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

absl::Status MapSqueeze(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  const Value& x = node.in(0);
  ASSIGN_OR_RETURN(const auto axes, node.Axes(1));
  // A batch of one would lose its dimension. The sizes in a constant are what differs otherwise.
  if (!axes.has_value() && node.choices().keeps_batch && !x.is_constant()) {
    return node.Refuse(302, "it has no axes. Fix: export with the axes that are removed");
  }
  std::vector<bool> removed(x.rank());
  for (size_t d = 0; d < x.rank(); ++d) removed[d] = !axes.has_value() && x.size(d) == 1;
  for (const int64_t axis : axes.value_or(std::vector<int64_t>())) {
    ASSIGN_OR_RETURN(const size_t d, node.Axis(axis, x.rank()));
    if (x.size(d) != 1) return node.Refuse(302, StrCat("axis ", d, " has the size ", x.size(d)));
    removed[d] = true;
  }
  Sizes64 shape;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (!removed[d]) shape.push_back(x.size(d));
  }
  ASSIGN_OR_RETURN(Value view, node.Reshape(x, shape));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

absl::Status MapUnsqueeze(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  const Value& x = node.in(0);
  ASSIGN_OR_RETURN(const auto axes, node.Axes(1));
  if (!axes.has_value()) return node.Refuse(109, "it has no axes");
  if (x.rank() + axes->size() > kMaxRank) {
    return node.Refuse(103, StrCat("it makes more than ", kMaxRank, " dimensions"));
  }
  std::vector<bool> added(x.rank() + axes->size());
  for (const int64_t axis : *axes) {
    ASSIGN_OR_RETURN(const size_t d, node.Axis(axis, added.size()));
    if (added[d]) return node.Refuse(302, StrCat("axis ", d, " is given twice"));
    added[d] = true;
  }
  Sizes64 shape;
  auto from = x.shape.begin();
  for (const bool is_new : added) shape.push_back(is_new ? 1 : *from++);
  ASSIGN_OR_RETURN(Value view, node.Reshape(x, shape));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

absl::Status MapTranspose(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const size_t rank = node.in(0).rank();
  std::vector<size_t> order;
  std::vector<bool> used(rank);
  if (const auto given = node.Ints("perm")) {
    if (given->size() != rank) return node.Refuse(302, "perm does not name each dimension once");
    for (const int64_t axis : *given) {
      ASSIGN_OR_RETURN(const size_t d, node.Axis(axis, rank));
      if (used[d]) return node.Refuse(302, "perm does not name each dimension once");
      used[d] = true;
      order.push_back(d);
    }
  } else {
    for (size_t d = rank; d-- > 0;) order.push_back(d);
  }
  ASSIGN_OR_RETURN(Value view, node.Transpose(node.in(0), order));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

namespace {

struct Ranges {
  std::vector<int64_t> starts, ends, axes, steps;
};

// The ranges of Slice: attributes before version 10, later inputs.
absl::StatusOr<Ranges> ReadRanges(NodeContext& node) {
  Ranges ranges;
  std::optional<std::vector<int64_t>> axes;
  if (node.opset() < 10) {
    const auto starts = node.Ints("starts"), ends = node.Ints("ends");
    if (!starts.has_value() || !ends.has_value()) return node.Refuse(109, "it has no ranges");
    ranges.starts = *starts;
    ranges.ends = *ends;
    axes = node.Ints("axes");
  } else {
    RETURN_IF_ERROR(node.CheckInputs(3, 5));
    ASSIGN_OR_RETURN(ranges.starts, node.RequireIntegers(1, "the starts"));
    ASSIGN_OR_RETURN(ranges.ends, node.RequireIntegers(2, "the ends"));
    if (node.has(3)) {
      ASSIGN_OR_RETURN(axes, node.RequireIntegers(3, "the axes"));
    }
    if (node.has(4)) {
      ASSIGN_OR_RETURN(ranges.steps, node.RequireIntegers(4, "the steps"));
    }
  }
  const size_t count = ranges.starts.size();
  if (axes.has_value()) {
    ranges.axes = *std::move(axes);
  } else {
    for (size_t i = 0; i < count; ++i) ranges.axes.push_back(static_cast<int64_t>(i));
  }
  if (ranges.steps.empty()) ranges.steps.assign(count, 1);
  if (ranges.ends.size() != count || ranges.axes.size() != count || ranges.steps.size() != count) {
    return node.Refuse(302, "it has different numbers of starts, ends, axes and steps");
  }
  return ranges;
}

}  // namespace

absl::Status MapSlice(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 5));
  ASSIGN_OR_RETURN(const Ranges ranges, ReadRanges(node));
  Value view = NodeContext::Strided(node.in(0));
  std::vector<bool> sliced(view.rank());
  for (size_t i = 0; i < ranges.starts.size(); ++i) {
    ASSIGN_OR_RETURN(const size_t d, node.Axis(ranges.axes[i], view.rank()));
    if (sliced[d]) return node.Refuse(302, StrCat("axis ", d, " is given twice"));
    sliced[d] = true;
    const int64_t size = view.size(d), step = ranges.steps[i];
    if (step == 0 || step == std::numeric_limits<int64_t>::min()) {
      return node.Refuse(302, StrCat("a step is ", step));
    }
    if (size == 0) continue;  // Only a constant is empty.
    const auto position = [&](int64_t at, int64_t min, int64_t max) {
      return std::clamp(at < 0 ? at + size : at, min, max);
    };
    int64_t count, start;
    if (step > 0) {
      start = position(ranges.starts[i], 0, size);
      const int64_t end = position(ranges.ends[i], 0, size);
      count = end <= start ? 0 : (end - start - 1) / step + 1;
    } else {
      start = position(ranges.starts[i], 0, size - 1);
      const int64_t end = position(ranges.ends[i], -1, size - 1);
      count = end >= start ? 0 : (start - end - 1) / -step + 1;
    }
    view.shape[d] = count;
    view.offset += count == 0 ? 0 : start * view.strides[d];
    // A dimension of one element keeps its stride, so that no stride is out of range.
    if (count > 1) view.strides[d] *= step;
  }
  ASSIGN_OR_RETURN(view, node.Settle(std::move(view)));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

absl::Status MapSplit(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  const Value x = NodeContext::Strided(node.in(0));
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", 0), x.rank()));
  std::vector<int64_t> sizes;
  if (node.has(1)) {
    ASSIGN_OR_RETURN(sizes, node.RequireIntegers(1, "the sizes"));
  } else if (const auto given = node.Ints("split")) {
    sizes = *given;
  } else {
    const auto parts = static_cast<int64_t>(node.outputs());
    if (node.Int("num_outputs", parts) != parts) return node.Refuse(302, "num_outputs disagrees");
    const int64_t size = (x.size(axis) + parts - 1) / parts;
    // Since version 18 the last part may be smaller.
    if (node.opset() < 18 && size * parts != x.size(axis)) {
      return node.Refuse(302, "its parts are not equal");
    }
    for (int64_t i = 0; i < parts; ++i) {
      sizes.push_back(std::clamp<int64_t>(x.size(axis) - i * size, 0, size));
    }
  }
  if (sizes.size() != node.outputs())
    return node.Refuse(302, "it has not one size for each output");
  int64_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > x.size(axis) - at) {
      return node.Refuse(302, "its sizes are not a partition of the axis");
    }
    Value view = x;
    view.shape[axis] = sizes[i];
    view.offset += at * x.strides[axis];
    at += sizes[i];
    ASSIGN_OR_RETURN(view, node.Settle(std::move(view)));
    node.SetResult(i, std::move(view));
  }
  if (at != x.size(axis)) return node.Refuse(302, "its sizes are not a partition of the axis");
  return absl::OkStatus();
}

absl::Status MapExpand(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  ASSIGN_OR_RETURN(const std::vector<int64_t> given, node.RequireIntegers(1, "the sizes"));
  if (given.size() > kMaxRank)
    return node.Refuse(103, StrCat("it has more than ", kMaxRank, " sizes"));
  for (const int64_t size : given) {
    if (size < 1) return node.Refuse(404, StrCat("it expands to the shape ", ShapeText(given)));
  }
  ASSIGN_OR_RETURN(const Sizes64 shape, node.BroadcastShape({node.in(0).shape, given}));
  if (!CountElements(shape).has_value()) return node.Refuse(501, "its result is too large");
  ASSIGN_OR_RETURN(Value view, node.Broadcast(node.in(0), shape));
  node.SetResult(0, std::move(view));
  return absl::OkStatus();
}

// A constant, because only the shape of the input matters.
absl::Status MapEyeLike(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const Value& x = node.in(0);
  if (x.rank() != 2) return node.Refuse(302, "its input has not two dimensions");
  const auto type = static_cast<ElementType>(node.Int("dtype", static_cast<int64_t>(x.type)));
  if (DTypeOf(type) == DType::kInvalid) return node.RefuseType(type);
  RETURN_IF_ERROR(node.Charge(x.elements(), type));
  const int64_t k = node.Int("k", 0), columns = x.size(1);
  const size_t size = SizeOf(DTypeOf(type));
  std::string one, bytes;
  IsFloatType(type) ? AppendReal(type, 1, &one) : AppendInteger(type, 1, &one);
  bytes.resize(static_cast<size_t>(x.elements()) * size);
  for (int64_t row = 0; row < x.size(0); ++row) {
    if (k < -row || k >= columns - row) continue;
    bytes.replace(static_cast<size_t>(row * columns + row + k) * size, size, one);
  }
  node.SetResult(
      0, ConstantValue({type, x.shape, std::make_shared<const std::string>(std::move(bytes)), ""}));
  return absl::OkStatus();
}

}  // namespace resident::onnx
