// Completes the arguments of a node for the present values of the scalars (graph_task.h). For each
// node they equal those of the task that the front end would submit in its place
// (tests/graph/lowering_test.cc).
//
// Thread safety: pure functions.
//
//   FillNodeArguments(image, node, scalars, record, &block);
//   const u64 chunks = CountNodeChunks(image, node, op, scalars, workers);
#ifndef RESIDENT_KERNELS_GRAPH_GRAPH_ARGUMENTS_H_
#define RESIDENT_KERNELS_GRAPH_GRAPH_ARGUMENTS_H_

#include "kernels/graph/chunk_rule.h"
#include "kernels/graph/graph_task.h"
#include "kernels/graph/scalar_bits.h"
#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"

// A function that a GPU's compiler does not copy into its callers.
#if RESIDENT_GPU
#define RESIDENT_OUT_OF_LINE [[maybe_unused]] static __host__ __device__ __noinline__
#else
#define RESIDENT_OUT_OF_LINE inline
#endif

namespace resident {

// The part of an image at this offset.
template <typename T>
RESIDENT_HOST_DEVICE const T* ImagePart(const GraphImage& image, u64 at) {
  return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(&image) + at);
}

RESIDENT_HOST_DEVICE void SetDenseStrides(TensorArgument* tensor) {
  i64 stride = 1;
  for (u32 d = tensor->rank; d-- > 0;) {
    tensor->strides[d] = stride;
    stride *= tensor->shape[d];
  }
}

// Gives a tensor whose elements are adjacent the strides of a dense one: dimensions of one element
// may have had others.
RESIDENT_HOST_DEVICE void NormalizeStrides(TensorArgument* tensor) {
  i64 expected = 1;
  bool dense = true;
  bool empty = false;
  for (u32 d = tensor->rank; d-- > 0;) {
    dense &= tensor->shape[d] == 1 || tensor->strides[d] == expected;
    empty |= tensor->shape[d] == 0;
    expected *= tensor->shape[d];
  }
  if (dense || empty) SetDenseStrides(tensor);
}

// Applies patches to the templates of a node's arguments. `scalars`: values by index. `record`:
// address of the records of the present step.
RESIDENT_OUT_OF_LINE void PatchArguments(const GraphPatch* patches, u32 count,
                                         const double* scalars, u64 record, ArgumentBlock* block) {
  RESIDENT_UNROLL(1)
  for (u32 i = 0; i < count; ++i) {
    const GraphPatch& patch = patches[i];
    Argument& argument = block->arguments[patch.argument];
    switch (patch.kind) {
      case GraphPatchKind::kValue: {
        const double value = ScaleScalar(patch.factor, scalars[patch.scalar], patch.addend);
        argument.scalar_bits = IsFloatType(patch.dtype)
                                   ? FloatBits(patch.dtype, value)
                                   : IntegerBits(patch.dtype, static_cast<i64>(value));
        break;
      }
      case GraphPatchKind::kSize:
        argument.tensor.shape[patch.dimension] = static_cast<i64>(scalars[patch.scalar]);
        break;
      case GraphPatchKind::kStrides:
        NormalizeStrides(&argument.tensor);
        break;
      case GraphPatchKind::kRecord:
        argument.tensor.address = record + static_cast<u64>(patch.addend);
        SetDenseStrides(&argument.tensor);
        break;
    }
  }
}

// The arguments of a node. `scalars` and `record` as above.
RESIDENT_HOST_DEVICE void FillNodeArguments(const GraphImage& image, const GraphNode& node,
                                            const double* scalars, u64 record,
                                            ArgumentBlock* block) {
  const Argument* const from = ImagePart<Argument>(image, image.arguments_at) + node.first_argument;
  for (u32 i = 0; i < node.arguments; ++i) block->arguments[i] = from[i];
  PatchArguments(ImagePart<GraphPatch>(image, image.patches_at) + node.first_patch, node.patches,
                 scalars, record, block);
}

// The number of chunks of a node whose arguments are complete. `workers`: those of the engine.
RESIDENT_OUT_OF_LINE u64 CountChunksOf(const ArgumentBlock& block, const GraphOperator& op,
                                       u64 workers) {
  if (op.split_parameter < 0) return 1;
  u64 chunks = 1;
  RESIDENT_UNROLL(1)
  for (bool other = false;; other = true) {
    const TensorArgument& tensor =
        block.arguments[other ? op.other_parameter : op.split_parameter].tensor;
    const u32 dimensions = !other && op.by_first_dim != 0 && tensor.rank > 1 ? 1 : tensor.rank;
    u64 items = 1;
    RESIDENT_UNROLL(1)
    for (u32 d = 0; d < dimensions; ++d) items *= static_cast<u64>(tensor.shape[d]);
    const u64 count = CountChunks(items, other ? op.other_grain : op.grain, op.limit, workers);
    if (count > chunks) chunks = count;
    if (other || op.other_grain == 0) return chunks;
  }
}

// The same before they are complete. `workers` as above.
RESIDENT_HOST_DEVICE u64 CountNodeChunks(const GraphImage& image, const GraphNode& node,
                                         const GraphOperator& op, const double* scalars,
                                         u64 workers) {
  if (op.split_parameter < 0) return 1;
  const auto count_items = [&](i32 index, bool by_first_dim) {
    const auto parameter = static_cast<u32>(index);
    const TensorArgument& tensor =
        ImagePart<Argument>(image, image.arguments_at)[node.first_argument + parameter].tensor;
    const u32 dimensions = by_first_dim && tensor.rank > 1 ? 1 : tensor.rank;
    i64 sizes[kMaxRank];
    for (u32 d = 0; d < dimensions; ++d) sizes[d] = tensor.shape[d];
    const GraphPatch* const patches = ImagePart<GraphPatch>(image, image.patches_at);
    for (u32 i = 0; i < node.patches; ++i) {
      const GraphPatch& patch = patches[node.first_patch + i];
      if (patch.kind == GraphPatchKind::kSize && patch.argument == parameter) {
        sizes[patch.dimension] = static_cast<i64>(scalars[patch.scalar]);
      }
    }
    u64 items = 1;
    for (u32 d = 0; d < dimensions; ++d) items *= static_cast<u64>(sizes[d]);
    return items;
  };
  u64 chunks = CountChunks(count_items(op.split_parameter, op.by_first_dim != 0), op.grain,
                           op.limit, workers);
  if (op.other_grain != 0) {
    const u64 others =
        CountChunks(count_items(op.other_parameter, false), op.other_grain, op.limit, workers);
    if (others > chunks) chunks = others;
  }
  return chunks;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_GRAPH_GRAPH_ARGUMENTS_H_
