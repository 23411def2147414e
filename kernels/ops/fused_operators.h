// Built-in operators that a graph's nodes are replaced by (runtime/graph/fuse.h), and for which
// calls they are faster than the operators in whose place they are.
//
// All of them multiply `columns` weights of each row, for one vector or for several. The numbers
// are those of the kernels; gemv_warps_test.cc compares them.
#ifndef RESIDENT_KERNELS_OPS_FUSED_OPERATORS_H_
#define RESIDENT_KERNELS_OPS_FUSED_OPERATORS_H_

#include <string_view>

namespace resident {

struct FusedOperator {
  const char* name;
  // The most vectors of a product. Several need weights of bf16, and rank 2.
  unsigned max_vectors;
  // The most columns: for one vector, which has to fit into a block's memory, and for several.
  unsigned max_columns_of_one;
  unsigned max_columns_of_several;
};

inline constexpr unsigned kAnyColumns = ~0u;
// kMaxDepth of gemv_one_vector.h, and kMaxNormalized of normalized_vector.h.
inline constexpr unsigned kColumnsOfOneVector = 10240;
inline constexpr unsigned kNormalizedColumns = 65536;
// The columns of several vectors are a multiple of this (gemv_several_vectors.h).
inline constexpr unsigned kColumnsOfUnit = 32;

// Groups of quantized weights that are decoded fast behind a norm (gemv_quant_one_vector.h) are a
// whole row, or a power of two of at least 16 bytes.
inline constexpr unsigned kMinGroupBytes = 16;

inline constexpr FusedOperator kFusedOperators[] = {
    {"gemv", 16, kAnyColumns, kAnyColumns},
    {"gemv_quant_bias", 1, kAnyColumns, 0},
    {"gemv_silu_mul", 16, kColumnsOfOneVector, kAnyColumns},
    {"rmsnorm_gemv", 16, kColumnsOfOneVector, kNormalizedColumns},
    {"rmsnorm_gemv_qkv", 1, kColumnsOfOneVector, 0},
    {"rmsnorm_gemv_quant", 1, kColumnsOfOneVector, 0},
    {"rmsnorm_gemv_quant_silu_mul", 1, kColumnsOfOneVector, 0},
    {"rmsnorm_gemv_silu_mul", 16, kColumnsOfOneVector, kNormalizedColumns},
};

// REQUIRES: it is one of them.
constexpr const FusedOperator& FindFusedOperator(std::string_view name) {
  const FusedOperator* op = kFusedOperators;
  while (name != op->name) ++op;
  return *op;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_FUSED_OPERATORS_H_
