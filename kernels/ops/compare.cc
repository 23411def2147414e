// compare: counts the elements of two tensors that differ by more than their type's tolerance. It
// compares the output of a version on trial with that of the active version.
#include "kernels/sdk/operator.h"

namespace resident {
namespace {

// The relative and absolute tolerances, the same as for an install's examples
// (runtime/operators/validation/compare.h). Integers must be equal.
template <typename T>
RESIDENT_HOST_DEVICE double Tolerance() {
  return 0;
}
template <>
RESIDENT_HOST_DEVICE double Tolerance<float>() {
  return 1e-5;
}
template <>
RESIDENT_HOST_DEVICE double Tolerance<Half>() {
  return 2e-3;
}
template <>
RESIDENT_HOST_DEVICE double Tolerance<BFloat16>() {
  return 1e-2;
}
template <>
RESIDENT_HOST_DEVICE double Tolerance<double>() {
  return 1e-12;
}

// NaN agrees with NaN, and an infinity with the same infinity.
template <typename T>
RESIDENT_HOST_DEVICE bool Agree(T got, T expected) {
  if constexpr (sizeof(T) == 8 && T(0.5) == T(0)) {  // 64-bit integers do not fit a double.
    return got == expected;
  } else {
    const double a = static_cast<double>(got);
    const double b = static_cast<double>(expected);
    if (a == b || (a != a && b != b)) return true;
    const double difference = a > b ? a - b : b - a;
    const double size = b < 0 ? -b : b;
    // The difference of an infinity from another value is infinite, which exceeds every tolerance.
    return difference <= Tolerance<T>() * (1 + size) && size <= 1.7976931348623157e308;
  }
}

}  // namespace

RESIDENT_OPERATOR(compare)(Block& block, const Args& args) {
  auto x = args.tensor<const Any>(0);
  auto y = args.tensor<const Any>(1);
  // The elements of both are read with one type.
  if (x.dtype() != y.dtype()) {
    block.fail(CompletionStatus::kInvalidArgument, 1);
    return;
  }
  u64 differing = 0;
  visit(x.dtype(), [&](auto element) {
    using T = decltype(element);
    const auto got = y.as<const T>();
    const auto expected = x.as<const T>();
    block.for_each({0, x.size()}, [&](i64 i) { differing += !Agree<T>(got[i], expected[i]); });
  });
  differing = block.reduce_sum(differing);
  if (block.thread() == 0) block.set_result(differing);
}

}  // namespace resident
