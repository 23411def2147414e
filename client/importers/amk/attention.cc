#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/importers/amk/importer.h"
#include "runtime/base/status_macros.h"

namespace resident::cli::amk {

namespace {

using absl::StrCat;

// Of the operators attention and attention_partial.
constexpr int64_t kMaxHeadDim = 256;
// Bits of the parameter `flags`.
constexpr int64_t kCausal = 1;
constexpr int64_t kPartialWrite = 2;

}  // namespace

absl::Status Importer::CheckCaches(const Operands& inputs, int64_t kv_heads) const {
  const Shape& q = inputs[0].shape;
  const Shape& cache = inputs[1].shape;
  Shape expected = cache;
  if (cache.size() == q.size() + 1) {
    expected[cache.size() - 2] = kv_heads;
    expected[cache.size() - 1] = q.back();
    if (q.size() == 3) expected[0] = q[0];
  }
  if (cache.size() == q.size() + 1 && cache == expected && inputs[2].shape == cache) {
    return absl::OkStatus();
  }
  return Refuse(StrCat("caches of shapes ", Text(cache), " and ", Text(inputs[2].shape),
                       " do not fit the query's ", Text(q), " and n_kv_heads ", kv_heads));
}

// The function is long because the attention of AMK has two results, all of it or a part of the
// keys, which share the checks of the shapes before them.
absl::Status Importer::LowerAttention(const Operands& inputs, const Operand& out,
                                      const Params& params) {
  if (inputs.size() > 3) return Refuse("its fourth input has no meaning in AMK");
  ASSIGN_OR_RETURN(const int64_t dim, params.Int("head_dim"));
  ASSIGN_OR_RETURN(const int64_t start, params.Int("kv_start"));
  ASSIGN_OR_RETURN(const int64_t length, params.Int("kv_len"));
  ASSIGN_OR_RETURN(const int64_t heads, params.Int("n_heads"));
  ASSIGN_OR_RETURN(const int64_t kv_heads, params.Int("n_kv_heads"));
  ASSIGN_OR_RETURN(const double scale, params.Real("scale"));
  ASSIGN_OR_RETURN(const int64_t flags, params.Int("flags", 0));
  if ((flags & ~(kCausal | kPartialWrite)) != 0) return Refuse(StrCat("flags is ", flags));
  const bool partial = (flags & kPartialWrite) != 0;
  if (dim < 1 || heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
    return Refuse(StrCat("head_dim ", dim, ", n_heads ", heads, " and n_kv_heads ", kv_heads,
                         " are not positive with n_heads a multiple of n_kv_heads"));
  }
  if (dim > kMaxHeadDim) {
    return Refuse(
        StrCat("head_dim is ", dim, "; the operator attention takes at most ", kMaxHeadDim));
  }
  const Shape& q = inputs[0].shape;
  const bool batched = q.size() == 3;
  if (q.size() != 2 && !batched) {
    return Refuse(StrCat("the query's shape ", Text(q), " has neither 2 nor 3 dimensions"));
  }
  const int64_t batch = batched ? q[0] : 1;
  if (q[q.size() - 2] != heads || q.back() != dim) {
    return Refuse(StrCat("the query's shape ", Text(q), " does not end with [", heads, ", ", dim,
                         "] (n_heads, head_dim)"));
  }
  if (partial && batched) {
    return Refuse("a partial result (flags bit 1) is defined only for a query of 2 dimensions");
  }
  RETURN_IF_ERROR(CheckCaches(inputs, kv_heads));
  const Shape& cache = inputs[1].shape;
  const int64_t rows = cache[cache.size() - 3];
  if (start < 0 || length < 0 || start + length > rows) {
    return Refuse(StrCat("rows ", start, " to ", start + length - 1,
                         " (kv_start, kv_len) are outside of the ", rows, " rows of the cache"));
  }
  const int64_t record = dim + 2;
  if (Numel(out.shape) != (partial ? heads * record : batch * heads * dim)) {
    return Refuse(StrCat("the output's shape ", Text(out.shape), " does not have the ",
                         partial ? heads * record : batch * heads * dim,
                         " elements of the result"));
  }
  const Operand acc_out =
      Part(out, {1, heads, 1, 1, dim}, {heads * record, record, record, record, 1});
  const Shape column_strides = {heads * record, record, record, record};
  const Operand largest_out = Part(out, {1, heads, 1, 1}, column_strides, dim);
  const Operand sum_out = Part(out, {1, heads, 1, 1}, column_strides, dim + 1);
  if (partial && !IsFloat(out.type)) {
    return Refuse(
        StrCat("the partial result has dtype ", TypeName(out.type), ", which has no infinity"));
  }
  if (length == 0) {
    if (!partial) return Refuse("kv_len is 0, and the result of no keys is undefined");
    Call("zero", {acc_out});
    Call("fill", {largest_out, -std::numeric_limits<double>::infinity()});
    Call("zero", {sum_out});
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Operand query, Float(inputs[0]));
  std::vector<Arg> arguments = {Reshaped(query, {batch, heads, 1, dim})};
  for (size_t i = 1; i <= 2; ++i) {
    const int64_t row = kv_heads * dim;
    const Operand window =
        Part(inputs[i], {batch, kv_heads, length, dim}, {rows * row, dim, row, 1}, start * row);
    ASSIGN_OR_RETURN(Operand keys, Float(window));
    arguments.emplace_back(std::move(keys));
  }
  arguments.push_back(Arg::None());
  if (!partial) {
    ASSIGN_OR_RETURN(const Target target, MakeTarget(Reshaped(out, {batch, heads, 1, dim}), inputs,
                                                     /*dense=*/false));
    arguments.emplace_back(target.to);
    arguments.emplace_back(scale);
    Call("attention", std::move(arguments));
    Store(target);
    return absl::OkStatus();
  }
  const Operand acc = Temporary(Type::kF32, {1, heads, 1, 1, dim});
  const Operand largest = Temporary(Type::kF32, {1, heads, 1, 1});
  const Operand sum = Temporary(Type::kF32, {1, heads, 1, 1});
  for (const Operand& result : {acc, largest, sum}) arguments.emplace_back(result);
  arguments.emplace_back(scale);
  Call("attention_partial", std::move(arguments));
  Call("copy", {acc, acc_out});
  Call("copy", {largest, largest_out});
  Call("copy", {sum, sum_out});
  return absl::OkStatus();
}

absl::Status Importer::LowerCombine(const Operands& inputs, const Operand& out,
                                    const Params& params) {
  ASSIGN_OR_RETURN(const int64_t dim, params.Int("head_dim"));
  ASSIGN_OR_RETURN(const int64_t heads, params.Int("n_heads"));
  if (dim < 1 || heads < 1) return Refuse(StrCat("head_dim is ", dim, " and n_heads ", heads));
  if (Numel(out.shape) != heads * dim) {
    return Refuse(StrCat("the output's shape ", Text(out.shape), " does not have ", heads, " x ",
                         dim, " elements (n_heads, head_dim)"));
  }
  const auto parts = static_cast<int64_t>(inputs.size());
  const int64_t record = dim + 2;
  const Operand acc = Temporary(Type::kF32, {1, heads, 1, parts, dim});
  const Operand largest = Temporary(Type::kF32, {1, heads, 1, parts});
  const Operand sum = Temporary(Type::kF32, {1, heads, 1, parts});
  for (int64_t p = 0; p < parts; ++p) {
    const Operand& in = inputs[static_cast<size_t>(p)];
    if (Numel(in.shape) != heads * record || !IsFloat(in.type)) {
      return Refuse(StrCat("part ", p, " of shape ", Text(in.shape), " and dtype ",
                           TypeName(in.type), " is not [", heads, ", ", record, "] of floats"));
    }
    Call("copy",
         {Part(in, {heads, dim}, {record, 1}), Part(acc, {heads, dim}, {parts * dim, 1}, p * dim)});
    Call("copy", {Part(in, {heads}, {record}, dim), Part(largest, {heads}, {parts}, p)});
    Call("copy", {Part(in, {heads}, {record}, dim + 1), Part(sum, {heads}, {parts}, p)});
  }
  ASSIGN_OR_RETURN(const Target target,
                   MakeTarget(Reshaped(out, {1, heads, 1, dim}), inputs, /*dense=*/true));
  Call("attention_combine", {acc, largest, sum, target.to});
  Store(target);
  return absl::OkStatus();
}

}  // namespace resident::cli::amk
