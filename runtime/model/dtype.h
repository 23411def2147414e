// The table of element types: what the host knows of each, and conversions by type at run time.
// Device code and the size of an element are in kernels/layout/task.h and kernels/sdk/element.h.
//
// A new type is a value of DType and its size (kernels/layout/task.h), a value of
// resident.v1.DType, a row here, and a case in visit() (kernels/sdk/element.h).
//
// Thread safety: constants and pure functions.
//
//   const DTypeInfo* info = FindDType(message.dtype());          // Null: not a type.
//   const double value = ReadElement(DType::kBF16, bytes).AsDouble();
//   bytes.append(reinterpret_cast<const char*>(&bits), SizeOf(dtype));   // bits = ScalarBits(...)
#ifndef RESIDENT_RUNTIME_MODEL_DTYPE_H_
#define RESIDENT_RUNTIME_MODEL_DTYPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "kernels/layout/task.h"

namespace resident {

struct DTypeInfo {
  enum class Kind : uint8_t { kFloat, kSigned, kUnsigned };

  // The value is that of resident.v1.DType.
  DType dtype;
  // In signatures, on command lines and in messages.
  const char* name;
  Kind kind;
  // kFloat: the largest double that does not become infinite when it is rounded to the type. For
  // the types smaller than a double it is above their largest value, by almost half a unit.
  double largest = 0;

  constexpr uint32_t size_bytes() const { return SizeOf(dtype); }
};

// In the order of their values, from 1.
inline constexpr std::array<DTypeInfo, 9> kDTypeTable = {{
    {DType::kF32, "f32", DTypeInfo::Kind::kFloat, 0x1.fffffefffffffp127},
    {DType::kF16, "f16", DTypeInfo::Kind::kFloat, 0x1.ffdffffffffffp15},
    {DType::kBF16, "bf16", DTypeInfo::Kind::kFloat, 0x1.fefffffffffffp127},
    {DType::kF64, "f64", DTypeInfo::Kind::kFloat, std::numeric_limits<double>::max()},
    {DType::kI32, "i32", DTypeInfo::Kind::kSigned},
    {DType::kI64, "i64", DTypeInfo::Kind::kSigned},
    {DType::kU8, "u8", DTypeInfo::Kind::kUnsigned},
    {DType::kI8, "i8", DTypeInfo::Kind::kSigned},
    {DType::kU32, "u32", DTypeInfo::Kind::kUnsigned},
}};

// The row of a value of DType or of resident.v1.DType, or of a name; null: there is none.
constexpr const DTypeInfo* FindDType(int value) {
  return value < 1 || value > static_cast<int>(kDTypeTable.size())
             ? nullptr
             : &kDTypeTable[static_cast<size_t>(value - 1)];
}
constexpr const DTypeInfo* FindDType(DType dtype) { return FindDType(static_cast<int>(dtype)); }
const DTypeInfo* FindDType(std::string_view name);

// "f32"; "none" for a value without a row.
std::string DTypeName(DType dtype);
// "f32, f16, ...": all of them.
std::string DTypeNames();

constexpr bool IsFloat(DType dtype) {
  const DTypeInfo* const info = FindDType(dtype);
  return info != nullptr && info->kind == DTypeInfo::Kind::kFloat;
}

// Whether the type can represent the value. For floating-point types NaN and infinities fit; a
// finite value that would become infinite does not. A type of the other kind represents none.
bool ScalarFits(DType dtype, double value);
bool ScalarFits(DType dtype, int64_t value);

// The bits of an element, in the low bytes. Floating-point values are rounded to nearest, ties to
// even; too large is infinity. REQUIRES: the type is of the value's kind; an integer fits.
uint64_t ScalarBits(DType dtype, double value);
uint64_t ScalarBits(DType dtype, int64_t value);

// An element of any type, without loss.
struct Element {
  bool floating = false;
  double real = 0;      // The value of a floating-point type.
  int64_t integer = 0;  // The value of an integer type.

  double AsDouble() const { return floating ? real : static_cast<double>(integer); }
};

// Reads an element, which need not be aligned. REQUIRES: the type has a row.
Element ReadElement(DType dtype, const void* element);
// Reads adjacent elements as float32, without loss. They need not be aligned. REQUIRES: the type is
// f32, f16 or bf16.
void ReadFloats(DType dtype, const void* elements, std::span<float> to);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_DTYPE_H_
