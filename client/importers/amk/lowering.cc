#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/importers/amk/importer.h"
#include "runtime/base/status_macros.h"

namespace resident::cli::amk {

namespace {

using absl::StrCat;

constexpr size_t kMaxSteps = 4096;
constexpr int64_t kInt4 = 7;
constexpr int64_t kInt8 = 6;

}  // namespace

absl::StatusOr<Operand> Importer::BufferOperand(uint32_t id) const {
  const Operand& buffer = buffers_[id];
  if (kDTypes[static_cast<size_t>(buffer.type)] == v1::DTYPE_UNSPECIFIED) {
    return Refuse(
        StrCat("buffer ", id, " has dtype ", TypeName(buffer.type), ", which no operator accepts"));
  }
  return buffer;
}

Operand Importer::Temporary(Type type, Shape shape) {
  Operand temporary;
  temporary.type = type;
  temporary.strides = DenseStrides(shape);
  temporary.shape = std::move(shape);
  temporary.tensor = UniqueName(StrCat("task", task_, ".", temporaries_), temporaries_);
  ++temporaries_;
  v1::GraphTensor& tensor = *result_.graph.add_tensors();
  tensor.set_name(temporary.tensor);
  tensor.set_kind(v1::GraphTensor::KIND_ACTIVATION);
  tensor.set_dtype(kDTypes[static_cast<size_t>(type)]);
  for (const int64_t size : temporary.shape) tensor.add_shape()->set_size(size);
  return temporary;
}

void Importer::Call(const char* op, std::vector<Arg> arguments) {
  v1::GraphNode& node = nodes_.emplace_back();
  node.set_operator_(op);
  for (Arg& argument : arguments) *node.add_arguments() = std::move(argument.message);
}

absl::StatusOr<Operand> Importer::Float(const Operand& in) {
  if (in.type == Type::kI4) {
    return Refuse(
        "a packed I4 buffer is accepted only as the weights of GEMV_TILE, GEMM_TILE and "
        "DEQUANT");
  }
  if (IsFloat(in.type)) return in;
  Operand converted = Temporary(Type::kF32, in.shape);
  Call("copy", {in, converted});
  return converted;
}

absl::StatusOr<Operand> Importer::ExactF16(const Operand& in, const char* what) {
  if (in.type == Type::kF16) return in;
  return Refuse(StrCat(what, " have dtype ", TypeName(in.type),
                       ", and the operators of quantized weights take only F16"));
}

absl::StatusOr<Importer::Target> Importer::MakeTarget(const Operand& out, const Operands& inputs,
                                                      bool dense, std::optional<Type> required) {
  if (out.type == Type::kI4 || out.type == Type::kBool) {
    return Refuse(StrCat("the output has dtype ", TypeName(out.type), ", which it cannot write"));
  }
  const bool aliased = std::any_of(inputs.begin(), inputs.end(), [&](const Operand& input) {
    return input.tensor == out.tensor;
  });
  const Type type = required.value_or(IsFloat(out.type) ? out.type : Type::kF32);
  Target target;
  if (type == out.type && !aliased && (!dense || IsDense(out))) {
    target.to = out;
    return target;
  }
  target.to = Temporary(type, out.shape);
  target.final = out;
  return target;
}

void Importer::Store(const Target& target) {
  if (target.final.has_value()) Call("copy", {target.to, *target.final});
}

absl::StatusOr<Operand> Importer::Aligned(const Operand& in, const Operand& out) {
  ASSIGN_OR_RETURN(Operand converted, Float(in));
  if (Broadcasts(converted.shape, out.shape)) return converted;
  if (Numel(converted.shape) == Numel(out.shape)) return Reshaped(converted, out.shape);
  return Refuse(StrCat("an input of shape ", Text(in.shape),
                       " cannot be broadcast to the output's ", Text(out.shape)));
}

absl::Status Importer::LowerCopy(const Operands& inputs, const Operand& out) {
  const Operand& in = inputs[0];
  if (in.type == Type::kI4 || out.type == Type::kI4) {
    return Refuse("a packed I4 buffer cannot be converted");
  }
  if (out.type == Type::kBool && in.type != Type::kBool) {
    return Refuse(StrCat("the operator copy does not convert ", TypeName(in.type), " to BOOL"));
  }
  if (in.tensor == out.tensor) {
    Operand temporary = Temporary(in.type, in.shape);
    Call("copy", {in, temporary});
    Call("copy", {temporary, out});
    return absl::OkStatus();
  }
  Operand from = in;
  if (!Broadcasts(in.shape, out.shape)) {
    if (Numel(in.shape) != Numel(out.shape)) {
      return Refuse(StrCat("an input of shape ", Text(in.shape),
                           " cannot be broadcast to the output's ", Text(out.shape)));
    }
    from = Reshaped(in, out.shape);
  }
  Call("copy", {from, out});
  return absl::OkStatus();
}

absl::Status Importer::LowerElementwise(const char* op, const Operands& inputs, const Operand& out,
                                        std::vector<Arg> scalars) {
  std::vector<Arg> arguments;
  for (const Operand& input : inputs) {
    ASSIGN_OR_RETURN(Operand aligned, Aligned(input, out));
    arguments.emplace_back(std::move(aligned));
  }
  ASSIGN_OR_RETURN(const Target target, MakeTarget(out, inputs, /*dense=*/false));
  arguments.emplace_back(target.to);
  for (Arg& scalar : scalars) arguments.push_back(std::move(scalar));
  Call(op, std::move(arguments));
  Store(target);
  return absl::OkStatus();
}

absl::Status Importer::LowerSum(const Operands& inputs, const Operand& out) {
  if (inputs.size() == 1) return LowerCopy(inputs, out);
  // Partial sums have float32 and one temporary each: an operator does not write what it reads.
  Operand sum;
  for (size_t i = 1; i < inputs.size(); ++i) {
    const bool last = i + 1 == inputs.size();
    Target target;
    if (last) {
      ASSIGN_OR_RETURN(target, MakeTarget(out, inputs, /*dense=*/false));
    } else {
      target.to = Temporary(Type::kF32, out.shape);
    }
    Operand left = sum;
    if (i == 1) {
      ASSIGN_OR_RETURN(left, Aligned(inputs[0], out));
    }
    ASSIGN_OR_RETURN(Operand right, Aligned(inputs[i], out));
    Call("add", {left, right, target.to});
    if (last) Store(target);
    sum = target.to;
  }
  return absl::OkStatus();
}

absl::Status Importer::LowerEmbed(const Operands& inputs, const Operand& out) {
  const Operand& ids = inputs[0];
  const Operand& table = inputs[1];
  if (table.shape.empty()) return Refuse("the table has no dimensions");
  const int64_t rows = table.shape[0];
  const int64_t width = Numel(table.shape) / rows;
  const int64_t count = Numel(ids.shape);
  if (Numel(out.shape) % width != 0 || Numel(out.shape) / width != count) {
    return Refuse(StrCat(count, " rows of ", width, " elements do not fill an output of shape ",
                         Text(out.shape)));
  }
  Operand index = Reshaped(ids, {count});
  if (ids.type == Type::kI4 || ids.type == Type::kBool) {
    return Refuse(StrCat("the ids have dtype ", TypeName(ids.type)));
  }
  if (ids.type != Type::kI32 && ids.type != Type::kI64) {
    index = Temporary(Type::kI32, {count});
    Call("copy", {Reshaped(ids, {count}), index});
  }
  ASSIGN_OR_RETURN(const Operand values, Float(table));
  ASSIGN_OR_RETURN(const Target target,
                   MakeTarget(Reshaped(out, {count, width}), inputs, /*dense=*/true));
  Call("embedding", {index, Reshaped(values, {rows, width}), target.to});
  Store(target);
  return absl::OkStatus();
}

absl::Status Importer::LowerNorm(Op op, const Operands& inputs, const Operand& out,
                                 const Params& params) {
  ASSIGN_OR_RETURN(const int64_t hidden, params.Int("hidden"));
  ASSIGN_OR_RETURN(const double eps, params.Real("eps"));
  if (inputs[0].shape.empty() || inputs[0].shape.back() != hidden) {
    return Refuse(StrCat("hidden is ", hidden, " and the input has shape ", Text(inputs[0].shape)));
  }
  if (Numel(out.shape) != Numel(inputs[0].shape)) {
    return Refuse(StrCat("the output's shape ", Text(out.shape), " is not the input's ",
                         Text(inputs[0].shape)));
  }
  std::vector<Arg> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i > 0 && Numel(inputs[i].shape) != hidden) {
      return Refuse(StrCat("a weight or bias of shape ", Text(inputs[i].shape), " does not have ",
                           hidden, " elements"));
    }
    ASSIGN_OR_RETURN(const Operand input, Float(inputs[i]));
    arguments.emplace_back(i == 0 ? input : Reshaped(input, {hidden}));
  }
  if (op == Op::kLayerNorm && inputs.size() == 2) arguments.push_back(Arg::None());
  ASSIGN_OR_RETURN(const Target target,
                   MakeTarget(Reshaped(out, inputs[0].shape), inputs, /*dense=*/true));
  arguments.emplace_back(target.to);
  arguments.emplace_back(eps);
  Call(op == Op::kRmsNorm ? "rmsnorm" : "layernorm", std::move(arguments));
  Store(target);
  return absl::OkStatus();
}

absl::StatusOr<Importer::Quantized> Importer::QuantizedRows(const Operand& q, const Operand& scales,
                                                            const Operand* zeros, int64_t qdtype,
                                                            int64_t group, int64_t columns,
                                                            int64_t first, int64_t rows) {
  if (qdtype != kInt4 && qdtype != kInt8) {
    return Refuse(StrCat("qdtype is ", qdtype, "; 6 (I8) and 7 (I4) are quantized"));
  }
  if (group < 1) return Refuse(StrCat("group is ", group, "; it is at least 1"));
  if (q.shape.empty()) return Refuse("the quantized weights have no dimensions");
  const int64_t bytes = q.shape.back();
  const bool packed = q.type == Type::kI4 || (qdtype == kInt4 && q.type == Type::kU8);
  if (!packed && q.type != Type::kI8 && q.type != Type::kU8) {
    return Refuse(StrCat("the quantized weights have dtype ", TypeName(q.type)));
  }
  if (packed != (qdtype == kInt4) && q.type == Type::kI4) {
    return Refuse("the weights are packed I4, and qdtype is 6 (I8)");
  }
  const int64_t expected = packed ? (columns + 1) / 2 : columns;
  // With one column, the operators take a byte for a whole weight.
  if (packed && columns == 1) return Refuse("a packed matrix of one column is ambiguous");
  if (bytes != expected) {
    return Refuse(StrCat("quantized rows of ", columns, " columns have ", expected,
                         " bytes, and the buffer has shape ", Text(q.shape)));
  }
  const int64_t all = Numel(q.shape) / bytes;
  const int64_t groups = (columns + group - 1) / group;
  if (first + rows > all) {
    return Refuse(StrCat("rows ", first, " to ", first + rows - 1, " are outside of the ", all,
                         " rows of the weights"));
  }
  Quantized result;
  result.q = Reshaped(q, {rows, bytes}, first * bytes);
  const auto rows_of = [&](const Operand& in, const char* what) -> absl::StatusOr<Operand> {
    if (in.shape.empty() || in.shape.back() != groups || Numel(in.shape) != all * groups) {
      return Refuse(StrCat(what, " of shape ", Text(in.shape), " are not [", all, ", ", groups,
                           "], one for each row and group"));
    }
    return Reshaped(in, {rows, groups}, first * groups);
  };
  ASSIGN_OR_RETURN(result.scales, rows_of(scales, "scales"));
  ASSIGN_OR_RETURN(result.scales, ExactF16(result.scales, "the scales"));
  if (zeros != nullptr) {
    ASSIGN_OR_RETURN(Operand given, rows_of(*zeros, "zeros"));
    if (given.type == Type::kI4 || given.type == Type::kBool || given.type == Type::kI32) {
      return Refuse(StrCat("the zeros have dtype ", TypeName(given.type)));
    }
    if (given.type == Type::kF16) {
      result.zeros = given;
    } else {
      // Zeros are whole numbers from -128 to 255, which float16 represents exactly.
      result.zeros = Temporary(Type::kF16, given.shape);
      Call("copy", {given, *result.zeros});
    }
  } else if (!packed && q.type == Type::kU8) {
    // Without zeros the operators take 128 for unsigned bytes, and AMK takes 0.
    result.zeros = Temporary(Type::kF16, {rows, groups});
    Call("zero", {*result.zeros});
  }
  return result;
}

// The function is long because products of quantized and of plain weights, of one row and of
// several, have the same tile of the output, whose place is checked once.
absl::Status Importer::LowerTile(Op op, const Operands& inputs, const Operand& out,
                                 const Params& params, bool scratch) {
  ASSIGN_OR_RETURN(const int64_t columns, params.Int("K"));
  ASSIGN_OR_RETURN(const int64_t width, params.Int("N_tile"));
  ASSIGN_OR_RETURN(const int64_t first, params.Int("n_off"));
  ASSIGN_OR_RETURN(const int64_t qdtype, params.Int("qdtype", 0));
  const Operand& x = inputs[0];
  if (width < 1 || first < 0) return Refuse(StrCat("N_tile is ", width, " and n_off ", first));
  if (x.shape.empty() || x.shape.back() != columns) {
    return Refuse(StrCat("K is ", columns, " and the input has shape ", Text(x.shape)));
  }
  const int64_t rows = Numel(x.shape) / columns;
  if (out.shape.empty() || first + width > out.shape.back()) {
    return Refuse(StrCat("columns ", first, " to ", first + width - 1,
                         " are outside of the output's shape ", Text(out.shape)));
  }
  const int64_t pitch = out.shape.back();
  if (Numel(out.shape) / pitch != rows) {
    return Refuse(
        StrCat("the input has ", rows, " rows, and the output's shape is ", Text(out.shape)));
  }
  int64_t first_row = 0;
  int64_t row_count = rows;
  if (op == Op::kGemmTile) {
    ASSIGN_OR_RETURN(row_count, params.Int("M_tile"));
    ASSIGN_OR_RETURN(first_row, params.Int("m_off", 0));
    if (row_count < 1 || first_row < 0 || first_row + row_count > rows) {
      return Refuse(StrCat("rows ", first_row, " to ", first_row + row_count - 1,
                           " (m_off, M_tile) are outside of the ", rows, " rows of the output"));
    }
  }
  if (scratch && (row_count != rows || width != pitch)) Call("zero", {out});
  ASSIGN_OR_RETURN(const Operand given, Float(x));
  const Operand part = Reshaped(given, {row_count, columns}, first_row * columns);
  const Operand tile =
      Part(out, {row_count, width}, {row_count == 1 ? width : pitch, 1}, first_row * pitch + first);

  if (qdtype != 0) {
    if (inputs.size() < 3) return Refuse("quantized weights have no scales as third input");
    ASSIGN_OR_RETURN(const int64_t group, params.Int("group", columns));
    if (inputs[1].shape.size() != 2) return Refuse("the quantized weights are not a matrix");
    ASSIGN_OR_RETURN(const Quantized w,
                     QuantizedRows(inputs[1], inputs[2], inputs.size() > 3 ? &inputs[3] : nullptr,
                                   qdtype, group, columns, first, width));
    ASSIGN_OR_RETURN(const Target target, MakeTarget(tile, inputs, /*dense=*/true));
    Call("gemv_quant", {part, w.q, w.scales, w.zeros.has_value() ? Arg(*w.zeros) : Arg::None(),
                        target.to, group});
    Store(target);
    return absl::OkStatus();
  }
  if (inputs.size() > 3) return Refuse("a fourth input (zeros) needs qdtype 6 or 7");
  if (inputs[1].shape.size() != 2 || inputs[1].shape[1] != columns ||
      first + width > inputs[1].shape[0]) {
    return Refuse(StrCat("weights of shape ", Text(inputs[1].shape), " have no rows ", first,
                         " to ", first + width - 1, " of ", columns, " columns"));
  }
  const Operand rows_of_w = Reshaped(inputs[1], {width, columns}, first * columns);
  ASSIGN_OR_RETURN(const Operand w, Float(rows_of_w));
  std::optional<Operand> bias;
  if (inputs.size() == 3) {
    if (Numel(inputs[2].shape) < first + width || inputs[2].shape.size() != 1) {
      return Refuse(StrCat("a bias of shape ", Text(inputs[2].shape), " has no elements ", first,
                           " to ", first + width - 1));
    }
    ASSIGN_OR_RETURN(bias, Float(Reshaped(inputs[2], {width}, first)));
  }
  if (row_count == 1) {
    ASSIGN_OR_RETURN(const Target target, MakeTarget(tile, inputs, /*dense=*/true));
    Call("gemv", {part, w, bias.has_value() ? Arg(*bias) : Arg::None(), target.to});
    Store(target);
    return absl::OkStatus();
  }
  Operand transposed = w;
  transposed.whole = false;
  transposed.shape = {columns, width};
  transposed.strides = {1, columns};
  ASSIGN_OR_RETURN(const Target target, MakeTarget(tile, inputs, /*dense=*/false));
  if (!bias.has_value()) {
    Call("gemm", {part, transposed, target.to});
  } else {
    const Operand product = Temporary(Type::kF32, {row_count, width});
    Call("gemm", {part, transposed, product});
    Call("add", {product, *bias, target.to});
  }
  Store(target);
  return absl::OkStatus();
}

absl::Status Importer::LowerDequant(const Operands& inputs, const Operand& out,
                                    const Params& params) {
  ASSIGN_OR_RETURN(const int64_t qdtype, params.Int("qdtype"));
  ASSIGN_OR_RETURN(const int64_t group, params.Int("group"));
  if (out.shape.empty()) return Refuse("the output has no dimensions");
  const int64_t columns = out.shape.back();
  const int64_t rows = Numel(out.shape) / columns;
  ASSIGN_OR_RETURN(const Quantized w,
                   QuantizedRows(inputs[0], inputs[1], inputs.size() > 2 ? &inputs[2] : nullptr,
                                 qdtype, group, columns, 0, rows));
  if (Numel(inputs[0].shape) / inputs[0].shape.back() != rows) {
    return Refuse(StrCat("the weights' shape ", Text(inputs[0].shape),
                         " does not have the rows of the output's ", Text(out.shape)));
  }
  ASSIGN_OR_RETURN(const Target target,
                   MakeTarget(Reshaped(out, {rows, columns}), inputs, /*dense=*/true));
  Call("dequant",
       {w.q, w.scales, w.zeros.has_value() ? Arg(*w.zeros) : Arg::None(), target.to, group});
  Store(target);
  return absl::OkStatus();
}

absl::Status Importer::LowerRope(const Operands& inputs, const Operand& out, const Params& params) {
  ASSIGN_OR_RETURN(const int64_t dim, params.Int("head_dim"));
  ASSIGN_OR_RETURN(const double theta, params.Real("theta"));
  const Shape& x = inputs[0].shape;
  if (!(theta > 0)) return Refuse("theta is not positive");
  if (dim < 2 || dim % 2 != 0 || (x.size() != 2 && x.size() != 3) || x.back() != dim) {
    return Refuse(StrCat("the input's shape ", Text(x),
                         " is not [heads, head_dim] or [positions, "
                         "heads, head_dim] with an even head_dim, which is ",
                         dim));
  }
  if (Numel(out.shape) != Numel(x)) {
    return Refuse(StrCat("the output's shape ", Text(out.shape), " is not the input's ", Text(x)));
  }
  const int64_t steps = x.size() == 3 ? x[0] : 1;
  const int64_t heads = x[x.size() - 2];
  const int64_t half = dim / 2;
  const int64_t positions = Numel(inputs[1].shape);
  if (positions != 1 && positions < steps) {
    return Refuse(StrCat("there are ", positions, " positions for ", steps, " rows"));
  }
  if (x.size() == 3 && positions != 1 && positions != steps) {
    return Refuse(StrCat("there are ", positions, " positions for ", steps, " rows"));
  }
  // angles[s, i] = position[s] * theta^(-i / half): row 1 of rope_freqs has the second factor.
  const Operand table = Temporary(Type::kF32, {2, half});
  if (half == 1) {
    Call("fill", {table, 1.0});
  } else {
    Call("rope_freqs", {table, theta});
  }
  ASSIGN_OR_RETURN(const Operand position, Float(inputs[1]));
  const Operand angles = Temporary(Type::kF32, {steps, half});
  Call("mul", {Part(position, {steps, 1}, {positions == 1 ? 0 : 1, 1}),
               Reshaped(table, {1, half}, half), angles});
  ASSIGN_OR_RETURN(const Operand given, Float(inputs[0]));
  const Shape view = {1, steps, heads, dim};
  ASSIGN_OR_RETURN(const Target target, MakeTarget(Reshaped(out, view), inputs, /*dense=*/false));
  // Layout 1: element i is rotated with element i + half.
  Call("rope", {Reshaped(given, view), angles, target.to, int64_t{0}, int64_t{1}});
  Store(target);
  return absl::OkStatus();
}

absl::Status Importer::LowerKvAppend(const Operands& inputs, const Operand& out,
                                     const Params& params) {
  ASSIGN_OR_RETURN(const int64_t pos, params.Int("pos"));
  if (inputs[1].tensor != out.tensor)
    return Refuse("its output is not its second input, the cache");
  const Shape& cache = out.shape;
  if (cache.size() != 3 && cache.size() != 4) {
    return Refuse(StrCat("the cache's shape ", Text(cache), " has neither 3 nor 4 dimensions"));
  }
  if (!IsFloat(out.type)) {
    return Refuse(StrCat("the cache has dtype ", TypeName(out.type),
                         ", which the operator kv_append does not take"));
  }
  const int64_t batch = cache.size() == 4 ? cache[0] : 1;
  const int64_t rows = cache[cache.size() - 3];
  const int64_t heads = cache[cache.size() - 2];
  const int64_t dim = cache.back();
  const int64_t row = heads * dim;
  const int64_t count = Numel(inputs[0].shape) / (batch * row);
  if (Numel(inputs[0].shape) != count * batch * row || count < 1 ||
      (cache.size() == 4 && count != 1)) {
    return Refuse(StrCat("new rows of shape ", Text(inputs[0].shape),
                         " do not fit a cache of shape ", Text(cache)));
  }
  if (pos < 0 || pos + count > rows) {
    return Refuse(StrCat("rows ", pos, " to ", pos + count - 1, " are outside of the ", rows,
                         " rows of the cache"));
  }
  if (inputs[0].tensor == out.tensor) return Refuse("its new rows are the cache itself");
  ASSIGN_OR_RETURN(const Operand given, Float(inputs[0]));
  Call("kv_append", {Part(given, {batch, heads, count, dim}, {count * row, dim, row, 1}),
                     Part(out, {batch, heads, rows, dim}, {rows * row, dim, row, 1}), pos});
  return absl::OkStatus();
}

absl::Status Importer::LowerSoftmax(const Operands& inputs, const Operand& out,
                                    const Params& params) {
  ASSIGN_OR_RETURN(int64_t dim, params.Int("dim", -1));
  const Shape& x = inputs[0].shape;
  const auto rank = static_cast<int64_t>(x.size());
  if (dim < -rank || dim >= rank) {
    return Refuse(StrCat("dim is ", dim, " and the input has shape ", Text(x)));
  }
  if (dim < 0) dim += rank;
  if (Numel(out.shape) != Numel(x)) {
    return Refuse(StrCat("the output's shape ", Text(out.shape), " is not the input's ", Text(x)));
  }
  ASSIGN_OR_RETURN(const Operand given, Float(inputs[0]));
  const Operand result = Reshaped(out, x);
  if (dim == rank - 1) {
    ASSIGN_OR_RETURN(const Target target, MakeTarget(result, inputs, /*dense=*/true));
    Call("softmax", {given, target.to});
    Store(target);
    return absl::OkStatus();
  }
  // The operator computes along the last dimension of a dense tensor.
  const auto moved = [dim](const Operand& in) {
    Operand view = in;
    view.whole = false;
    std::rotate(view.shape.begin() + dim, view.shape.begin() + dim + 1, view.shape.end());
    std::rotate(view.strides.begin() + dim, view.strides.begin() + dim + 1, view.strides.end());
    return view;
  };
  const Operand from = moved(given);
  const Operand dense = Temporary(given.type, from.shape);
  Call("copy", {from, dense});
  ASSIGN_OR_RETURN(const Target target, MakeTarget(moved(result), inputs, /*dense=*/true));
  Call("softmax", {dense, target.to});
  Store(target);
  return absl::OkStatus();
}

absl::Status Importer::LowerArgmax(const Operands& inputs, const Operand& out) {
  const Shape& x = inputs[0].shape;
  if (x.empty()) return Refuse("the input has no dimensions");
  const int64_t rows = Numel(x) / x.back();
  if (Numel(out.shape) != rows) {
    return Refuse(StrCat("the output's shape ", Text(out.shape), " does not have ", rows,
                         " elements, one for each row"));
  }
  ASSIGN_OR_RETURN(const Operand given, Float(inputs[0]));
  ASSIGN_OR_RETURN(const Target target,
                   MakeTarget(Reshaped(out, {rows}), inputs, /*dense=*/true, Type::kI64));
  Call("argmax", {Reshaped(given, {rows, x.back()}), target.to, int64_t{2}});
  Store(target);
  return absl::OkStatus();
}

namespace {

// The operation of a recipe's step, by its number or its name.
std::optional<Op> ReadStepOp(const Json& code) {
  if (code.is_string()) return FindOp(code.get<std::string>());
  const std::optional<int64_t> number = Integer(code);
  if (!number.has_value() || *number < 0 || *number >= static_cast<int64_t>(kOpCount)) {
    return std::nullopt;
  }
  return static_cast<Op>(*number);
}

// The type and the shape of the scratch that a recipe's step writes: those of its first operand,
// unless the step has others.
absl::StatusOr<Operand> ReadScratchType(const Json& step, const Operand& first) {
  Operand scratch;
  scratch.type = first.type;
  scratch.shape = first.shape;
  if (const Json& dtype = Field(step, "out_dtype"); !dtype.is_null()) {
    static constexpr std::pair<std::string_view, Type> kRecipeTypes[] = {
        {"float32", Type::kF32}, {"float16", Type::kF16}, {"bfloat16", Type::kBF16},
        {"float64", Type::kF64}, {"int8", Type::kI8},     {"int32", Type::kI32}};
    const auto* const found =
        std::find_if(std::begin(kRecipeTypes), std::end(kRecipeTypes), [&](const auto& candidate) {
          return dtype.is_string() && dtype.get<std::string>() == candidate.first;
        });
    if (found == std::end(kRecipeTypes)) return Refuse("its out_dtype is unknown");
    scratch.type = found->second;
  }
  if (scratch.type == Type::kI4 || scratch.type == Type::kBool) {
    return Refuse(StrCat("it writes a scratch of dtype ", TypeName(scratch.type)));
  }
  if (const Json& given = Field(step, "out_shape"); !given.is_null()) {
    absl::StatusOr<Shape> parsed = ParseShape(given);
    if (!parsed.ok()) return Refuse(StrCat("its out_shape: ", parsed.status().message()));
    scratch.shape = *std::move(parsed);
  }
  return scratch;
}

}  // namespace

absl::Status Importer::LowerFused(const Operands& inputs, const Operand& out,
                                  const Params& params) {
  const Json& recipe = Field(params.json(), "recipe");
  if (!recipe.is_object()) return Refuse("its recipe is not an object");
  const Json& steps = Field(recipe, "steps");
  if (!steps.is_array() || steps.empty()) return Refuse("its recipe has no steps");
  if (steps.size() > kMaxSteps)
    return Refuse(StrCat("its recipe has more than ", kMaxSteps, " steps"));
  std::unordered_map<int64_t, Operand> scratch;
  bool wrote_final = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto fail = [i](const std::string& what) {
      return Refuse(StrCat("step ", i, ": ", what));
    };
    const Json& step = steps[i];
    if (!step.is_object()) return fail("it is not an object");
    const std::optional<Op> op = ReadStepOp(Field(step, "op"));
    if (!op.has_value()) return fail("its op is unknown");
    if (*op == Op::kFused) return fail("it is a FUSED recipe itself");
    if (*op == Op::kNop) return fail("a NOP writes nothing");
    const Json& args = Field(step, "args");
    const OpInfo& info = GetOpInfo(*op);
    if (!args.is_array() || args.size() < info.min_inputs || args.size() > info.max_inputs) {
      return fail(
          StrCat(info.name, " takes ", info.min_inputs, " to ", info.max_inputs, " arguments"));
    }
    Operands operands;
    for (const Json& arg : args) {
      if (!arg.is_object() || arg.size() != 1)
        return fail("an argument is not {\"in\"} or {\"s\"}");
      if (arg.contains("in")) {
        const std::optional<int64_t> k = Integer(arg.at("in"));
        if (!k.has_value() || *k < 0 || *k >= static_cast<int64_t>(inputs.size())) {
          return fail(StrCat("it reads an input that is not one of ", inputs.size()));
        }
        operands.push_back(inputs[static_cast<size_t>(*k)]);
        continue;
      }
      const std::optional<int64_t> j = Integer(Field(arg, "s"));
      const auto found = j.has_value() ? scratch.find(*j) : scratch.end();
      if (found == scratch.end()) return fail("it reads a scratch that no earlier step wrote");
      operands.push_back(found->second);
    }
    const Json& to = Field(step, "out");
    const std::optional<int64_t> j = Integer(to);
    const bool final = (to.is_string() && to.get<std::string>() == "final") || j == -1;
    if (!final && !j.has_value()) return fail("its out is neither \"final\" nor a whole number");
    Operand target = out;
    if (!final) {
      const absl::StatusOr<Operand> scratch_type = ReadScratchType(step, operands[0]);
      if (!scratch_type.ok()) return fail(std::string(scratch_type.status().message()));
      target = Temporary(scratch_type->type, scratch_type->shape);
    }
    const Json& given = Field(step, "params");
    if (!given.is_null() && !given.is_object()) return fail("its params are not an object");
    const Params step_params(given);
    if (absl::Status status = Lower(*op, operands, target, step_params, /*scratch=*/!final);
        !status.ok()) {
      return fail(StrCat("(", info.name, ") ", status.message()));
    }
    if (final) {
      wrote_final = true;
    } else {
      scratch.insert_or_assign(*j, std::move(target));
    }
  }
  if (!wrote_final) return Refuse("no step of its recipe writes \"final\"");
  return absl::OkStatus();
}

absl::Status Importer::Lower(Op op, const Operands& inputs, const Operand& out,
                             const Params& params, bool scratch) {
  switch (op) {
    case Op::kNop:
      break;
    case Op::kCopy:
      return LowerCopy(inputs, out);
    case Op::kEmbed:
      return LowerEmbed(inputs, out);
    case Op::kRmsNorm:
    case Op::kLayerNorm:
      return LowerNorm(op, inputs, out, params);
    case Op::kGemvTile:
    case Op::kGemmTile:
      return LowerTile(op, inputs, out, params, scratch);
    case Op::kAttentionTile:
      return LowerAttention(inputs, out, params);
    case Op::kRope:
      return LowerRope(inputs, out, params);
    case Op::kSiluMul:
      return LowerElementwise("silu_mul", inputs, out, {});
    case Op::kGelu:
      return LowerElementwise("gelu", inputs, out, {});
    case Op::kAdd:
      return LowerElementwise("add", inputs, out, {});
    case Op::kMul: {
      if (inputs.size() == 2) return LowerElementwise("mul", inputs, out, {});
      ASSIGN_OR_RETURN(const double scale, params.Real("scale", 1.0));
      return LowerElementwise("scale", inputs, out, {scale});
    }
    case Op::kDequant:
      return LowerDequant(inputs, out, params);
    case Op::kSoftmax:
      return LowerSoftmax(inputs, out, params);
    case Op::kAllReduceShard:
      return LowerSum(inputs, out);
    case Op::kKvAppend:
      return LowerKvAppend(inputs, out, params);
    case Op::kSampleArgmax:
      return LowerArgmax(inputs, out);
    case Op::kAttentionCombine:
      return LowerCombine(inputs, out, params);
    case Op::kFused:
      return LowerFused(inputs, out, params);
  }
  return absl::OkStatus();
}

}  // namespace resident::cli::amk
