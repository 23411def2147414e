#include "runtime/model/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/sdk/half.h"

namespace resident {
namespace {

constexpr bool RowsAreInOrder() {
  for (size_t i = 0; i < kDTypeTable.size(); ++i) {
    if (static_cast<size_t>(kDTypeTable[i].dtype) != i + 1 || kDTypeTable[i].size_bytes() == 0) {
      return false;
    }
  }
  return true;
}
static_assert(RowsAreInOrder(), "a row stands at the index of its value");

// Rounds once. (By way of a float it would be rounded twice.)
uint16_t HalfBits(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7e00;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520.0) return sign | 0x7c00;
  if (magnitude < 6.103515625e-05) {  // Subnormal: units of 2^-24.
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 16777216.0));
  }
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);                            // [0.5, 1)
  const uint32_t mantissa = static_cast<uint32_t>(std::nearbyint(fraction * 2048.0));  // 1024..2048
  return sign | static_cast<uint16_t>(((exponent + 14) << 10) + (mantissa - 1024));
}

template <typename T>
uint64_t BitsOf(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}

template <typename T>
T Load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

const DTypeInfo* FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypeTable) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

std::string DTypeName(DType dtype) {
  const DTypeInfo* const info = FindDType(dtype);
  return info == nullptr ? "none" : info->name;
}

std::string DTypeNames() {
  return absl::StrJoin(kDTypeTable, ", ", [](std::string* out, const DTypeInfo& info) {
    absl::StrAppend(out, info.name);
  });
}

bool ScalarFits(DType dtype, double value) {
  if (!std::isfinite(value)) return true;
  return IsFloat(dtype) && std::fabs(value) <= FindDType(dtype)->largest;
}

bool ScalarFits(DType dtype, int64_t value) {
  const DTypeInfo* const info = FindDType(dtype);
  if (info == nullptr || info->kind == DTypeInfo::Kind::kFloat) return false;
  const uint32_t bits = 8 * info->size_bytes();
  if (info->kind == DTypeInfo::Kind::kUnsigned) {
    return value >= 0 && (bits >= 64 || value >> bits == 0);
  }
  const int64_t largest = static_cast<int64_t>(~uint64_t{0} >> (65 - bits));
  return value >= -largest - 1 && value <= largest;
}

uint64_t ScalarBits(DType dtype, double value) {
  switch (dtype) {
    case DType::kF64:
      return BitsOf(value);
    case DType::kF16:
      return HalfBits(value);
    case DType::kBF16:
      return BFloat16::Narrow(static_cast<float>(value));
    default:
      return BitsOf(static_cast<float>(value));
  }
}

uint64_t ScalarBits(DType dtype, int64_t value) {
  const uint32_t size = SizeOf(dtype);
  const uint64_t bits = static_cast<uint64_t>(value);
  return size >= 8 ? bits : bits & ((uint64_t{1} << (8 * size)) - 1);
}

Element ReadElement(DType dtype, const void* element) {
  switch (dtype) {
    case DType::kF32:
      return {true, Load<float>(element), 0};
    case DType::kF64:
      return {true, Load<double>(element), 0};
    case DType::kF16:
      return {true, Half::Widen(Load<uint16_t>(element)), 0};
    case DType::kBF16:
      return {true, BFloat16::Widen(Load<uint16_t>(element)), 0};
    case DType::kI32:
      return {false, 0, Load<int32_t>(element)};
    case DType::kI64:
      return {false, 0, Load<int64_t>(element)};
    case DType::kI8:
      return {false, 0, Load<int8_t>(element)};
    case DType::kU32:
      return {false, 0, Load<uint32_t>(element)};
    case DType::kU8:
    case DType::kInvalid:
      break;
  }
  return {false, 0, Load<uint8_t>(element)};
}

}  // namespace resident
