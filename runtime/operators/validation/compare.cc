#include "runtime/operators/validation/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"

namespace resident {
namespace {

double FromHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  double value;
  if (exponent == 31) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else {
    value = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

template <typename T>
T Load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// An element of any type, without loss.
struct Element {
  bool floating;
  double real;      // If floating,
  int64_t integer;  // else.
};

Element Read(DType dtype, const void* from) {
  switch (dtype) {
    case DType::kF32:
      return {true, Load<float>(from), 0};
    case DType::kF64:
      return {true, Load<double>(from), 0};
    case DType::kF16:
      return {true, FromHalf(Load<uint16_t>(from)), 0};
    case DType::kBF16:
      return {true, std::bit_cast<float>(uint32_t{Load<uint16_t>(from)} << 16), 0};
    case DType::kI32:
      return {false, 0, Load<int32_t>(from)};
    case DType::kI64:
      return {false, 0, Load<int64_t>(from)};
    case DType::kI8:
      return {false, 0, Load<int8_t>(from)};
    case DType::kU32:
      return {false, 0, Load<uint32_t>(from)};
    case DType::kU8:
    case DType::kInvalid:
      break;
  }
  return {false, 0, Load<uint8_t>(from)};
}

// |a - b|; infinity if one of them is not finite and they are not equal.
double Distance(const Element& a, const Element& b) {
  if (!a.floating) {
    // Modulo 2^64, so that the difference always fits.
    const auto ua = static_cast<uint64_t>(a.integer), ub = static_cast<uint64_t>(b.integer);
    return static_cast<double>(a.integer > b.integer ? ua - ub : ub - ua);
  }
  if (a.real == b.real || (std::isnan(a.real) && std::isnan(b.real))) return 0;
  if (!std::isfinite(a.real) || !std::isfinite(b.real)) {
    return std::numeric_limits<double>::infinity();
  }
  return std::abs(a.real - b.real);
}

double Magnitude(const Element& element) {
  return std::abs(element.floating ? element.real : static_cast<double>(element.integer));
}

}  // namespace

Tolerance DefaultTolerance(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {1e-5, 1e-5};
    case DType::kF16:
      return {2e-3, 2e-3};
    case DType::kBF16:
      return {1e-2, 1e-2};
    case DType::kF64:
      return {1e-12, 1e-12};
    case DType::kI32:
    case DType::kI64:
    case DType::kU8:
    case DType::kI8:
    case DType::kU32:
    case DType::kInvalid:
      break;
  }
  return {};
}

Comparison Compare(DType dtype, const void* got, const void* expected, uint64_t count,
                   const Tolerance& tolerance) {
  Comparison comparison;
  const uint32_t bytes = SizeOf(dtype);
  const auto* g = static_cast<const uint8_t*>(got);
  const auto* e = static_cast<const uint8_t*>(expected);
  for (uint64_t i = 0; i < count; ++i, g += bytes, e += bytes) {
    if (std::memcmp(g, e, bytes) == 0) continue;
    const Element expected_element = Read(dtype, e);
    const double error = Distance(Read(dtype, g), expected_element);
    if (error == 0) continue;
    comparison.max_error = std::max(comparison.max_error, error);
    const double allowed = tolerance.absolute + tolerance.relative * Magnitude(expected_element);
    // An expected infinity or NaN allows no difference.
    if (std::isfinite(allowed) && error <= allowed) continue;
    if (comparison.differing++ == 0) {
      comparison.first = i;
      comparison.got = ElementText(dtype, g);
      comparison.expected = ElementText(dtype, e);
    }
  }
  return comparison;
}

std::string ElementText(DType dtype, const void* element) {
  const Element value = Read(dtype, element);
  if (!value.floating) return absl::StrFormat("%d", value.integer);
  if (std::isnan(value.real)) return "nan";  // Of either sign.
  return absl::StrFormat("%.*g", dtype == DType::kF64 ? 17 : 9, value.real);
}

}  // namespace resident
