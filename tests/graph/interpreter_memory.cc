#include "tests/graph/interpreter_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace resident::testing {
namespace {

// Bits of the significand with the hidden one, and the exponent of the smallest normal number.
struct Format {
  int precision;
  int min_exponent;
};

Format FormatOf(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F16:
      return {11, -14};
    case v1::DTYPE_BF16:
      return {8, -126};
    case v1::DTYPE_F32:
      return {24, -126};
    default:
      return {53, -1022};
  }
}

uint16_t EncodeHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  const double size = std::fabs(value);
  if (size >= 65536) return sign | 0x7c00;
  if (size < std::ldexp(1.0, -14)) {
    return sign | static_cast<uint16_t>(std::ldexp(size, 24));
  }
  const int exponent = std::ilogb(size);
  const auto fraction = static_cast<uint16_t>(std::ldexp(size, 10 - exponent) - 1024);
  return static_cast<uint16_t>(sign | (exponent + 15) << 10 | fraction);
}

double DecodeHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  double size =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) size = fraction == 0 ? INFINITY : NAN;
  return (bits & 0x8000) != 0 ? -size : size;
}

template <typename T>
double DecodeAs(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return static_cast<double>(value);
}

template <typename T>
void EncodeAs(double value, char* bytes) {
  const T converted = static_cast<T>(value);
  std::memcpy(bytes, &converted, sizeof converted);
}

}  // namespace

int64_t ElementBytes(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F64:
    case v1::DTYPE_I64:
      return 8;
    case v1::DTYPE_F16:
    case v1::DTYPE_BF16:
      return 2;
    case v1::DTYPE_U8:
    case v1::DTYPE_I8:
      return 1;
    default:
      return 4;
  }
}

bool IsReal(v1::DType dtype) {
  return dtype == v1::DTYPE_F32 || dtype == v1::DTYPE_F16 || dtype == v1::DTYPE_BF16 ||
         dtype == v1::DTYPE_F64;
}

double Spacing(v1::DType dtype, double value) {
  if (!IsReal(dtype)) return 1;
  const Format format = FormatOf(dtype);
  const int exponent = value == 0 ? format.min_exponent : std::ilogb(value);
  return std::ldexp(1.0, std::max(exponent, format.min_exponent) - format.precision + 1);
}

double DecodeNumber(v1::DType dtype, const char* bytes) {
  switch (dtype) {
    case v1::DTYPE_F64:
      return DecodeAs<double>(bytes);
    case v1::DTYPE_F16: {
      uint16_t bits;
      std::memcpy(&bits, bytes, sizeof bits);
      return DecodeHalf(bits);
    }
    case v1::DTYPE_BF16: {
      char whole[4] = {0, 0, bytes[0], bytes[1]};
      return DecodeAs<float>(whole);
    }
    case v1::DTYPE_I32:
      return DecodeAs<int32_t>(bytes);
    case v1::DTYPE_I64:
      return DecodeAs<int64_t>(bytes);
    case v1::DTYPE_U8:
      return DecodeAs<uint8_t>(bytes);
    case v1::DTYPE_I8:
      return DecodeAs<int8_t>(bytes);
    case v1::DTYPE_U32:
      return DecodeAs<uint32_t>(bytes);
    default:
      return DecodeAs<float>(bytes);
  }
}

void EncodeNumber(v1::DType dtype, double value, char* bytes) {
  if (IsReal(dtype) && std::isfinite(value) && value != 0) {
    const double spacing = Spacing(dtype, value);
    value = std::nearbyint(value / spacing) * spacing;
  }
  switch (dtype) {
    case v1::DTYPE_F64:
      return EncodeAs<double>(value, bytes);
    case v1::DTYPE_F16: {
      const uint16_t bits = EncodeHalf(value);
      std::memcpy(bytes, &bits, sizeof bits);
      return;
    }
    case v1::DTYPE_BF16: {
      char whole[4];
      EncodeAs<float>(value, whole);
      std::memcpy(bytes, whole + 2, 2);
      return;
    }
    case v1::DTYPE_I32:
      return EncodeAs<int32_t>(value, bytes);
    case v1::DTYPE_I64:
      return EncodeAs<int64_t>(value, bytes);
    case v1::DTYPE_U8:
      return EncodeAs<uint8_t>(value, bytes);
    case v1::DTYPE_I8:
      return EncodeAs<int8_t>(value, bytes);
    case v1::DTYPE_U32:
      return EncodeAs<uint32_t>(value, bytes);
    default:
      return EncodeAs<float>(value, bytes);
  }
}

}  // namespace resident::testing
