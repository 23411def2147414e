// ReplacePatterns: nodes that together compute what one node of a later version of the standard
// does become that node.
//
//   written                                               in its place
//   x * 0.5 * (1 + Erf(x / sqrt(2))), in any order        Gelu
//   x minus its mean, divided by the root of the mean     LayerNormalization
//     of its squares and an epsilon, times a weight,
//     with a bias or without, over the last dimension
//   MatMul(Softmax(MatMul(q, k^T) times a number + mask), Attention
//     v), or without a mask, where Transpose makes q, k^T
//     and v of four dimensions
//   x Wq + bq, x Wk + bk and x Wv + bv, of which such an    one product with the three weights
//   beside
//     Attention reads the columns as heads, with biases       each other, and a Split of it
//     or without
//
// An Attention whose heads are only moved behind each other has an attribute for that
// (kHeadsLastAttribute). The last of the nodes is replaced. The others remain for what else reads
// their results; if there is nothing, they are not mapped (FindNeeded in lowering.cc).
//
// Thread safety: a pure function.
//
//   ReplacePatterns(&constants, &graph);
#ifndef RESIDENT_SERVER_ONNX_PATTERNS_H_
#define RESIDENT_SERVER_ONNX_PATTERNS_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "server/onnx/onnx.pb.h"
#include "server/onnx/values/constant.h"

namespace resident::onnx {

// `constants`: the model's, to which those of merged products are added. REQUIRES: the nodes are in
// topological order, and each name is written once.
void ReplacePatterns(absl::flat_hash_map<std::string, Constant>* constants, GraphProto* graph);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_PATTERNS_H_
