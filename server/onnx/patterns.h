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
//
// The last of the nodes is replaced. The others remain for what else reads their results; if there
// is nothing, they are not mapped (FindNeeded in lowering.cc).
//
// Thread safety: a pure function.
//
//   ReplacePatterns(constants, &graph);
#ifndef RESIDENT_SERVER_ONNX_PATTERNS_H_
#define RESIDENT_SERVER_ONNX_PATTERNS_H_

#include <functional>
#include <string>

#include "server/onnx/onnx.pb.h"
#include "server/onnx/values/constant.h"

namespace resident::onnx {

// `find_constant`: null: the value is computed, or given by a request. REQUIRES: the nodes are in
// topological order, and each name is written once.
void ReplacePatterns(const std::function<const Constant*(const std::string&)>& find_constant,
                     GraphProto* graph);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_PATTERNS_H_
