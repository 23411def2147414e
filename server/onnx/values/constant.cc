#include "server/onnx/values/constant.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/sha256.h"
#include "runtime/model/dtype.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

constexpr const char* kTypeNames[] = {"undefined",  "float",   "uint8",  "int8",   "uint16",
                                      "int16",      "int32",   "int64",  "string", "bool",
                                      "float16",    "double",  "uint32", "uint64", "complex64",
                                      "complex128", "bfloat16"};

}  // namespace

std::string TypeName(ElementType type) {
  const auto value = static_cast<size_t>(type);
  return value < std::size(kTypeNames) ? kTypeNames[value]
                                       : StrCat("type ", static_cast<int32_t>(type));
}

DType DTypeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return DType::kF32;
    case ElementType::kFloat16:
      return DType::kF16;
    case ElementType::kBfloat16:
      return DType::kBF16;
    case ElementType::kDouble:
      return DType::kF64;
    case ElementType::kInt32:
      return DType::kI32;
    case ElementType::kInt64:
      return DType::kI64;
    case ElementType::kUint8:
    case ElementType::kBool:
      return DType::kU8;
    case ElementType::kInt8:
      return DType::kI8;
    case ElementType::kUint32:
      return DType::kU32;
    default:
      return DType::kInvalid;
  }
}

bool IsFloatType(ElementType type) {
  const DType dtype = DTypeOf(type);
  return dtype != DType::kInvalid && IsFloat(dtype);
}

std::optional<int64_t> CountElements(const Sizes64& shape) {
  int64_t count = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty |= size == 0;
    const int64_t factor = std::max<int64_t>(size, 1);
    if (factor > kMaxElements / count) return std::nullopt;
    count *= factor;
  }
  return empty ? 0 : count;
}

std::string ShapeText(const Sizes64& shape) { return StrCat("[", absl::StrJoin(shape, ", "), "]"); }

Sizes64 DenseStrides(const Sizes64& shape) {
  Sizes64 strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

void AppendReal(ElementType type, double value, std::string* bytes) {
  const DType dtype = DTypeOf(type);
  assert(dtype != DType::kInvalid);
  const uint64_t bits = ScalarBits(dtype, value);
  bytes->append(reinterpret_cast<const char*>(&bits), SizeOf(dtype));
}

void AppendInteger(ElementType type, int64_t value, std::string* bytes) {
  assert(DTypeOf(type) != DType::kInvalid);
  // The low bytes of two's complement are the value modulo 2^bits.
  bytes->append(reinterpret_cast<const char*>(&value), SizeOf(DTypeOf(type)));
}

Constant Constant::Integers(Sizes64 shape, const std::vector<int64_t>& values, ElementType type) {
  assert(CountElements(shape) == static_cast<int64_t>(values.size()));
  std::string bytes;
  bytes.reserve(values.size() * SizeOf(DTypeOf(type)));
  for (const int64_t value : values) AppendInteger(type, value, &bytes);
  return {type, std::move(shape), std::make_shared<const std::string>(std::move(bytes)), ""};
}

Constant Constant::Reals(Sizes64 shape, const std::vector<double>& values, ElementType type) {
  assert(CountElements(shape) == static_cast<int64_t>(values.size()));
  std::string bytes;
  bytes.reserve(values.size() * SizeOf(DTypeOf(type)));
  for (const double value : values) AppendReal(type, value, &bytes);
  return {type, std::move(shape), std::make_shared<const std::string>(std::move(bytes)), ""};
}

std::string HashContent(const Constant& constant) {
  return constant.content_hash.empty() ? Sha256Hex(constant.data()) : constant.content_hash;
}

double Constant::Real(int64_t i) const {
  const DType dtype = DTypeOf(type);
  return ReadElement(dtype, bytes->data() + i * SizeOf(dtype)).AsDouble();
}

int64_t Constant::Integer(int64_t i) const {
  const DType dtype = DTypeOf(type);
  const Element element = ReadElement(dtype, bytes->data() + i * SizeOf(dtype));
  if (!element.floating) return element.integer;
  if (std::isnan(element.real)) return 0;
  if (element.real >= 0x1p63) return std::numeric_limits<int64_t>::max();
  if (element.real <= -0x1p63) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(element.real);
}

std::vector<int64_t> Constant::AllIntegers() const {
  std::vector<int64_t> values(static_cast<size_t>(elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = Integer(static_cast<int64_t>(i));
  return values;
}

}  // namespace resident::onnx
