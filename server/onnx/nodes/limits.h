// The limits of a model, of what is computed when it is imported, and of its graph. What exceeds
// one is refused (codes 103 and 501).
//
// Thread safety: constants.
//
//   if (depth > kMaxSubgraphDepth) return ModelError(103, ...);
#ifndef RESIDENT_SERVER_ONNX_NODES_LIMITS_H_
#define RESIDENT_SERVER_ONNX_NODES_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace resident::onnx {

// Limits of a model.
// The tables of operators (operators.cc) know the forms of these versions.
inline constexpr int64_t kFirstOpset = 7;
inline constexpr int64_t kLastOpset = 28;
inline constexpr uint64_t kMaxModelBytes = (uint64_t{1} << 31) - 1;
inline constexpr int64_t kMaxNodes = 65'536;  // With those of functions and subgraphs.
inline constexpr int kMaxSubgraphDepth = 4;
// Of both branches of an If whose condition is computed.
inline constexpr int kMaxSelectedNodes = 64;
inline constexpr int kMaxFunctionDepth = 16;
inline constexpr size_t kMaxNameBytes = 512;
inline constexpr size_t kMaxRank = 8;
// Of what is computed at import: the bytes of one result and of all, and elements of all.
inline constexpr int64_t kMaxFoldedBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxAllFoldedBytes = int64_t{512} << 20;
inline constexpr int64_t kMaxFoldedElements = 100'000'000;
// Nodes and tensors of a graph, and bytes of all its activations.
inline constexpr int64_t kMaxGraphNodes = 65'536;
inline constexpr int64_t kMaxActivationBytes = int64_t{1} << 40;
inline constexpr size_t kMaxFindings = 1'000;

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_NODES_LIMITS_H_
