// Attention and rotary embeddings.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

constexpr int64_t kMaxHeadSize = 256;  // Of the operator `attention`.

// [B, heads, rows, size] of an input [B, rows, heads * size], or of one that has four dimensions.
absl::StatusOr<Value> AsHeads(NodeContext& node, const Value& x, int64_t heads) {
  if (x.rank() == 4) return x;
  if (heads < 1 || x.size(2) % heads != 0) {
    return node.Refuse(302, StrCat(x.size(2), " columns are not divisible into ", heads, " heads"));
  }
  ASSIGN_OR_RETURN(const Value split,
                   node.Reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}));
  return node.Transpose(split, {0, 2, 1, 3});
}

// The keys or values with those of the past before them, as output `output`.
absl::StatusOr<Value> WithPast(NodeContext& node, const Value& now, size_t past_input,
                               size_t output) {
  if (!node.has(past_input)) {
    if (node.wants(output)) node.SetResult(output, now);
    return now;
  }
  const Value& past = node.in(past_input);
  if (past.rank() != 4 || past.type != now.type || past.size(0) != now.size(0) ||
      past.size(1) != now.size(1) || past.size(3) != now.size(3)) {
    return node.Refuse(302, StrCat("a past of the shape ", ShapeText(past.shape), " does not fit ",
                                   ShapeText(now.shape)));
  }
  Sizes64 shape = now.shape;
  shape[2] += past.size(2);
  ASSIGN_OR_RETURN(const Value all, node.NewResult(output, now.type, shape));
  Value part = all;
  part.shape[2] = past.size(2);
  node.Call("copy", {node.In(past), node.Out(part)});
  part.offset += past.size(2) * part.strides[2];
  part.shape[2] = now.size(2);
  node.Call("copy", {node.In(now), node.Out(part)});
  return all;
}

// The mask as numbers that are added: 0 and -infinity for true and false. Nullopt: there is none.
absl::StatusOr<std::optional<Value>> Mask(NodeContext& node, const Sizes64& scores) {
  if (!node.has(3)) return std::nullopt;
  Value mask = node.in(3);
  ASSIGN_OR_RETURN(const Sizes64 shape, node.BroadcastShape({mask.shape, scores}));
  if (shape != scores || (mask.rank() > 0 && mask.shape.back() != scores.back())) {
    return node.Refuse(302, StrCat("a mask of the shape ", ShapeText(mask.shape),
                                   " does not fit scores of ", ShapeText(scores)));
  }
  if (mask.type == ElementType::kBool) {
    // log(1) and log(0).
    ASSIGN_OR_RETURN(mask, node.Convert(mask, ElementType::kFloat));
    ASSIGN_OR_RETURN(mask, node.Compute("log", {mask}));
  } else {
    RETURN_IF_ERROR(node.CheckFloat(3));
  }
  return mask;
}

// Which keys a query sees, counted from its own position: at most `left` before and `right` after
// it; -1: all.
struct Visible {
  int64_t left = -1, right = -1;
};

// Query i is at position i + past.
absl::StatusOr<Value> PositionMask(NodeContext& node, int64_t queries, int64_t keys, int64_t past,
                                   const Visible& visible) {
  if (keys > kMaxFoldedElements / queries) return node.Refuse(501, "its mask is too large");
  RETURN_IF_ERROR(node.Charge(queries * keys, ElementType::kDouble));
  std::vector<double> mask;
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t ahead = j - (i + past);
      const bool sees = (visible.left < 0 || -ahead <= visible.left) &&
                        (visible.right < 0 || ahead <= visible.right);
      mask.push_back(sees ? 0 : -std::numeric_limits<double>::infinity());
    }
  }
  return ConstantValue(Constant::Reals({queries, keys}, mask));
}

absl::Status CheckAttention(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(3, 7));
  for (size_t i = 0; i < 3; ++i) {
    RETURN_IF_ERROR(node.CheckFloat(i));
    const Value &x = node.in(i), &first = node.in(0);
    if ((x.rank() != 3 && x.rank() != 4) || x.rank() != first.rank() ||
        x.size(0) != first.size(0)) {
      return node.Refuse(302, "its queries, keys and values have other dimensions");
    }
  }
  if (node.has(6)) return node.Refuse(302, "nonpad_kv_seqlen is not supported");
  if (node.wants(3)) return node.Refuse(302, "its scores are not an output that is supported");
  if (node.Float("softcap", 0) != 0) return node.Refuse(302, "softcap is not supported");
  if (node.has(4) != node.has(5)) return node.Refuse(302, "it has only one of past key and value");
  return absl::OkStatus();
}

}  // namespace

absl::Status MapAttention(NodeContext& node) {
  RETURN_IF_ERROR(CheckAttention(node));
  const int64_t kv_heads = node.Int("kv_num_heads", 0);
  ASSIGN_OR_RETURN(const Value q, AsHeads(node, node.in(0), node.Int("q_num_heads", 0)));
  ASSIGN_OR_RETURN(Value k, AsHeads(node, node.in(1), kv_heads));
  ASSIGN_OR_RETURN(Value v, AsHeads(node, node.in(2), kv_heads));
  const int64_t new_keys = k.size(2);
  ASSIGN_OR_RETURN(k, WithPast(node, k, 4, 1));
  ASSIGN_OR_RETURN(v, WithPast(node, v, 5, 2));
  const int64_t past = k.size(2) - new_keys;
  const bool fits = k.size(1) == v.size(1) && k.size(2) == v.size(2) && k.size(3) == q.size(3) &&
                    q.size(1) % k.size(1) == 0;
  if (!fits || q.size(3) > kMaxHeadSize || v.size(3) > kMaxHeadSize) {
    return node.Refuse(
        302, StrCat("queries, keys and values of the shapes ", ShapeText(q.shape), ", ",
                    ShapeText(k.shape), " and ", ShapeText(v.shape), " are not supported"));
  }
  const Sizes64 scores = {q.size(0), q.size(1), q.size(2), k.size(2)};
  ASSIGN_OR_RETURN(std::optional<Value> mask, Mask(node, scores));
  bool causal = node.Int("is_causal", 0) != 0;
  Visible visible{node.Int("left_window_size", -1), node.Int("right_window_size", -1)};
  const bool window = visible.left >= 0 || visible.right >= 0;
  // The operator aligns the last query with the last key.
  if (window || (causal && new_keys != q.size(2))) {
    if (causal) visible.right = 0;
    ASSIGN_OR_RETURN(Value own, PositionMask(node, q.size(2), k.size(2), past, visible));
    if (mask.has_value()) {
      ASSIGN_OR_RETURN(own, node.Compute("add", {own, *mask}));
    }
    mask = own;
    causal = false;
  }
  const double scale = node.Float("scale", 1 / std::sqrt(static_cast<double>(q.size(3))));
  Value out;
  if (node.in(0).rank() == 4 && node.Int(kHeadsLastAttribute, 0) != 0) {
    ASSIGN_OR_RETURN(const Value rows,
                     node.NewTemporary(q.type, {q.size(0), q.size(2), q.size(1), v.size(3)}));
    ASSIGN_OR_RETURN(out, node.Transpose(rows, {0, 2, 1, 3}));
    node.SetResult(0, out);
  } else if (node.in(0).rank() == 4) {
    ASSIGN_OR_RETURN(out, node.NewResult(0, q.type, {q.size(0), q.size(1), q.size(2), v.size(3)}));
  } else {
    ASSIGN_OR_RETURN(const Value rows,
                     node.NewResult(0, q.type, {q.size(0), q.size(2), q.size(1) * v.size(3)}));
    ASSIGN_OR_RETURN(out, AsHeads(node, rows, q.size(1)));
  }
  node.Call("attention",
            {node.In(q), node.In(k), node.In(v), mask.has_value() ? node.In(*mask) : node.None(),
             node.Out(out), node.Real(scale), node.Integer(causal ? 1 : 0)});
  return absl::OkStatus();
}

namespace {

// A half of the rotated columns: `interleaved`, every second one.
Value Half(const Value& x, int64_t half, int64_t which, bool interleaved) {
  Value view = x;
  view.shape[3] = half;
  view.offset += which * (interleaved ? 1 : half) * x.strides[3];
  if (interleaved) view.strides[3] *= 2;
  return view;
}

// [B, 1, S, half]: the cosines or sines of each position.
absl::StatusOr<Value> Rotations(NodeContext& node, size_t input) {
  Value cache = node.in(input);
  if (node.has(3)) {
    const Value& ids = node.in(3);
    if (ids.rank() != 2 || cache.rank() != 2 || ids.type != ElementType::kInt64) {
      return node.Refuse(302, "its positions or caches have other dimensions");
    }
    ASSIGN_OR_RETURN(const Value positions, node.Dense(ids));
    ASSIGN_OR_RETURN(const Value table, node.Dense(cache));
    ASSIGN_OR_RETURN(cache,
                     node.NewTemporary(cache.type, {ids.size(0), ids.size(1), cache.size(1)}));
    node.Call("embedding", {node.In(positions), node.In(table), node.Out(cache)});
  }
  if (cache.rank() != 3) return node.Refuse(302, "its caches have other dimensions");
  return node.Reshape(cache, {cache.size(0), 1, cache.size(1), cache.size(2)});
}

}  // namespace

absl::Status MapRotaryEmbedding(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(3, 4));
  for (size_t i = 0; i < 3; ++i) RETURN_IF_ERROR(node.CheckFloat(i));
  if (node.in(0).rank() != 3 && node.in(0).rank() != 4) {
    return node.Refuse(302, "its input has neither three nor four dimensions");
  }
  const int64_t heads = node.Int("num_heads", 0);
  const bool interleaved = node.Int("interleaved", 0) != 0;
  ASSIGN_OR_RETURN(Value x, AsHeads(node, node.in(0), heads));
  x = node.Stored(x);
  int64_t rotated = node.Int("rotary_embedding_dim", 0);
  if (rotated == 0) rotated = x.size(3);
  const int64_t half = rotated / 2;
  ASSIGN_OR_RETURN(const Value cosines, Rotations(node, 1));
  ASSIGN_OR_RETURN(const Value sines, Rotations(node, 2));
  const Sizes64 expected = {x.size(0), 1, x.size(2), half};
  if (rotated < 2 || rotated % 2 != 0 || rotated > x.size(3) || cosines.shape != expected ||
      sines.shape != expected) {
    return node.Refuse(302, StrCat("caches of the shapes ", ShapeText(cosines.shape), " and ",
                                   ShapeText(sines.shape), " do not fit ", ShapeText(x.shape)));
  }
  ASSIGN_OR_RETURN(Value out, node.NewResult(0, x.type, node.in(0).shape));
  ASSIGN_OR_RETURN(out, AsHeads(node, out, heads));
  const Value first = Half(x, half, 0, interleaved), second = Half(x, half, 1, interleaved);
  const auto combine = [&](const char* op, const Value& with_cosine, const Value& with_sine,
                           const Value& to) -> absl::Status {
    ASSIGN_OR_RETURN(const Value a, node.Compute("mul", {with_cosine, cosines}));
    ASSIGN_OR_RETURN(const Value b, node.Compute("mul", {with_sine, sines}));
    node.Call(op, {node.In(a), node.In(b), node.Out(to)});
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(combine("sub", first, second, Half(out, half, 0, interleaved)));
  RETURN_IF_ERROR(combine("add", second, first, Half(out, half, 1, interleaved)));
  if (rotated == x.size(3)) return absl::OkStatus();
  Value rest = x, rest_out = out;
  for (Value* const view : {&rest, &rest_out}) {
    view->offset += rotated * view->strides[3];
    view->shape[3] -= rotated;
  }
  node.Call("copy", {node.In(rest), node.Out(rest_out)});
  return absl::OkStatus();
}

}  // namespace resident::onnx
