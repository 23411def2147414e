// The tables of ONNX operators: how each becomes calls of built-in operators, and how it is
// computed at import if all of its inputs are constants.
//
// A mapping function is called with inputs that are all known. One for a layout operator also maps
// constants. If an operator has a function of both kinds and its inputs are constants, it is
// folded.
//
// Thread safety: constants and functions without state.
//
//   if (const Fold fold = FindFold("Add")) ...
#ifndef RESIDENT_SERVER_ONNX_NODES_OPERATORS_H_
#define RESIDENT_SERVER_ONNX_NODES_OPERATORS_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/onnx/nodes/node_context.h"

namespace resident::onnx {

// Of Attention with four dimensions: 1: in memory, its result is [batch, rows, heads, size].
inline constexpr char kHeadsLastAttribute[] = "resident_heads_last";

using Map = absl::Status (*)(NodeContext& node);
using Fold = absl::StatusOr<Constant> (*)(NodeContext& node);

// An operator of the standard has its name here, another one also its domain: "ai.onnx.ml.Scaler".
//
// Null: no built-in operators compute it.
Map FindMap(std::string_view op);
// Null: it is not computed at import.
Fold FindFold(std::string_view op);

// Why an operator is refused that no function maps, with the code. `text` begins after the name.
struct Refusal {
  int code = 301;
  const char* text;
};
Refusal FindRefusal(std::string_view op);

// The functions, by file.
// map_elementwise.cc
absl::Status MapUnary(NodeContext& node);
absl::Status MapFunction(NodeContext& node);
absl::Status MapMod(NodeContext& node);
absl::Status MapComparison(NodeContext& node);
absl::Status MapWhere(NodeContext& node);
absl::Status MapOneHot(NodeContext& node);
absl::Status MapTrilu(NodeContext& node);
// What Trilu keeps of the last two dimensions of its input. E302: it has fewer.
struct Triangle {
  bool Keeps(int64_t row, int64_t column) const {
    return upper ? column - row >= k : column - row <= k;  // Without overflow for any k.
  }
  int64_t k = 0;
  bool upper = true;
};
absl::StatusOr<Triangle> ReadTriangle(NodeContext& node);
absl::Status MapBinary(NodeContext& node);
absl::Status MapVariadic(NodeContext& node);
absl::Status MapCast(NodeContext& node);
absl::Status MapPow(NodeContext& node);
absl::Status MapClip(NodeContext& node);
absl::Status MapActivation(NodeContext& node);
absl::Status MapComposed(NodeContext& node);
absl::Status MapLogical(NodeContext& node);
// map_layout.cc
absl::Status MapIdentity(NodeContext& node);
absl::Status MapShape(NodeContext& node);
absl::Status MapReshape(NodeContext& node);
absl::Status MapSqueeze(NodeContext& node);
absl::Status MapUnsqueeze(NodeContext& node);
absl::Status MapTranspose(NodeContext& node);
absl::Status MapSlice(NodeContext& node);
absl::Status MapSplit(NodeContext& node);
absl::Status MapExpand(NodeContext& node);
absl::Status MapEyeLike(NodeContext& node);
// map_copy.cc
absl::Status MapConcat(NodeContext& node);
absl::Status MapPad(NodeContext& node);
absl::Status MapTile(NodeContext& node);
absl::Status MapDepthAndSpace(NodeContext& node);
absl::Status MapResize(NodeContext& node);
absl::Status MapGather(NodeContext& node);
absl::Status MapGatherElements(NodeContext& node);
absl::Status MapGatherNd(NodeContext& node);
absl::Status MapArrayFeatureExtractor(NodeContext& node);
// map_matrix.cc
absl::Status MapMatMul(NodeContext& node);
absl::Status MapGemm(NodeContext& node);
absl::Status MapEinsum(NodeContext& node);
// out[r] = x[r] b + bias for vectors and the transposed form [N, K] of b; out is dense.
absl::Status MultiplyVectors(NodeContext& node, const Value& x, const Value& transposed,
                             const GraphWriter::Argument& bias, const Value& out);
// map_reduction.cc
absl::Status MapReduce(NodeContext& node);
absl::Status MapArg(NodeContext& node);
// map_normalization.cc
absl::Status MapSoftmax(NodeContext& node);
absl::Status MapLayerNormalization(NodeContext& node);
absl::Status MapRmsNormalization(NodeContext& node);
absl::Status MapBatchNormalization(NodeContext& node);
absl::Status MapInstanceNormalization(NodeContext& node);
absl::Status MapGroupNormalization(NodeContext& node);
absl::Status MapLpNormalization(NodeContext& node);
absl::Status MapMeanVarianceNormalization(NodeContext& node);
// map_attention.cc
absl::Status MapAttention(NodeContext& node);
absl::Status MapRotaryEmbedding(NodeContext& node);
// map_window.cc
absl::Status MapPool(NodeContext& node);
absl::Status MapGlobalPool(NodeContext& node);
absl::Status MapConv(NodeContext& node);
absl::Status MapConvTranspose(NodeContext& node);
// map_ml.cc
absl::Status MapScaler(NodeContext& node);
absl::Status MapImputer(NodeContext& node);
absl::Status MapBinarizer(NodeContext& node);
absl::Status MapNormalizer(NodeContext& node);
absl::Status MapLinearModel(NodeContext& node);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_NODES_OPERATORS_H_
