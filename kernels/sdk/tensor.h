// Tensor<T>: a typed view of device memory, as an operator sees it.
//
//   Tensor<const float> x = args.tensor<const float>(0);
//   float v = x[i];            // Element i of a dense tensor, row-major.
//   float w = x.at(row, col);  // By index, through the strides.
//
// A view: it owns nothing. Shape and strides are in elements, outermost first.
// Built with RESIDENT_CHECKS=1, an index outside the tensor is reported as
// CompletionStatus::kOutOfBounds and reads or writes a dummy element instead.
#ifndef RESIDENT_KERNELS_SDK_TENSOR_H_
#define RESIDENT_KERNELS_SDK_TENSOR_H_

#include "kernels/layout/task.h"
#include "kernels/sdk/platform.h"

#ifndef RESIDENT_CHECKS
#define RESIDENT_CHECKS 0
#endif

namespace resident {

template <typename T>
class Tensor {
 public:
  RESIDENT_HOST_DEVICE Tensor(u64 address, i64 size)
      : data_(reinterpret_cast<T*>(address)), size_(size), described_(nullptr) {}

  RESIDENT_HOST_DEVICE explicit Tensor(const TensorArgument& argument)
      : data_(reinterpret_cast<T*>(argument.address)), size_(1), described_(&argument) {
#if defined(__CUDACC__)
#pragma unroll 1
#endif
    for (u32 i = 0; i < argument.rank; ++i) size_ *= argument.shape[i];
  }

  RESIDENT_HOST_DEVICE T* data() const {
#if defined(__CUDA_ARCH__)
    __builtin_assume(__isGlobal(data_));  // Global, not generic, loads and stores.
#endif
    return data_;
  }
  // Number of elements.
  RESIDENT_HOST_DEVICE i64 size() const { return size_; }
  RESIDENT_HOST_DEVICE u32 rank() const { return described_ ? described_->rank : 1; }
  RESIDENT_HOST_DEVICE i64 shape(u32 i) const { return described_ ? described_->shape[i] : size_; }
  RESIDENT_HOST_DEVICE i64 stride(u32 i) const { return described_ ? described_->strides[i] : 1; }

  // Element type as sent. An operator that takes several dtypes switches on it.
  RESIDENT_HOST_DEVICE DType dtype() const { return described_ ? described_->dtype : DType::kF32; }

  // Whether elements stand densely, row-major, so that data()[0, size()) is all.
  RESIDENT_HOST_DEVICE bool dense() const {
    i64 expected = 1;
    for (u32 i = rank(); i-- > 0;) {
      if (shape(i) != 1 && stride(i) != expected) return false;
      expected *= shape(i);
    }
    return true;
  }

  // Element i of a dense tensor.
  RESIDENT_HOST_DEVICE T& operator[](i64 i) const { return data()[Checked(i)]; }

  // Element at the given index, one value for each dimension.
  template <typename... Index>
  RESIDENT_HOST_DEVICE T& at(Index... index) const {
    const i64 indices[] = {static_cast<i64>(index)...};
    i64 offset = 0;
    for (u32 i = 0; i < sizeof...(Index); ++i) offset += CheckedIn(indices[i], i) * stride(i);
    return data()[offset];
  }

 private:
  RESIDENT_HOST_DEVICE i64 Checked(i64 i) const {
#if RESIDENT_CHECKS
    if (i < 0 || i >= size_) return ReportOutOfBounds();
#endif
    return i;
  }
  RESIDENT_HOST_DEVICE i64 CheckedIn(i64 i, u32 dimension) const {
#if RESIDENT_CHECKS
    if (i < 0 || i >= shape(dimension)) return ReportOutOfBounds();
#endif
    return i;
  }
#if RESIDENT_CHECKS
  // Defined with Block, whose status it sets; returns the index of element 0.
  RESIDENT_HOST_DEVICE i64 ReportOutOfBounds() const;
#endif

  T* data_;
  i64 size_;
  const TensorArgument* described_;
};

}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_TENSOR_H_
