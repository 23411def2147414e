// load and store: access to elements of a tensor whose type is known only at run time.
//
//   auto x = args.tensor<const Any>(0);       // "x: in f32|f16|bf16[*S]"
//   auto out = args.tensor<Any>(1);
//   store(out, i, 2.0f * load<float>(x, i));
//
// Any has no size: a Tensor<Any> has a shape and a dtype(). Its elements are accessed with
// load and store, or with as<T>() after a check of dtype().
#ifndef RESIDENT_KERNELS_SDK_ELEMENT_H_
#define RESIDENT_KERNELS_SDK_ELEMENT_H_

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"
#include "kernels/sdk/half.h"
#include "kernels/sdk/tensor.h"

namespace resident {
RESIDENT_SDK_BEGIN

// An element of any type.
struct Any;

// Calls f(T{}), where T is the type of elements of `dtype`.
template <typename F>
RESIDENT_HOST_DEVICE void visit(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kF16:
      return f(Half(0.0f));
    case DType::kBF16:
      return f(BFloat16(0.0f));
    case DType::kF64:
      return f(double{});
    case DType::kI32:
      return f(i32{});
    case DType::kI64:
      return f(i64{});
    case DType::kU8:
      return f(u8{});
    case DType::kI8:
      return f(i8{});
    case DType::kU32:
      return f(u32{});
    case DType::kInvalid:
      return;
  }
}

// Reads element i of a dense tensor and converts it to To.
template <typename To, typename T>
RESIDENT_HOST_DEVICE To load(const Tensor<T>& tensor, i64 i) {
  To value{};
  visit(tensor.dtype(), [&](auto element) {
    using From = decltype(element);
    value = static_cast<To>(tensor.template as<const From>()[i]);
  });
  return value;
}

// Writes element i of a dense tensor. Half and BFloat16 round as described in half.h; other
// types are converted as in C++.
template <typename T, typename From>
RESIDENT_HOST_DEVICE void store(const Tensor<T>& tensor, i64 i, From value) {
  visit(tensor.dtype(), [&](auto element) {
    using To = decltype(element);
    tensor.template as<To>()[i] = static_cast<To>(value);
  });
}

RESIDENT_SDK_END
}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_ELEMENT_H_
