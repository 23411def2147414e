// This header makes element-wise operators for numbers: float32, float16, bfloat16, float64 and
// int32, strided and broadcast.
//
//   struct Add {
//     template <typename T>
//     RESIDENT_DEVICE T operator()(const T* v) const { return Sum(v[0], v[1]); }
//   };
//   RESIDENT_OPERATOR(add)(Block& block, const Args& args) { Numbers<2>(block, args, Add{}); }
//
// f gets the values of the inputs and is called with one of three types:
//
//   i32     if all operands are int32. Sum, Difference and Product wrap.
//   float   if all operands are float32, float16 or bfloat16.
//   double  otherwise. The result is converted to the output's dtype (Convert).
#ifndef RESIDENT_KERNELS_OPS_NUMBERS_H_
#define RESIDENT_KERNELS_OPS_NUMBERS_H_

#include "kernels/sdk/elementwise.h"
#include "kernels/sdk/operator.h"

namespace resident {

// Code that only some tasks run is kept out of the functions of tasks that are alone in the ring,
// which then need few registers.
#if RESIDENT_GPU
#define RESIDENT_NOINLINE static __device__ __noinline__
#else
#define RESIDENT_NOINLINE static __attribute__((noinline))
#endif

template <typename T>
inline constexpr bool kIsInteger = T(0.5) == T(0);

// Of the first element, for ElementAt and functions that load and store elements of any type.
template <typename T>
RESIDENT_DEVICE u64 AddressOf(const Tensor<T>& tensor) {
  return reinterpret_cast<u64>(tensor.data());
}

// --- Arithmetic that wraps for integers ---------------------------------------------------------

RESIDENT_DEVICE float Sum(float x, float y) { return x + y; }
RESIDENT_DEVICE double Sum(double x, double y) { return x + y; }
RESIDENT_DEVICE i32 Sum(i32 x, i32 y) { return static_cast<i32>(u32(x) + u32(y)); }
RESIDENT_DEVICE float Difference(float x, float y) { return x - y; }
RESIDENT_DEVICE double Difference(double x, double y) { return x - y; }
RESIDENT_DEVICE i32 Difference(i32 x, i32 y) { return static_cast<i32>(u32(x) - u32(y)); }
RESIDENT_DEVICE float Product(float x, float y) { return x * y; }
RESIDENT_DEVICE double Product(double x, double y) { return x * y; }
RESIDENT_DEVICE i32 Product(i32 x, i32 y) { return static_cast<i32>(u32(x) * u32(y)); }
// The first NaN, if an argument is NaN.
template <typename T>
RESIDENT_DEVICE T Larger(T x, T y) {
  return x > y || x != x ? x : y;
}
template <typename T>
RESIDENT_DEVICE T Smaller(T x, T y) {
  return x < y || x != x ? x : y;
}

// --- Conversions --------------------------------------------------------------------------------

// The limits of an integer type, as values of type From; the upper one is exclusive.
template <typename To, typename From>
RESIDENT_DEVICE From UpperLimit() {
  const From half = static_cast<From>(u64{1} << (8 * sizeof(To) - 2));
  return To(-1) < To(0) ? half * 2 : half * 4;
}
template <typename To, typename From>
RESIDENT_DEVICE From LowerLimit() {
  return To(-1) < To(0) ? -UpperLimit<To, From>() : From(0);
}

// Converts between any two types of elements. Floating point to an integer: towards zero, the
// nearest limit if the value is out of range, 0 for NaN. Between integers the low bits are kept. To
// fewer bits of floating point: to nearest, ties to even; from float64 to 16 bits by way of
// float32.
template <typename To, typename From>
RESIDENT_DEVICE To Convert(From value) {
  if constexpr (sizeof(From) == 2) {
    return Convert<To>(static_cast<float>(value));
  } else if constexpr (sizeof(To) == 2) {
    return To(static_cast<float>(value));
  } else if constexpr (kIsInteger<To> && !kIsInteger<From>) {
    if (value != value) return To(0);
    if (value <= LowerLimit<To, From>()) return static_cast<To>(LowerLimit<To, From>());
    if (value >= UpperLimit<To, From>()) {
      return static_cast<To>(~u64{0} >> (64 - 8 * sizeof(To) + (To(-1) < To(0) ? 1 : 0)));
    }
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// Calls f(T{}) with the type of elements of `dtype`, which is a number's.
template <typename F>
RESIDENT_DEVICE void VisitNumber(DType dtype, F f) {
  switch (dtype) {
    case DType::kF16:
      return f(Half(0.0f));
    case DType::kBF16:
      return f(BFloat16(0.0f));
    case DType::kF64:
      return f(double{});
    case DType::kI32:
      return f(i32{});
    default:
      return f(float{});
  }
}

template <typename To>
RESIDENT_DEVICE To LoadNumber(u64 address, DType dtype, i64 offset) {
  To value{};
  VisitNumber(dtype, [&](auto element) {
    value = Convert<To>(*ElementAt<const decltype(element)>(address, offset));
  });
  return value;
}

template <typename From>
RESIDENT_DEVICE void StoreNumber(u64 address, DType dtype, i64 offset, From value) {
  VisitNumber(dtype, [&](auto element) {
    using To = decltype(element);
    *ElementAt<To>(address, offset) = Convert<To>(value);
  });
}

// Whether a scalar can be used with int32 tensors: a whole number. Infinite values are allowed if
// they are converted to a limit.
RESIDENT_DEVICE bool IsWhole(double value) {
  return value - value != 0.0 ? value == value
                              : value == static_cast<double>(Convert<i64>(value)) ||
                                    value >= 9.0e18 || value <= -9.0e18;
}

// --- The forms of a task ------------------------------------------------------------------------

// All operands have type T.
template <i32 kOperands, typename T>
RESIDENT_DEVICE bool AllAre(const ElementwiseOperands<kOperands>& operands, DType dtype) {
  bool all = true;
  for (i32 k = 0; k < kOperands; ++k) all = all && operands.dtypes[k] == dtype;
  return all;
}

// Maps with values of type T.
template <i32 kInputs, typename T, typename F>
RESIDENT_DEVICE void MapNumbers(const Block& block,
                                const ElementwiseOperands<kInputs + 1>& operands, DType same, F f) {
  constexpr i32 kOperands = kInputs + 1;
  const Range range = block.share(operands.map.size(), kMapStep);
  if (operands.map.dense() && AllAre<kOperands, T>(operands, same)) {
    T* const out = ElementAt<T>(operands.addresses[kInputs], 0);
    const T* in[kOperands];
    for (i32 k = 0; k < kOperands; ++k) in[k] = ElementAt<const T>(operands.addresses[k], 0);
    block.for_each(range, [&](i64 i) {
      T v[kOperands];
      for (i32 k = 0; k < kInputs; ++k) v[k] = in[k][i];
      out[i] = f(v);
    });
    return;
  }
  block.for_each(range, [&](i64 i) {
    i64 offsets[kOperands];
    operands.map.Offsets(i, offsets);
    T v[kOperands];
    for (i32 k = 0; k < kInputs; ++k) {
      v[k] = LoadNumber<T>(operands.addresses[k], operands.dtypes[k], offsets[k]);
    }
    StoreNumber<T>(operands.addresses[kInputs], operands.dtypes[kInputs], offsets[kInputs],
                   f(static_cast<const T*>(v)));
  });
}

template <i32 kInputs, i32 kInFlight = 4, typename F>
RESIDENT_NOINLINE void GeneralFloats(Block block, Args args, F f) {
  elementwise<kInputs, kInFlight>(block, args, f);
}

template <i32 kInputs, typename F>
RESIDENT_NOINLINE void GeneralNumbers(Block block, Args args, F f) {
  constexpr i32 kOperands = kInputs + 1;
  bool floats = true;
  bool integers = true;
  RESIDENT_UNROLL(1)
  for (i32 k = 0; k < kOperands; ++k) {
    const DType dtype = args.tensor<const Any>(k).dtype();
    integers = integers && dtype == DType::kI32;
    floats = floats && (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16);
  }
  if (floats) {
    GeneralFloats<kInputs>(block, args, f);
    return;
  }
  ElementwiseOperands<kOperands>& operands = *block.memory<ElementwiseOperands<kOperands>>();
  if (block.thread() == 0) operands.Read(args);
  block.barrier();
  if (integers) {
    MapNumbers<kInputs, i32>(block, operands, DType::kI32, f);
  } else {
    MapNumbers<kInputs, double>(block, operands, DType::kF64, f);
  }
}

// Maps the operands if all are dense float32 of one shape. False: they are not.
template <i32 kInputs, i32 kInFlight = 4, typename F>
RESIDENT_DEVICE bool MapDenseFloats(const Block& block, const Args& args, F f) {
  constexpr i32 kOperands = kInputs + 1;
  u64 addresses[kOperands];
  i64 size = 0;
  if (args.compact()) {
    for (i32 k = 0; k < kOperands; ++k) {
      const Tensor<const float> tensor = args.tensor<const float>(k);
      addresses[k] = reinterpret_cast<u64>(tensor.data());
      size = tensor.size();
    }
  } else {
    DType dtypes[kOperands];
    if constexpr (!kReadsDirectly) return false;
    bool floats = HaveOneDenseShape(args, addresses, dtypes, size);
    for (i32 k = 0; k < kOperands; ++k) floats = floats & (dtypes[k] == DType::kF32);
    if (!floats) return false;
  }
  const float* in[kInputs + 1];
  for (i32 k = 0; k < kInputs; ++k) in[k] = ElementAt<const float>(addresses[k], 0);
  MapRange<kInputs, kInFlight>(block, block.share(size, kMapStep),
                               ElementAt<float>(addresses[kInputs], 0), in, f);
  return true;
}

// Runs a task in compact form that has at most four elements for each thread; returns false for
// other tasks. It needs few registers: saving those that larger tasks need takes longer than a
// small task itself. Therefore an operator calls a function of its own for the other tasks.
template <i32 kInputs, typename F>
RESIDENT_DEVICE bool RunSmall(const Block& block, const Args& args, F f) {
  if (!args.compact()) return false;
  const Tensor<float> out = args.tensor<float>(kInputs);
  if (out.size() > i64{4} * block.threads()) return false;
  const float* in[kInputs + 1];
  for (i32 k = 0; k < kInputs; ++k) in[k] = args.tensor<const float>(k).data();
  MapRange<kInputs, 1>(block, {0, out.size()}, out.data(), in, f);
  return true;
}

template <i32 kInputs, i32 kInFlight, typename F>
RESIDENT_NOINLINE void OtherFloats(Block block, Args args, F f) {
  if (!MapDenseFloats<kInputs, kInFlight>(block, args, f)) {
    GeneralFloats<kInputs, kInFlight>(block, args, f);
  }
}
template <i32 kInputs, typename F>
RESIDENT_NOINLINE void OtherNumbers(Block block, Args args, F f) {
  if (!MapDenseFloats<kInputs>(block, args, f)) GeneralNumbers<kInputs>(block, args, f);
}

// out = f(inputs) for float32, float16 and bfloat16. Arguments: the inputs, then the output. f is
// inlined many times; kLargeFunction limits that.
inline constexpr i32 kLargeFunction = 1;
template <i32 kInputs, i32 kInFlight = 4, typename F>
RESIDENT_DEVICE void Floats(Block& block, const Args& args, F f) {
  if (!RunSmall<kInputs>(block, args, f)) OtherFloats<kInputs, kInFlight>(block, args, f);
}

// The same for numbers; f is a template, as above.
template <i32 kInputs, typename F>
RESIDENT_DEVICE void Numbers(Block& block, const Args& args, F f) {
  if (!RunSmall<kInputs>(block, args, f)) OtherNumbers<kInputs>(block, args, f);
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_NUMBERS_H_
