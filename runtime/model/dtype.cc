#include "runtime/model/dtype.h"

#include <cassert>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/graph/scalar_bits.h"
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
static_assert(RowsAreInOrder(), "the row of a type must be at the index of its value, from 1");

static_assert(kLargestHalf == FindDType(DType::kF16)->largest);
static_assert(kLargestBFloat16 == FindDType(DType::kBF16)->largest);

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
  if (!IsFloat(dtype)) return false;
  return !std::isfinite(value) || std::fabs(value) <= FindDType(dtype)->largest;
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
  assert(IsFloat(dtype));
  return FloatBits(dtype, value);
}

uint64_t ScalarBits(DType dtype, int64_t value) {
  assert(ScalarFits(dtype, value));
  return IntegerBits(dtype, value);
}

Element ReadElement(DType dtype, const void* element) {
  assert(FindDType(dtype) != nullptr);
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

void ReadFloats(DType dtype, const void* elements, std::span<float> to) {
  if (dtype == DType::kF32) {
    std::memcpy(to.data(), elements, to.size_bytes());
    return;
  }
  assert(dtype == DType::kF16 || dtype == DType::kBF16);
  const auto read = [&](auto widen) {
    const char* from = static_cast<const char*>(elements);
    for (float& value : to) {
      value = widen(Load<uint16_t>(from));
      from += sizeof(uint16_t);
    }
  };
  dtype == DType::kF16 ? read(Half::Widen) : read(BFloat16::Widen);
}

}  // namespace resident
