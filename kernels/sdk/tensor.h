// Tensor<T>: a typed view of device memory for operators.
//
//   Tensor<const float> x = args.tensor<const float>(0);
//   float v = x[i];            // Element i of a dense tensor, row-major.
//   float w = x.at(row, col);  // The element at these indices; uses the strides.
//
// It does not own the memory. Shape and strides are in elements, outermost first.
//
// Only the checked build (checks.h) checks bounds, in [] and at(). Accesses through data()
// are never checked.
#ifndef RESIDENT_KERNELS_SDK_TENSOR_H_
#define RESIDENT_KERNELS_SDK_TENSOR_H_

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"
#include "kernels/sdk/checks.h"

namespace resident {
RESIDENT_SDK_BEGIN

#if RESIDENT_CHECKED
// An argument of a task, as Args reads it for a tensor or a scalar.
struct CheckedArgument {
  u64 address;
  i64 size;
  const TensorArgument* described;
  // Bytes of an element; kAnyElementBytes: accesses may have any size.
  u32 element_bytes;
};
inline constexpr u32 kAnyElementBytes = 255;

// sizeof(T); kAnyElementBytes for the incomplete type Any, whose elements are not accessed.
template <typename T>
RESIDENT_HOST_DEVICE constexpr u32 BytesOfElement() {
  if constexpr (requires { sizeof(T); }) {
    return sizeof(T);
  } else {
    return kAnyElementBytes;
  }
}
#endif

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

#if RESIDENT_CHECKED
  // Argument `argument` of the block's task.
  RESIDENT_HOST_DEVICE Tensor(const CheckedArgument& from, BlockState* state, u32 argument)
      : data_(reinterpret_cast<T*>(from.address)),
        size_(from.size),
        described_(from.described),
        state_(state),
        argument_(static_cast<u8>(argument)),
        element_bytes_(static_cast<u8>(from.element_bytes)) {
    SetLimit();
  }
#endif

  RESIDENT_HOST_DEVICE T* data() const {
#if defined(__CUDA_ARCH__)
    __builtin_assume(__isGlobal(data_));  // For global instead of generic loads and stores.
#endif
    return data_;
  }
  // Number of elements.
  RESIDENT_HOST_DEVICE i64 size() const { return size_; }
  RESIDENT_HOST_DEVICE u32 rank() const { return described_ ? described_->rank : 1; }
  RESIDENT_HOST_DEVICE i64 shape(u32 i) const { return described_ ? described_->shape[i] : size_; }
  RESIDENT_HOST_DEVICE i64 stride(u32 i) const { return described_ ? described_->strides[i] : 1; }

  // Element type in the request. An operator that accepts several dtypes switches on it.
  RESIDENT_HOST_DEVICE DType dtype() const { return described_ ? described_->dtype : DType::kF32; }

  // Whether elements are dense in row-major order: data()[0, size()) are all elements.
  RESIDENT_HOST_DEVICE bool dense() const {
    i64 expected = 1;
    for (u32 i = rank(); i-- > 0;) {
      if (shape(i) != 1 && stride(i) != expected) return false;
      expected *= shape(i);
    }
    return true;
  }

  // The same tensor with elements of another type.
  template <typename U>
  RESIDENT_HOST_DEVICE Tensor<U> as() const {
    Tensor<U> other(reinterpret_cast<u64>(data_), size_);
    other.described_ = described_;
#if RESIDENT_CHECKED
    other.state_ = state_;
    other.argument_ = argument_;
    other.element_bytes_ = element_bytes_;
    other.SetLimit();
#endif
    return other;
  }

  // Element i of a dense tensor.
  RESIDENT_HOST_DEVICE T& operator[](i64 i) const {
#if RESIDENT_CHECKED
    if (static_cast<u64>(i) >= limit_ && state_ != nullptr) {
      return RefuseElement(ViolationKind::kElement, 0, i, size_);
    }
#endif
    return data()[i];
  }

  // Element at the given index, one value for each dimension.
  template <typename... Index>
  RESIDENT_HOST_DEVICE T& at(Index... index) const {
    const i64 indices[] = {static_cast<i64>(index)...};
    i64 offset = 0;
#if RESIDENT_CHECKED
    if (state_ != nullptr) {
      if (sizeof...(Index) != rank()) {
        return RefuseElement(ViolationKind::kRank, 0, sizeof...(Index), rank());
      }
      for (u32 i = 0; i < sizeof...(Index); ++i) {
        if (!ElementSizeIsRight() || static_cast<u64>(indices[i]) >= static_cast<u64>(shape(i))) {
          return RefuseElement(ViolationKind::kIndex, i, indices[i], shape(i));
        }
      }
    }
#endif
    for (u32 i = 0; i < sizeof...(Index); ++i) offset += indices[i] * stride(i);
    return data()[offset];
  }

 private:
  template <typename U>
  friend class Tensor;

#if RESIDENT_CHECKED
  RESIDENT_HOST_DEVICE bool ElementSizeIsRight() const {
    return element_bytes_ == kAnyElementBytes || element_bytes_ == BytesOfElement<T>();
  }
  RESIDENT_HOST_DEVICE void SetLimit() {
    limit_ = ElementSizeIsRight() ? static_cast<u64>(size_) : 0;
  }
  // Reports the violation and returns a substitute for an element that does not exist, or that has
  // another size.
  RESIDENT_HOST_DEVICE T& RefuseElement(ViolationKind kind, u32 dimension, i64 index,
                                        i64 limit) const {
    return *static_cast<T*>(
        Refuse(state_, kind, argument_, dimension, index, limit, sizeof(T),
               element_bytes_ == kAnyElementBytes ? u32{sizeof(T)} : u32{element_bytes_}));
  }
#endif

  T* data_;
  i64 size_;
  const TensorArgument* described_;
#if RESIDENT_CHECKED
  BlockState* state_ = nullptr;  // Null for a tensor that the operator created: it is not checked.
  u8 argument_ = 0;
  u8 element_bytes_ = kAnyElementBytes;
  // [] accepts elements below this: none if the argument's elements have another size than T.
  u64 limit_ = 0;
#endif
};

RESIDENT_SDK_END
}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_TENSOR_H_
