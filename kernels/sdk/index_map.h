// IndexMap: offsets of element i of a shape in tensors with any strides that broadcast to it.
//
//   IndexMap<2> map;
//   map.Start(out);                // The result's shape.
//   map.Add(0, x), map.Add(1, y);  // Operands that broadcast to it.
//   map.Finish();
//   i64 offsets[2];
//   map.Offsets(i, offsets);       // Offsets in operands 0 and 1, in elements.
//
// Dimensions of size 1 are removed, and adjacent dimensions are merged if every operand has one
// stride for both, so that dense operands need no division. All computations use 64 bits; divisions
// use 32 bits if all indices fit.
//
// Thread safety: one thread builds it; then all threads may call const members.
#ifndef RESIDENT_KERNELS_SDK_INDEX_MAP_H_
#define RESIDENT_KERNELS_SDK_INDEX_MAP_H_

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"

namespace resident {

template <i32 kOperands>
class IndexMap {
 public:
  // `view` is a Tensor, or a type with the same rank(), shape(d) and stride(d).
  template <typename View>
  RESIDENT_HOST_DEVICE void Start(const View& view) {
    rank_ = view.rank();
    size_ = 1;
    RESIDENT_UNROLL(1)
    for (u32 d = 0; d < rank_; ++d) {
      shape_[d] = view.shape(d);
      size_ *= shape_[d];
    }
  }

  // REQUIRES: the operand's shape broadcasts to that of Start.
  template <typename View>
  RESIDENT_HOST_DEVICE void Add(i32 operand, const View& view) {
    const u32 missing = rank_ - view.rank();
    RESIDENT_UNROLL(1)
    for (u32 d = 0; d < rank_; ++d) {
      const bool repeats = d < missing || (view.shape(d - missing) == 1 && shape_[d] != 1);
      strides_[d][operand] = repeats ? 0 : view.stride(d - missing);
    }
  }

  RESIDENT_HOST_DEVICE void Finish() {
    u32 kept = 0;  // Dimensions [0, kept) are final.
    RESIDENT_UNROLL(1)
    for (u32 d = 0; d < rank_; ++d) {
      if (shape_[d] == 1) continue;
      if (kept > 0 && Continues(kept - 1, d)) {
        shape_[kept - 1] *= shape_[d];
        RESIDENT_UNROLL(1)
        for (i32 k = 0; k < kOperands; ++k) strides_[kept - 1][k] = strides_[d][k];
        continue;
      }
      shape_[kept] = shape_[d];
      RESIDENT_UNROLL(1)
      for (i32 k = 0; k < kOperands; ++k) strides_[kept][k] = strides_[d][k];
      ++kept;
    }
    rank_ = kept;
    dense_ = kept <= 1;
    RESIDENT_UNROLL(1)
    for (i32 k = 0; k < kOperands && kept == 1; ++k) dense_ = dense_ && strides_[0][k] == 1;
    narrow_ = size_ <= 0xffffffffLL;
  }

  // Number of elements of the result.
  RESIDENT_HOST_DEVICE i64 size() const { return size_; }
  // Whether element i is at offset i in every operand.
  RESIDENT_HOST_DEVICE bool dense() const { return dense_; }
  // Number of remaining dimensions.
  RESIDENT_HOST_DEVICE u32 rank() const { return rank_; }

  // REQUIRES: 0 <= i < size().
  RESIDENT_HOST_DEVICE void Offsets(i64 i, i64 (&offsets)[kOperands]) const {
    RESIDENT_UNROLL(kUnroll)
    for (i32 k = 0; k < kOperands; ++k) offsets[k] = 0;
    if (rank_ == 0) return;
    if (narrow_) {
      Walk<u32>(i, offsets);
    } else {
      Walk<u64>(i, offsets);
    }
  }

 private:
  // More offsets than these do not fit in a thread's registers, and are kept in memory.
  static constexpr i32 kUnroll = kOperands <= 5 ? kOperands : 1;

  // Whether dimensions `outer` and `inner` can be merged for every operand.
  RESIDENT_HOST_DEVICE bool Continues(u32 outer, u32 inner) const {
    RESIDENT_UNROLL(1)
    for (i32 k = 0; k < kOperands; ++k) {
      if (strides_[outer][k] != strides_[inner][k] * shape_[inner]) return false;
    }
    return true;
  }

  template <typename Index>
  RESIDENT_HOST_DEVICE void Walk(i64 i, i64 (&offsets)[kOperands]) const {
    Index rest = static_cast<Index>(i);
    RESIDENT_UNROLL(1)
    for (u32 d = rank_ - 1; d > 0; --d) {
      const Index extent = static_cast<Index>(shape_[d]);
      const Index outer = rest / extent;
      const i64 index = static_cast<i64>(rest - outer * extent);
      RESIDENT_UNROLL(kUnroll)
      for (i32 k = 0; k < kOperands; ++k) offsets[k] += index * strides_[d][k];
      rest = outer;
    }
    RESIDENT_UNROLL(kUnroll)
    for (i32 k = 0; k < kOperands; ++k) offsets[k] += static_cast<i64>(rest) * strides_[0][k];
  }

  u32 rank_;
  bool dense_;
  bool narrow_;
  i64 size_;
  i64 shape_[kMaxRank];
  i64 strides_[kMaxRank][kOperands];
};

}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_INDEX_MAP_H_
