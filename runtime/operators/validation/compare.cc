#include "runtime/operators/validation/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "runtime/model/dtype.h"

namespace resident {
namespace {

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
    const Element expected_element = ReadElement(dtype, e);
    const double error = Distance(ReadElement(dtype, g), expected_element);
    if (error == 0) continue;
    comparison.max_error = std::max(comparison.max_error, error);
    const double allowed =
        tolerance.absolute + tolerance.relative * std::abs(expected_element.AsDouble());
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
  const Element value = ReadElement(dtype, element);
  if (!value.floating) return absl::StrFormat("%d", value.integer);
  if (std::isnan(value.real)) return "nan";  // Of either sign.
  return absl::StrFormat("%.*g", dtype == DType::kF64 ? 17 : 9, value.real);
}

}  // namespace resident
