// A tensor of four dimensions as an operand in the block's memory, where the threads share it.
#ifndef RESIDENT_KERNELS_OPS_OPERAND_H_
#define RESIDENT_KERNELS_OPS_OPERAND_H_

#include "kernels/ops/numbers.h"

namespace resident {

struct Operand {
  u64 address;
  i64 strides[4];
  DType dtype;

  RESIDENT_DEVICE void Read(const Tensor<const Any>& tensor) {
    address = AddressOf(tensor);
    dtype = tensor.dtype();
    RESIDENT_UNROLL(1)
    for (i32 d = 0; d < 4; ++d) strides[d] = tensor.stride(d);
  }
  // Of the first element with these indices in the first three dimensions.
  RESIDENT_DEVICE i64 Offset(i64 i, i64 j, i64 k) const {
    return i * strides[0] + j * strides[1] + k * strides[2];
  }
};

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_OPERAND_H_
