// Computes from strides whether a tensor is dense, whether its elements overlap, which bytes
// it covers, and whether two tensors share bytes.
//
// Thread safety: pure functions.
//
//   if (!IsInjective(shape, strides)) return errors::OverlappingStrides(...);
//   if (MayOverlap(out, x)) return errors::BuffersOverlap(...);
#ifndef RESIDENT_RUNTIME_MODEL_STRIDED_VIEW_H_
#define RESIDENT_RUNTIME_MODEL_STRIDED_VIEW_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/layout/task.h"

namespace resident {

// Whether the strides, in elements, are those of a row-major tensor without gaps. Strides of
// dimensions of size 1 do not matter.
bool IsDense(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides);

// Whether it is certain that no two elements overlap: each stride is larger than the total reach of
// the dimensions with smaller strides. REQUIRES: no stride is negative.
bool IsInjective(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides);

// Larger than every memory.
inline constexpr uint64_t kMaxExtent = uint64_t{1} << 61;

// The bytes that a tensor's elements cover: from `before` bytes before its address, to `from` bytes
// after it. Larger values are kMaxExtent.
struct ByteExtent {
  uint64_t before = 0;
  uint64_t from = 0;
};
// REQUIRES: no dimension is 0 or above 2^60; no stride is outside of +-2^60.
ByteExtent FindExtent(DType dtype, absl::Span<const int64_t> shape,
                      absl::Span<const int64_t> strides);

// Whether two tensors with elements may share bytes. Views of one buffer that are side by side in
// every period of a common stride, such as two groups of columns of a matrix, do not; of views
// whose strides have no such relation, true if their extents overlap. REQUIRES: as FindExtent, and
// the extents are within 64-bit addresses.
bool MayOverlap(const TensorArgument& a, const TensorArgument& b);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_STRIDED_VIEW_H_
