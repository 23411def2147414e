// The family "elementwise": each element of the output is a function of one element of each input.
#include "kernels/ops/numbers.h"
#include "kernels/sdk/operator.h"

namespace resident {
namespace {

// Detail of INVALID_ARGUMENT: a scalar that the operands' dtype does not allow.
constexpr u16 kBadScalar = 1;

// Whether argument i is int32.
RESIDENT_DEVICE bool IsInt32(const Args& args, i32 i) {
  return !args.compact() && args.tensor<const Any>(i).dtype() == DType::kI32;
}

// --- Numbers ------------------------------------------------------------------------------------

// alpha in each type, so that no element needs a conversion.
struct Alpha {
  float as_float;
  double as_double;
  i32 as_int;

  RESIDENT_DEVICE explicit Alpha(double value)
      : as_float(static_cast<float>(value)),
        as_double(value),
        as_int(static_cast<i32>(Convert<i64>(value))) {}
  RESIDENT_DEVICE float Times(float x) const { return as_float * x; }
  RESIDENT_DEVICE double Times(double x) const { return as_double * x; }
  RESIDENT_DEVICE i32 Times(i32 x) const { return Product(as_int, x); }
};

struct Add {
  Alpha alpha;
  template <typename T>
  RESIDENT_DEVICE T operator()(const T* v) const {
    return Sum(v[0], alpha.Times(v[1]));
  }
};
struct Subtract {
  Alpha alpha;
  template <typename T>
  RESIDENT_DEVICE T operator()(const T* v) const {
    return Difference(v[0], alpha.Times(v[1]));
  }
};
struct Multiply {
  template <typename T>
  RESIDENT_DEVICE T operator()(const T* v) const {
    return Product(v[0], v[1]);
  }
};
struct Maximum {
  template <typename T>
  RESIDENT_DEVICE T operator()(const T* v) const {
    return Larger(v[0], v[1]);
  }
};
struct Minimum {
  template <typename T>
  RESIDENT_DEVICE T operator()(const T* v) const {
    return Smaller(v[0], v[1]);
  }
};
struct Clamp {
  double lo;
  double hi;
  template <typename T>
  RESIDENT_DEVICE T operator()(const T* v) const {
    if constexpr (kIsInteger<T>) {
      return Smaller(Larger(v[0], Convert<T>(lo)), Convert<T>(hi));
    } else {
      const T low = static_cast<T>(lo);
      const T high = static_cast<T>(hi);
      const T bounded = Smaller(Larger(v[0], low), high);
      return low != low || high != high ? low + high : bounded;
    }
  }
};
struct Fill {
  double value;
  template <typename T>
  RESIDENT_DEVICE T operator()(const T*) const {
    return Convert<T>(value);
  }
};

// Whether all tensors are int32 and `value` is not a whole number, which is reported.
template <i32 kTensors>
RESIDENT_DEVICE bool RefuseFraction(Block& block, const Args& args, double value) {
  for (i32 k = 0; k < kTensors; ++k) {
    if (!IsInt32(args, k)) return false;
  }
  if (IsWhole(value)) return false;
  block.fail(CompletionStatus::kInvalidArgument, kBadScalar);
  return true;
}

// --- Conversions --------------------------------------------------------------------------------

// Values pass through a type that contains both dtypes: float32, float64 or int64.
template <typename T>
RESIDENT_DEVICE void CopyAs(const Block& block, const ElementwiseOperands<2>& operands) {
  block.for_each(block.share(operands.map.size(), kMapStep), [&](i64 i) {
    i64 offsets[2];
    operands.map.Offsets(i, offsets);
    T value{};
    visit(operands.dtypes[0], [&](auto element) {
      value = Convert<T>(*ElementAt<const decltype(element)>(operands.addresses[0], offsets[0]));
    });
    visit(operands.dtypes[1], [&](auto element) {
      using To = decltype(element);
      *ElementAt<To>(operands.addresses[1], offsets[1]) = Convert<To>(value);
    });
  });
}

RESIDENT_NOINLINE void GeneralCopy(Block block, Args args) {
  const DType from = args.tensor<const Any>(0).dtype();
  const DType to = args.tensor<const Any>(1).dtype();
  const auto is_float = [](DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  };
  if (is_float(from) && is_float(to)) {
    GeneralFloats<1>(block, args, [](const float* v) { return v[0]; });
    return;
  }
  auto& operands = *block.memory<ElementwiseOperands<2>>();
  if (block.thread() == 0) operands.Read(args);
  block.barrier();
  if (from == DType::kF64) {
    CopyAs<double>(block, operands);
  } else if (is_float(from)) {
    CopyAs<float>(block, operands);
  } else {
    CopyAs<i64>(block, operands);
  }
}

// --- Zero ---------------------------------------------------------------------------------------

// An element of zeros, of any dtype with its size.
template <typename T>
RESIDENT_DEVICE void ZeroAs(const Block& block, const ElementwiseOperands<1>& operands) {
  T* const out = ElementAt<T>(operands.addresses[0], 0);
  const Range range = block.share(operands.map.size(), kMapStep);
  if (operands.map.dense()) {
    block.for_each(range, [=](i64 i) { out[i] = 0; });
    return;
  }
  block.for_each(range, [&](i64 i) {
    i64 offsets[1];
    operands.map.Offsets(i, offsets);
    out[offsets[0]] = 0;
  });
}

RESIDENT_NOINLINE void GeneralZero(Block block, Args args) {
  auto& operands = *block.memory<ElementwiseOperands<1>>();
  if (block.thread() == 0) operands.Read(args);
  block.barrier();
  switch (SizeOf(operands.dtypes[0])) {
    case 1:
      return ZeroAs<u8>(block, operands);
    case 2:
      return ZeroAs<u16>(block, operands);
    case 4:
      return ZeroAs<u32>(block, operands);
    default:
      return ZeroAs<u64>(block, operands);
  }
}

}  // namespace

namespace {

// The tasks that RunSmall does not run.
template <typename F>
RESIDENT_NOINLINE void OtherSums(Block block, Args args, double alpha) {
  if (!RefuseFraction<3>(block, args, alpha)) OtherNumbers<2>(block, args, F{Alpha(alpha)});
}
RESIDENT_NOINLINE void OtherClamp(Block block, Args args, double lo, double hi) {
  if (RefuseFraction<2>(block, args, lo) || RefuseFraction<2>(block, args, hi)) return;
  OtherNumbers<1>(block, args, Clamp{lo, hi});
}
RESIDENT_NOINLINE void OtherFill(Block block, Args args, double value) {
  if (RefuseFraction<1>(block, args, value)) return;
  if (IsInt32(args, 0) && Convert<double>(Convert<i32>(value)) != value) {
    block.fail(CompletionStatus::kInvalidArgument, kBadScalar);
    return;
  }
  OtherNumbers<0>(block, args, Fill{value});
}
RESIDENT_NOINLINE void OtherZero(Block block, Args args) {
  const auto zero = [](const float*) { return 0.0f; };
  if (!MapDenseFloats<0>(block, args, zero)) GeneralZero(block, args);
}
RESIDENT_NOINLINE void OtherCopy(Block block, Args args) {
  const auto same = [](const float* v) { return v[0]; };
  if (!MapDenseFloats<1>(block, args, same)) GeneralCopy(block, args);
}

}  // namespace

RESIDENT_OPERATOR(add)(Block& block, const Args& args) {
  const double alpha = args.scalar<double>(3);
  if (!RunSmall<2>(block, args, Add{Alpha(alpha)})) OtherSums<Add>(block, args, alpha);
}

RESIDENT_OPERATOR(sub)(Block& block, const Args& args) {
  const double alpha = args.scalar<double>(3);
  if (!RunSmall<2>(block, args, Subtract{Alpha(alpha)})) OtherSums<Subtract>(block, args, alpha);
}

RESIDENT_OPERATOR(mul)(Block& block, const Args& args) { Numbers<2>(block, args, Multiply{}); }
RESIDENT_OPERATOR(maximum)(Block& block, const Args& args) { Numbers<2>(block, args, Maximum{}); }
RESIDENT_OPERATOR(minimum)(Block& block, const Args& args) { Numbers<2>(block, args, Minimum{}); }

RESIDENT_OPERATOR(clamp)(Block& block, const Args& args) {
  const double lo = args.scalar<double>(2);
  const double hi = args.scalar<double>(3);
  if (!RunSmall<1>(block, args, Clamp{lo, hi})) OtherClamp(block, args, lo, hi);
}

RESIDENT_OPERATOR(fill)(Block& block, const Args& args) {
  const double value = args.scalar<double>(1);
  if (!RunSmall<0>(block, args, Fill{value})) OtherFill(block, args, value);
}

RESIDENT_OPERATOR(zero)(Block& block, const Args& args) {
  if (!RunSmall<0>(block, args, [](const float*) { return 0.0f; })) OtherZero(block, args);
}

RESIDENT_OPERATOR(copy)(Block& block, const Args& args) {
  if (!RunSmall<1>(block, args, [](const float* v) { return v[0]; })) OtherCopy(block, args);
}

// --- Floating point -----------------------------------------------------------------------------

// Operators without scalars: RESIDENT_UNARY(neg, 4) is out = math::neg(x), with the number of loads
// in flight (elementwise.h).
#define RESIDENT_UNARY(name, in_flight)                                                 \
  RESIDENT_OPERATOR(name)(Block & block, const Args& args) {                            \
    Floats<1, in_flight>(block, args, [](const float* v) { return math::name(v[0]); }); \
  }
RESIDENT_UNARY(neg, 4)
RESIDENT_UNARY(abs, 4)
RESIDENT_UNARY(sqrt, 4)
RESIDENT_UNARY(rsqrt, 4)
RESIDENT_UNARY(relu, 4)
RESIDENT_UNARY(silu, 4)
RESIDENT_UNARY(sigmoid, 4)
RESIDENT_UNARY(hardsigmoid, 4)
RESIDENT_UNARY(hardswish, 4)
RESIDENT_UNARY(exp, 4)
RESIDENT_UNARY(log, kLargeFunction)
RESIDENT_UNARY(sin, kLargeFunction)
RESIDENT_UNARY(cos, kLargeFunction)
RESIDENT_UNARY(tanh, kLargeFunction)
#undef RESIDENT_UNARY

RESIDENT_OPERATOR(div)(Block& block, const Args& args) {
  Floats<2>(block, args, [](const float* v) { return v[0] / v[1]; });
}

RESIDENT_OPERATOR(pow)(Block& block, const Args& args) {
  Floats<2, kLargeFunction>(block, args, [](const float* v) { return math::pow(v[0], v[1]); });
}

RESIDENT_OPERATOR(silu_mul)(Block& block, const Args& args) {
  Floats<2>(block, args, [](const float* v) { return math::silu_mul(v[0], v[1]); });
}

RESIDENT_OPERATOR(scale)(Block& block, const Args& args) {
  const float s = args.scalar<float>(2);
  Floats<1>(block, args, [s](const float* v) { return s * v[0]; });
}

RESIDENT_OPERATOR(leaky_relu)(Block& block, const Args& args) {
  const float slope = args.scalar<float>(2);
  Floats<1>(block, args, [slope](const float* v) { return math::leaky_relu(v[0], slope); });
}

RESIDENT_OPERATOR(hardtanh)(Block& block, const Args& args) {
  const float lo = args.scalar<float>(2);
  const float hi = args.scalar<float>(3);
  Floats<1>(block, args, [lo, hi](const float* v) { return math::hardtanh(v[0], lo, hi); });
}

RESIDENT_OPERATOR(elu)(Block& block, const Args& args) {
  const float alpha = args.scalar<float>(2);
  const float scale = args.scalar<float>(3);
  const float input_scale = args.scalar<float>(4);
  Floats<1, kLargeFunction>(block, args, [alpha, scale, input_scale](const float* v) {
    return math::elu(v[0], alpha, scale, input_scale);
  });
}

RESIDENT_OPERATOR(softplus)(Block& block, const Args& args) {
  const float beta = args.scalar<float>(2);
  const float threshold = args.scalar<float>(3);
  Floats<1>(block, args,
            [beta, threshold](const float* v) { return math::softplus(v[0], beta, threshold); });
}

RESIDENT_OPERATOR(gelu)(Block& block, const Args& args) {
  const i32 tanh = args.scalar<i32>(2);
  if (tanh == 0) {
    Floats<1, kLargeFunction>(block, args, [](const float* v) { return math::gelu(v[0]); });
  } else if (tanh == 1) {
    Floats<1, kLargeFunction>(block, args, [](const float* v) { return math::gelu_tanh(v[0]); });
  } else {
    block.fail(CompletionStatus::kInvalidArgument, kBadScalar);
  }
}

}  // namespace resident
