// Operators over windows: a view with a dimension for the elements of a window, whose strides
// overlap, is reduced, or copied into the columns of a product.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

// A group of a convolution is one call, or an element of the batch.
constexpr int64_t kMaxGroupCalls = 256;

struct WindowAxis {
  int64_t size = 1;  // Of the input.
  int64_t kernel = 1, stride = 1, dilation = 1;
  int64_t before = 0, after = 0;  // Padding.
  int64_t beyond = 0;             // Further elements behind the padding, with ceil_mode.
  int64_t out = 1;

  int64_t extent() const { return (kernel - 1) * dilation + 1; }
};
using Window = std::vector<WindowAxis>;

constexpr int64_t kMaxWindow = 1 << 24;

absl::Status ReadAutoPad(NodeContext& node, const std::string& mode, Window* window) {
  for (WindowAxis& axis : *window) {
    if (mode == "VALID") {
      axis.before = axis.after = 0;
      continue;
    }
    if (mode != "SAME_UPPER" && mode != "SAME_LOWER") {
      return node.Refuse(302, StrCat("auto_pad is ", mode));
    }
    const int64_t out = (axis.size + axis.stride - 1) / axis.stride;
    const int64_t all = std::max<int64_t>((out - 1) * axis.stride + axis.extent() - axis.size, 0);
    axis.before = mode == "SAME_UPPER" ? all / 2 : all - all / 2;
    axis.after = all - axis.before;
  }
  return absl::OkStatus();
}

absl::Status SetOutputSizes(NodeContext& node, bool ceil, Window* window) {
  for (WindowAxis& axis : *window) {
    const int64_t room = axis.size + axis.before + axis.after - axis.extent();
    if (room < 0) return node.Refuse(404, "a window is larger than the input");
    axis.out = room / axis.stride + 1;
    if (ceil && room % axis.stride != 0) {
      // The last window extends beyond the padding. Versions differ about one that begins there.
      if (axis.out * axis.stride >= axis.size + axis.before) {
        return node.Refuse(302, "with ceil_mode, its last window begins in the padding");
      }
      ++axis.out;
      axis.beyond = (axis.out - 1) * axis.stride - room;
    }
  }
  return absl::OkStatus();
}

// `kernel`: the sizes of the windows.
absl::StatusOr<Window> ReadWindow(NodeContext& node, const Sizes64& kernel) {
  const Value& x = node.in(0);
  const size_t spatial = kernel.size();
  if (x.rank() != spatial + 2 || spatial < 1 || spatial > 3) {
    return node.Refuse(302, StrCat("an input of ", x.rank(), " dimensions with windows of ",
                                   spatial, " is not supported"));
  }
  const auto strides = node.Ints("strides"), dilations = node.Ints("dilations");
  const auto pads = node.Ints("pads");
  if ((strides && strides->size() != spatial) || (dilations && dilations->size() != spatial) ||
      (pads && pads->size() != 2 * spatial)) {
    return node.Refuse(109, "its attributes have not a number for each dimension");
  }
  Window window(spatial);
  for (size_t i = 0; i < spatial; ++i) {
    WindowAxis& axis = window[i];
    axis.size = x.size(i + 2);
    axis.kernel = kernel[i];
    axis.stride = strides ? (*strides)[i] : 1;
    axis.dilation = dilations ? (*dilations)[i] : 1;
    axis.before = pads ? (*pads)[i] : 0;
    axis.after = pads ? (*pads)[i + spatial] : 0;
    for (const int64_t value :
         {axis.kernel, axis.stride, axis.dilation, axis.before + 1, axis.after + 1}) {
      if (value < 1 || value > kMaxWindow)
        return node.Refuse(302, "a number of its windows is out of range");
    }
  }
  const std::string auto_pad = node.String("auto_pad", "NOTSET");
  if (auto_pad != "NOTSET" && !auto_pad.empty())
    RETURN_IF_ERROR(ReadAutoPad(node, auto_pad, &window));
  RETURN_IF_ERROR(SetOutputSizes(node, node.Int("ceil_mode", 0) != 0, &window));
  return window;
}

bool IsPadded(const Window& window) {
  return std::any_of(window.begin(), window.end(), [](const WindowAxis& axis) {
    return axis.before + axis.after + axis.beyond > 0;
  });
}

// The input with its padding, which has the value `fill`.
absl::StatusOr<Value> Pad(NodeContext& node, const Value& x, const Window& window, double fill) {
  if (!IsPadded(window)) return x;
  Sizes64 shape = x.shape;
  for (size_t i = 0; i < window.size(); ++i) {
    shape[i + 2] += window[i].before + window[i].after + window[i].beyond;
  }
  ASSIGN_OR_RETURN(const Value padded, node.NewTemporary(x.type, shape));
  if (fill == 0) {
    node.Call("zero", {node.Out(padded)});
  } else {
    const Value value = ConstantValue(Constant::Reals({}, {fill}, x.type));
    node.Call("copy", {node.In(value), node.Out(padded)});
  }
  Value inner = padded;
  for (size_t i = 0; i < window.size(); ++i) {
    inner.offset += window[i].before * padded.strides[i + 2];
    inner.shape[i + 2] = x.size(i + 2);
  }
  node.Call("copy", {node.In(x), node.Out(inner)});
  return padded;
}

// [N, C, out..., kernel...] of a padded input; with `kernel_first` [N, C, kernel..., out...].
absl::StatusOr<Value> Windows(NodeContext& node, const Value& padded, const Window& window,
                              bool kernel_first) {
  const Value x = NodeContext::Strided(padded);
  Value view = x;
  view.shape.resize(2);
  view.strides.resize(2);
  for (const bool kernel : {kernel_first, !kernel_first}) {
    for (size_t i = 0; i < window.size(); ++i) {
      const int64_t stride = x.strides[i + 2];
      view.shape.push_back(kernel ? window[i].kernel : window[i].out);
      view.strides.push_back(stride * (kernel ? window[i].dilation : window[i].stride));
    }
  }
  return node.Settle(std::move(view));
}

Sizes64 OutputShape(int64_t n, int64_t channels, const Window& window) {
  Sizes64 shape = {n, channels};
  for (const WindowAxis& axis : window) shape.push_back(axis.out);
  return shape;
}

// 1 / the number of elements that each window averages, [1, 1, out...].
absl::StatusOr<Value> Shares(NodeContext& node, const Window& window, bool counts_padding) {
  Sizes64 shape = {1, 1};
  std::vector<double> shares = {1};
  for (const WindowAxis& axis : window) {
    std::vector<double> next;
    RETURN_IF_ERROR(
        node.Charge(static_cast<int64_t>(shares.size()) * axis.out, ElementType::kDouble));
    RETURN_IF_ERROR(node.Charge(axis.out * axis.kernel, ElementType::kUint8));
    std::vector<double> own;
    for (int64_t o = 0; o < axis.out; ++o) {
      int64_t count = 0;
      for (int64_t k = 0; k < axis.kernel; ++k) {
        const int64_t at = o * axis.stride + k * axis.dilation - axis.before;
        count += counts_padding ? at < axis.size + axis.after : at >= 0 && at < axis.size;
      }
      own.push_back(1 / static_cast<double>(count));
    }
    for (const double share : shares) {
      for (const double factor : own) next.push_back(share * factor);
    }
    shares = std::move(next);
    shape.push_back(axis.out);
  }
  return ConstantValue(Constant::Reals(shape, shares, node.in(0).type));
}

int64_t KernelAxes(const Window& window) {
  return ((int64_t{1} << window.size()) - 1) << (2 + window.size());
}

}  // namespace

absl::Status MapPool(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  RETURN_IF_ERROR(node.CheckFloat(0));
  const std::string& op = node.op();
  Value x = node.in(0);
  const auto kernel = node.Ints("kernel_shape");
  if (!kernel.has_value()) return node.Refuse(109, "it has no kernel_shape");
  if (node.wants(1)) return node.Refuse(302, "indices of the largest elements are not supported");
  ASSIGN_OR_RETURN(const Window window, ReadWindow(node, *kernel));
  const int64_t p = node.Int("p", 2);
  if (op == "LpPool") {
    if (p < 1 || p > 16) return node.Refuse(302, StrCat("p is ", p));
    if (x.type != ElementType::kFloat) return node.RefuseType(x.type);
    ASSIGN_OR_RETURN(x, node.Compute("abs", {x}));
    if (p > 1) {
      ASSIGN_OR_RETURN(x, node.Compute("pow", {x, NumberValue(static_cast<double>(p), x.type)}));
    }
  }
  const double fill = op == "MaxPool" ? -std::numeric_limits<double>::infinity() : 0;
  ASSIGN_OR_RETURN(const Value padded, Pad(node, x, window, fill));
  ASSIGN_OR_RETURN(const Value windows, Windows(node, padded, window, /*kernel_first=*/false));
  const Sizes64 shape = OutputShape(x.size(0), x.size(1), window);
  const bool counts_padding = node.Int("count_include_pad", 0) != 0;
  const bool beyond = std::any_of(window.begin(), window.end(),
                                  [](const WindowAxis& axis) { return axis.beyond > 0; });
  const bool average = op == "AveragePool";
  const bool even = !IsPadded(window) || (counts_padding && !beyond);
  if (average && node.opset() < 7 && IsPadded(window)) {
    return node.Refuse(302, "padding of version 6 is not supported");
  }
  const char* const reduce = op == "MaxPool" ? "max" : average && even ? "mean" : "sum";
  const bool last = op == "MaxPool" || (average && even) || (op == "LpPool" && p == 1);
  Value out;
  if (last) {
    ASSIGN_OR_RETURN(out, node.NewResult(0, x.type, shape));
  } else {
    ASSIGN_OR_RETURN(out, node.NewTemporary(x.type, shape));
  }
  node.Call(reduce, {node.In(windows), node.Out(out), node.Integer(KernelAxes(window))});
  if (last) return absl::OkStatus();
  if (op == "LpPool") {
    const Value root = NumberValue(1 / static_cast<double>(p), x.type);
    return node.ComputeResult(0, "pow", {out, root}).status();
  }
  ASSIGN_OR_RETURN(const Value shares, Shares(node, window, counts_padding));
  return node.ComputeResult(0, "mul", {out, shares}).status();
}

absl::Status MapGlobalPool(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  RETURN_IF_ERROR(node.CheckFloat(0));
  const Value& x = node.in(0);
  if (x.rank() < 3) return node.Refuse(302, "its input has fewer than three dimensions");
  Sizes64 shape = x.shape;
  for (size_t d = 2; d < x.rank(); ++d) shape[d] = 1;
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, shape));
  const int64_t axes = (int64_t{1} << x.rank()) - 4;
  node.Call(node.op() == "GlobalMaxPool" ? "max" : "mean",
            {node.In(x), node.Out(out), node.Integer(axes)});
  return absl::OkStatus();
}

namespace {

// The matrices [count, rows, columns] that begin at an element of a view, `step` elements apart.
Value Matrices(const Value& view, int64_t offset, int64_t count, int64_t step, int64_t rows,
               int64_t row_stride, int64_t columns) {
  Value matrices = view;
  matrices.offset += offset;
  matrices.shape = {count, rows, columns};
  matrices.strides = {step, row_stride, 1};
  return matrices;
}

// The products of a convolution.
struct Products {
  // [M, taps], [N, groups * taps, positions] and [N, M, positions], all dense.
  const Value &weights, &columns, &out;
  int64_t n, groups;
  int64_t rows;  // M / groups.
  int64_t taps, positions;
  bool adds;  // To what is in `out`.
};

// One call for each element of the batch or for each group.
absl::Status MultiplyGroups(NodeContext& node, const Products& p) {
  const int64_t matrix = p.rows * p.taps, column = p.taps * p.positions, out = p.rows * p.positions;
  const auto call = [&](const Value& weights, const Value& columns, const Value& to) {
    node.Call("gemm_batched", {node.In(weights), node.In(columns), node.Out(to), node.Real(1),
                               node.Real(p.adds ? 1 : 0)});
  };
  const bool by_input = p.groups > 1 && p.n <= p.groups && !node.choices().keeps_batch;
  if ((by_input ? p.n : p.groups) > kMaxGroupCalls) {
    return node.Refuse(302, "it has too many groups and inputs");
  }
  for (int64_t i = 0; by_input && i < p.n; ++i) {
    call(Matrices(p.weights, 0, p.groups, matrix, p.rows, p.taps, p.taps),
         Matrices(p.columns, i * p.groups * column, p.groups, column, p.taps, p.positions,
                  p.positions),
         Matrices(p.out, i * p.groups * out, p.groups, out, p.rows, p.positions, p.positions));
  }
  for (int64_t g = 0; !by_input && g < p.groups; ++g) {
    call(Matrices(p.weights, g * matrix, p.n, 0, p.rows, p.taps, p.taps),
         Matrices(p.columns, g * column, p.n, p.groups * column, p.taps, p.positions, p.positions),
         Matrices(p.out, g * out, p.n, p.groups * out, p.rows, p.positions, p.positions));
  }
  return absl::OkStatus();
}

}  // namespace

// out[n, g] = w[g] columns[n, g], where a column has the elements of a window.
absl::Status MapConv(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 3));
  RETURN_IF_ERROR(node.CheckFloat(0));
  const Value &x = node.in(0), &w = node.in(1);
  for (size_t i = 1; i < node.inputs(); ++i) {
    if (node.in(i).type != x.type) return node.RefuseType(node.in(i).type);
  }
  if (w.rank() < 3 || w.rank() != x.rank())
    return node.Refuse(302, "input and weights have other dimensions");
  const Sizes64 kernel(w.shape.begin() + 2, w.shape.end());
  if (node.Ints("kernel_shape").value_or(kernel) != kernel) {
    return node.Refuse(302, "kernel_shape is not that of the weights");
  }
  ASSIGN_OR_RETURN(const Window window, ReadWindow(node, kernel));
  const int64_t groups = node.Int("group", 1), n = x.size(0), m = w.size(0);
  if (groups < 1 || x.size(1) != w.size(1) * groups || m % groups != 0) {
    return node.Refuse(302, StrCat("an input of the shape ", ShapeText(x.shape), " and weights of ",
                                   ShapeText(w.shape), " do not fit ", groups, " groups"));
  }
  const Sizes64 shape = OutputShape(n, m, window);
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, shape));
  int64_t positions = 1, taps = w.size(1);
  for (const WindowAxis& axis : window) {
    positions *= axis.out;
    taps *= axis.kernel;
  }
  ASSIGN_OR_RETURN(const Value padded, Pad(node, x, window, 0));
  ASSIGN_OR_RETURN(const Value windows, Windows(node, padded, window, /*kernel_first=*/true));
  ASSIGN_OR_RETURN(Value columns, node.Reshape(windows, {n, groups * taps, positions}));
  ASSIGN_OR_RETURN(columns, node.Dense(columns));
  columns = node.Stored(columns);
  ASSIGN_OR_RETURN(Value weights, node.Reshape(w, {m, taps}));
  ASSIGN_OR_RETURN(weights, node.Dense(weights));
  weights = node.Stored(weights);
  const bool bias = node.has(2);
  if (bias) {
    if (node.in(2).shape != Sizes64{m})
      return node.Refuse(302, "the bias is not one value for each channel");
    Sizes64 channels(shape.size() - 1, 1);
    channels[0] = m;
    ASSIGN_OR_RETURN(const Value values, node.Reshape(node.in(2), channels));
    node.Call("copy", {node.In(values), node.Out(out)});
  }
  return MultiplyGroups(node,
                        {weights, columns, out, n, groups, m / groups, taps, positions, bias});
}

// Kernels that do not overlap: each element of the input becomes a block of the result.
absl::Status MapConvTranspose(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 3));
  RETURN_IF_ERROR(node.CheckFloat(0));
  const Value &x = node.in(0), &w = node.in(1);
  for (size_t i = 1; i < node.inputs(); ++i) {
    if (node.in(i).type != x.type) return node.RefuseType(node.in(i).type);
  }
  const size_t rank = x.rank();
  if (rank < 3 || rank > 5 || w.rank() != rank || w.size(0) != x.size(1)) {
    return node.Refuse(302, "input and weights have other dimensions");
  }
  const Sizes64 kernel(w.shape.begin() + 2, w.shape.end());
  const Sizes64 zeros(kernel.size(), 0), ones(kernel.size(), 1);
  const bool apart =
      node.Ints("strides").value_or(ones) == kernel &&
      node.Ints("dilations").value_or(ones) == ones &&
      node.Ints("pads").value_or(Sizes64(2 * kernel.size(), 0)) == Sizes64(2 * kernel.size(), 0) &&
      node.Ints("output_padding").value_or(zeros) == zeros &&
      node.Ints("kernel_shape").value_or(kernel) == kernel &&
      !node.Ints("output_shape").has_value() && node.Int("group", 1) == 1 &&
      node.String("auto_pad", "NOTSET") == "NOTSET";
  if (!apart) {
    return node.Refuse(302,
                       "only kernels of the size of their strides, without padding and groups, "
                       "are supported");
  }
  const int64_t n = x.size(0), channels = x.size(1), m = w.size(1);
  const int64_t taps = w.elements() / channels, positions = x.elements() / n / channels;
  // [N, M * taps, positions] = transpose(w) x.
  ASSIGN_OR_RETURN(Value weights, node.Reshape(node.Stored(w), {channels, taps}));
  ASSIGN_OR_RETURN(weights, node.Transpose(weights, {1, 0}));
  ASSIGN_OR_RETURN(weights, node.Broadcast(weights, {n, taps, channels}));
  ASSIGN_OR_RETURN(const Value columns, node.Reshape(x, {n, channels, positions}));
  ASSIGN_OR_RETURN(const Value blocks, node.NewTemporary(x.type, {n, taps, positions}));
  node.Call("gemm_batched", {node.In(weights), node.In(columns), node.Out(blocks)});
  // From [N, M, kernel..., in...] to [N, M, in, kernel, ...].
  Sizes64 from = {n, m}, to = {n, m}, shape = {n, m};
  std::vector<size_t> order = {0, 1};
  from.insert(from.end(), kernel.begin(), kernel.end());
  from.insert(from.end(), x.shape.begin() + 2, x.shape.end());
  for (size_t i = 0; i < kernel.size(); ++i) {
    to.insert(to.end(), {x.size(i + 2), kernel[i]});
    order.insert(order.end(), {2 + kernel.size() + i, 2 + i});
    shape.push_back(x.size(i + 2) * kernel[i]);
  }
  ASSIGN_OR_RETURN(Value arranged, node.Reshape(blocks, from));
  ASSIGN_OR_RETURN(arranged, node.Transpose(arranged, order));
  Value out;
  ASSIGN_OR_RETURN(out, node.NewResult(0, x.type, shape));
  ASSIGN_OR_RETURN(out, node.Reshape(out, to));
  if (!node.has(2)) {
    node.Call("copy", {node.In(arranged), node.Out(out)});
    return absl::OkStatus();
  }
  if (node.in(2).shape != Sizes64{m}) {
    return node.Refuse(302, "the bias is not one value for each channel");
  }
  Sizes64 channel_shape(to.size() - 1, 1);
  channel_shape[0] = m;
  ASSIGN_OR_RETURN(const Value bias, node.Reshape(node.in(2), channel_shape));
  node.Call("add", {node.In(arranged), node.In(bias), node.Out(out)});
  return absl::OkStatus();
}

}  // namespace resident::onnx
