// Products of matrices. A product with few rows and a weight uses the weight's transposed form,
// which is made once at import; others are views of the operands.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

// Up to so many rows gemv is faster than gemm, although it reads the weights once for each 16 of
// them. For float32 there is linear, with which an activation and a residual become one node
// (runtime/graph/fuse.h): on an H200, a layer of 512 x 512 with bias and ReLU takes 5.5 us for 64
// rows and 14 us for 256, and with gemm, add and relu 171 us and 181 us (docs/benchmarks).
constexpr int64_t kMaxVectors = 64;
constexpr int64_t kMaxFloatVectors = 16384;
// Of a matrix that is not a weight of the model, and is transposed for each graph.
constexpr int64_t kMaxComputedBytes = 4 << 20;
// Calls for one product of a graph whose batch remains dynamic.
constexpr int64_t kMaxCalls = 128;

// Whether the product of `rows` vectors and this matrix [K, N], or its transposed form [N, K], is a
// gemv or linear.
bool UsesVectors(NodeContext& node, const Value& weight, int64_t rows) {
  const bool is_float = weight.type == ElementType::kFloat;
  const bool few =
      rows <= (is_float ? kMaxFloatVectors : kMaxVectors) || (is_float && node.choices().any_rows);
  return node.choices().Choose(weight.is_constant() && few &&
                               static_cast<int64_t>(weight.constant.bytes->size()) <=
                                   kMaxFoldedBytes);
}

// out[i] = a[i] b[i] for a [B, M, K], b [B, K, N] and a dense out [B, M, N].
absl::Status Multiply(NodeContext& node, const Value& a, const Value& b, const Value& out) {
  if (node.choices().Choose(a.size(0) != 1)) {
    node.Call("gemm_batched", {node.In(a), node.In(b), node.Out(out)});
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Value left, node.Reshape(a, {a.size(1), a.size(2)}));
  ASSIGN_OR_RETURN(const Value right, node.Reshape(b, {b.size(1), b.size(2)}));
  node.Call("gemm",
            {node.In(left), node.In(right), node.Out(WithShape(out, {out.size(1), out.size(2)}))});
  return absl::OkStatus();
}

// The matrices of one index of all dimensions between the outermost one and those of the matrices.
Value SelectMatrices(const Value& all, int64_t index) {
  const size_t rank = all.rank();
  Value selected = all;
  selected.shape = {all.size(0), all.size(rank - 2), all.size(rank - 1)};
  selected.strides = {all.strides[0], all.strides[rank - 2], all.strides[rank - 1]};
  for (size_t d = rank - 2; d-- > 1;) {
    selected.offset += index % all.size(d) * all.strides[d];
    index /= all.size(d);
  }
  return selected;
}

// As Multiply, for any number of dimensions before those of the matrices, of which the outermost
// one remains by itself: one call for each index of the others.
absl::Status MultiplyEach(NodeContext& node, const Value& a, const Value& b, const Value& out) {
  int64_t calls = 1;
  for (size_t d = 1; d + 2 < out.rank(); ++d) calls *= out.size(d);
  if (calls > kMaxCalls) {
    return node.Refuse(302, StrCat("it has ", calls, " products for each element of the batch"));
  }
  for (int64_t i = 0; i < calls; ++i) {
    node.Call("gemm_batched", {node.In(SelectMatrices(a, i)), node.In(SelectMatrices(b, i)),
                               node.Out(SelectMatrices(out, i))});
  }
  return absl::OkStatus();
}

absl::Status CheckOperands(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckFloat(0));
  if (node.in(1).type != node.in(0).type) {
    return node.Refuse(302, StrCat("its operands are ", TypeName(node.in(0).type), " and ",
                                   TypeName(node.in(1).type)));
  }
  return absl::OkStatus();
}

// Matrices that are views of one product each: with gaps between their rows, the check of the graph
// would compare row by row.
absl::StatusOr<Value> WithoutGaps(NodeContext& node, const Value& matrices) {
  const size_t last = matrices.rank() - 1;
  bool repeats = false;
  for (size_t d = 0; d <= last; ++d) repeats |= matrices.strides[d] == 0 && matrices.size(d) > 1;
  const bool gaps =
      matrices.strides[last] != 1 || matrices.strides[last - 1] != matrices.size(last);
  return node.choices().Choose(gaps && !repeats) ? node.Dense(matrices) : matrices;
}

}  // namespace

absl::Status MultiplyVectors(NodeContext& node, const Value& x, const Value& transposed,
                             const GraphWriter::Argument& bias, const Value& out) {
  ASSIGN_OR_RETURN(const Value vectors, node.Dense(x));
  if (transposed.type == ElementType::kFloat) {
    node.Call("linear", {node.In(vectors), node.In(transposed), bias, node.None(), node.Out(out)});
  } else {
    node.Call("gemv", {node.In(vectors), node.In(transposed), bias, node.Out(out)});
  }
  return absl::OkStatus();
}

absl::Status MapMatMul(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  RETURN_IF_ERROR(CheckOperands(node));
  Value a = node.in(0), b = node.in(1);
  if (a.rank() == 0 || b.rank() == 0) return node.Refuse(302, "an operand has no dimensions");
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) {
    ASSIGN_OR_RETURN(a, node.Reshape(a, {1, a.size(0)}));
  }
  if (column) {
    ASSIGN_OR_RETURN(b, node.Reshape(b, {b.size(0), 1}));
  }
  const int64_t m = a.size(a.rank() - 2), k = a.size(a.rank() - 1), n = b.size(b.rank() - 1);
  if (b.size(b.rank() - 2) != k) {
    return node.Refuse(302, StrCat("matrices of the shapes ", ShapeText(node.in(0).shape), " and ",
                                   ShapeText(node.in(1).shape), " have no product"));
  }
  const Sizes64 a_batch(a.shape.begin(), a.shape.end() - 2);
  const Sizes64 b_batch(b.shape.begin(), b.shape.end() - 2);
  ASSIGN_OR_RETURN(const Sizes64 batch, node.BroadcastShape({a_batch, b_batch}));
  Sizes64 shape = batch;
  if (!row) shape.push_back(m);
  if (!column) shape.push_back(n);
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, a.type, shape));
  const int64_t count = *CountElements(batch);
  if (node.choices().Choose(*CountElements(b_batch) == 1 && b_batch.size() <= a_batch.size())) {
    // One matrix for all rows.
    ASSIGN_OR_RETURN(const Value matrix, node.Reshape(b, {k, n}));
    const int64_t rows = count * m;
    if (UsesVectors(node, matrix, rows)) {
      ASSIGN_OR_RETURN(const Value transposed, node.TransposeMatrix(matrix));
      Sizes64 full = batch;
      full.insert(full.end(), {m, n});
      return MultiplyVectors(node, a, transposed, node.None(), WithShape(out, full));
    }
    if (node.choices().keeps_batch && a.rank() == 3) {
      // The same matrix for each element of the batch.
      ASSIGN_OR_RETURN(const Value shared, node.Broadcast(node.Stored(matrix), {a.size(0), k, n}));
      return Multiply(node, a, shared, WithShape(out, {a.size(0), m, n}));
    }
    ASSIGN_OR_RETURN(const Value left, node.Reshape(a, {1, rows, k}));
    ASSIGN_OR_RETURN(const Value right, node.Reshape(matrix, {1, k, n}));
    return Multiply(node, left, right, WithShape(out, {1, rows, n}));
  }
  const auto broadcast = [&](const Value& matrices, int64_t rows, int64_t columns) {
    Sizes64 full = batch;
    full.insert(full.end(), {rows, columns});
    return node.Broadcast(node.Stored(matrices), full);
  };
  ASSIGN_OR_RETURN(Value left, broadcast(a, m, k));
  ASSIGN_OR_RETURN(Value right, broadcast(b, k, n));
  if (node.choices().keeps_batch && batch.size() > 1) {
    ASSIGN_OR_RETURN(left, WithoutGaps(node, left));
    ASSIGN_OR_RETURN(right, WithoutGaps(node, right));
    Sizes64 full = batch;
    full.insert(full.end(), {m, n});
    return MultiplyEach(node, left, right, WithShape(out, full));
  }
  ASSIGN_OR_RETURN(left, node.Reshape(left, {count, m, k}));
  ASSIGN_OR_RETURN(right, node.Reshape(right, {count, k, n}));
  return Multiply(node, left, right, WithShape(out, {count, m, n}));
}

absl::Status MapGemm(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 3));
  RETURN_IF_ERROR(CheckOperands(node));
  if (node.in(0).rank() != 2 || node.in(1).rank() != 2) {
    return node.Refuse(302, "its operands are not matrices");
  }
  Value a = node.in(0);
  if (node.Int("transA", 0) != 0) {
    ASSIGN_OR_RETURN(a, node.Transpose(a, {1, 0}));
  }
  const bool transposed = node.Int("transB", 0) != 0;
  const Value& b = node.in(1);
  const int64_t m = a.size(0), k = a.size(1), n = b.size(transposed ? 0 : 1);
  if (b.size(transposed ? 1 : 0) != k) {
    return node.Refuse(302, StrCat("matrices of the shapes ", ShapeText(a.shape), " and ",
                                   ShapeText(b.shape), " have no product"));
  }
  const double alpha = node.Float("alpha", 1), beta = node.Float("beta", 1);
  const bool adds = node.has(2) && beta != 0;
  if (adds) {
    if (node.in(2).type != a.type) return node.RefuseType(node.in(2).type);
    ASSIGN_OR_RETURN(const Sizes64 shape, node.BroadcastShape({node.in(2).shape, {m, n}}));
    if (shape != Sizes64{m, n}) return node.Refuse(302, "C does not broadcast to the result");
  }
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, a.type, {m, n}));
  const bool bias_fits = !adds || (beta == 1 && node.in(2).elements() == n &&
                                   node.in(2).rank() >= 1 && node.in(2).shape.back() == n);
  if (UsesVectors(node, b, m) && alpha == 1 && bias_fits) {
    Value weight = b;
    if (!transposed) {
      ASSIGN_OR_RETURN(weight, node.TransposeMatrix(b));
    }
    GraphWriter::Argument bias = node.None();
    if (adds) {
      ASSIGN_OR_RETURN(Value vector, node.Reshape(node.in(2), {n}));
      ASSIGN_OR_RETURN(vector, node.Dense(vector));
      bias = node.In(vector);
    }
    return MultiplyVectors(node, a, weight, bias, out);
  }
  Value matrix = b;
  if (transposed) {
    // A view of the weight as it is.
    ASSIGN_OR_RETURN(matrix, node.Transpose(node.Stored(b), {1, 0}));
  }
  if (adds) node.Call("copy", {node.In(node.in(2)), node.Out(out)});
  node.Call("gemm", {node.In(a), node.In(matrix), node.Out(out), node.Real(alpha),
                     node.Real(adds ? beta : 0)});
  return absl::OkStatus();
}

namespace {

struct Terms {
  std::vector<std::string> inputs;
  std::string output;
};

// The letters of an equation, without repetitions in one term.
absl::StatusOr<Terms> ReadEquation(NodeContext& node) {
  std::string equation = node.String("equation", "");
  std::erase(equation, ' ');
  Terms terms;
  const size_t arrow = equation.find("->");
  const std::string left = equation.substr(0, arrow);
  std::string term;
  for (const char c : left + ",") {
    if (c == ',') {
      terms.inputs.push_back(term);
      term.clear();
    } else {
      term.push_back(c);
    }
  }
  std::string all;
  for (const std::string& each : terms.inputs) all += each;
  if (arrow != std::string::npos) {
    terms.output = equation.substr(arrow + 2);
  } else {
    // The letters that occur once, sorted.
    for (const char c : all) {
      if (std::count(all.begin(), all.end(), c) == 1) terms.output.push_back(c);
    }
    std::sort(terms.output.begin(), terms.output.end());
  }
  std::vector<std::string> checked = terms.inputs;
  checked.push_back(terms.output);
  for (const std::string& each : checked) {
    for (const char c : each) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (!letter || std::count(each.begin(), each.end(), c) != 1) {
        return node.Refuse(302, "its equation has an ellipsis or a diagonal");
      }
    }
  }
  for (const char c : terms.output) {
    if (all.find(c) == std::string::npos) return node.Refuse(302, "its output has a new letter");
  }
  return terms;
}

// Sums over the letters of an input that neither the output nor the other input has.
absl::StatusOr<Value> SumLetters(NodeContext& node, Value x, const std::string& kept,
                                 std::string* letters) {
  int64_t axes = 0;
  Sizes64 shape;
  std::string left;
  for (size_t d = 0; d < letters->size(); ++d) {
    if (kept.find((*letters)[d]) == std::string::npos) {
      axes |= int64_t{1} << d;
    } else {
      shape.push_back(x.size(d));
      left.push_back((*letters)[d]);
    }
  }
  if (axes == 0) return x;
  *letters = left;
  ASSIGN_OR_RETURN(const Value out, node.NewTemporary(x.type, shape));
  node.Call("sum", {node.In(x), node.Out(out), node.Integer(axes)});
  return out;
}

// The dimensions of x in the order of the letters `order`.
absl::StatusOr<Value> Arrange(NodeContext& node, const Value& x, const std::string& letters,
                              const std::string& order) {
  std::vector<size_t> axes;
  for (const char c : order) axes.push_back(letters.find(c));
  return node.Transpose(x, axes);
}

}  // namespace

absl::Status MapEinsum(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  RETURN_IF_ERROR(node.CheckFloat(0));
  if (node.inputs() == 2) RETURN_IF_ERROR(CheckOperands(node));
  ASSIGN_OR_RETURN(Terms terms, ReadEquation(node));
  if (terms.inputs.size() != node.inputs())
    return node.Refuse(302, "its equation has other inputs");
  std::vector<int64_t> sizes(256, 0);
  for (size_t i = 0; i < node.inputs(); ++i) {
    const Value& x = node.in(i);
    if (x.rank() != terms.inputs[i].size())
      return node.Refuse(302, "its equation has other dimensions");
    for (size_t d = 0; d < x.rank(); ++d) {
      int64_t& size = sizes[static_cast<unsigned char>(terms.inputs[i][d])];
      if (size != 0 && size != x.size(d)) return node.Refuse(302, "sizes of one letter differ");
      size = x.size(d);
    }
  }
  const auto shape_of = [&](const std::string& letters) {
    Sizes64 shape;
    for (const char c : letters) shape.push_back(sizes[static_cast<unsigned char>(c)]);
    return shape;
  };
  const auto count_of = [&](const std::string& letters) {
    return CountElements(shape_of(letters)).value_or(kMaxElements);
  };
  if (node.inputs() == 1) {
    ASSIGN_OR_RETURN(Value x, SumLetters(node, node.in(0), terms.output, &terms.inputs[0]));
    ASSIGN_OR_RETURN(x, Arrange(node, x, terms.inputs[0], terms.output));
    node.SetResult(0, std::move(x));
    return absl::OkStatus();
  }
  std::string &a = terms.inputs[0], &b = terms.inputs[1];
  ASSIGN_OR_RETURN(Value left, SumLetters(node, node.in(0), b + terms.output, &a));
  ASSIGN_OR_RETURN(Value right, SumLetters(node, node.in(1), a + terms.output, &b));
  std::string batch, contracted, rows, columns;
  for (const char c : a) {
    const bool in_b = b.find(c) != std::string::npos;
    const bool in_output = terms.output.find(c) != std::string::npos;
    (in_b ? (in_output ? batch : contracted) : rows).push_back(c);
  }
  for (const char c : b) {
    if (a.find(c) == std::string::npos) columns.push_back(c);
  }
  ASSIGN_OR_RETURN(left, Arrange(node, left, a, batch + rows + contracted));
  ASSIGN_OR_RETURN(right, Arrange(node, right, b, batch + contracted + columns));
  ASSIGN_OR_RETURN(left,
                   node.Reshape(left, {count_of(batch), count_of(rows), count_of(contracted)}));
  ASSIGN_OR_RETURN(right,
                   node.Reshape(right, {count_of(batch), count_of(contracted), count_of(columns)}));
  const std::string order = batch + rows + columns;
  Value product;
  if (order == terms.output) {
    ASSIGN_OR_RETURN(product, node.NewResult(0, left.type, shape_of(order)));
  } else {
    ASSIGN_OR_RETURN(product, node.NewTemporary(left.type, shape_of(order)));
  }
  RETURN_IF_ERROR(Multiply(
      node, left, right, WithShape(product, {count_of(batch), count_of(rows), count_of(columns)})));
  if (order == terms.output) return absl::OkStatus();
  ASSIGN_OR_RETURN(Value result, Arrange(node, product, order, terms.output));
  node.SetResult(0, std::move(result));
  return absl::OkStatus();
}

}  // namespace resident::onnx
