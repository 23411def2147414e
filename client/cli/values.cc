#include "client/cli/values.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/residentd_client.h"

namespace resident::cli {
namespace {

// Repetitions use memory of this process; the limit protects it from typing errors.
constexpr uint64_t kMaxElements = 1ull << 28;

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

template <typename T>
T Load(std::string_view bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Store(T value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
std::string Shortest(T value) {
  if (std::isnan(value)) return "nan";
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

template <typename T>
bool StoreInteger(std::string_view word, std::string& bytes) {
  int64_t value;
  if (!absl::SimpleAtoi(View(word), &value)) return false;
  if (value < static_cast<int64_t>(std::numeric_limits<T>::min())) return false;
  if (value > static_cast<int64_t>(std::numeric_limits<T>::max())) return false;
  Store(static_cast<T>(value), bytes);
  return true;
}

bool StoreWord(v1::DType dtype, std::string_view word, std::string& bytes) {
  double real = 0;
  switch (dtype) {
    case v1::DTYPE_I32:
      return StoreInteger<int32_t>(word, bytes);
    case v1::DTYPE_I64:
      return StoreInteger<int64_t>(word, bytes);
    case v1::DTYPE_U8:
      return StoreInteger<uint8_t>(word, bytes);
    case v1::DTYPE_I8:
      return StoreInteger<int8_t>(word, bytes);
    case v1::DTYPE_U32:
      return StoreInteger<uint32_t>(word, bytes);
    case v1::DTYPE_F32: {
      float value;
      if (!absl::SimpleAtof(View(word), &value)) return false;
      Store(value, bytes);
      return true;
    }
    case v1::DTYPE_F64:
      if (!absl::SimpleAtod(View(word), &real)) return false;
      Store(real, bytes);
      return true;
    case v1::DTYPE_F16:
      if (!absl::SimpleAtod(View(word), &real)) return false;
      Store(FloatToHalf(static_cast<float>(real)), bytes);
      return true;
    case v1::DTYPE_BF16:
      if (!absl::SimpleAtod(View(word), &real)) return false;
      Store(FloatToBfloat16(static_cast<float>(real)), bytes);
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<v1::DType> ParseDType(std::string_view word) {
  for (int value = v1::DTYPE_F32; value <= v1::DType_MAX; ++value) {
    if (EnumName(static_cast<v1::DType>(value)) == word) return static_cast<v1::DType>(value);
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<uint64_t>> ParseShape(std::string_view text) {
  std::vector<uint64_t> shape;
  if (text == "scalar") return shape;
  for (absl::string_view word : absl::StrSplit(View(text), 'x')) {
    uint64_t dimension;
    if (!absl::SimpleAtoi(word, &dimension)) {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid shape '", View(text),
                       "'. Fix: give dimensions separated by x, for example 2x3"));
    }
    shape.push_back(dimension);
  }
  return shape;
}

absl::StatusOr<std::string> EncodeValues(v1::DType dtype, std::string_view text) {
  std::string bytes;
  const uint32_t size = client::SizeOf(dtype);
  for (absl::string_view item :
       absl::StrSplit(View(text), absl::ByAnyChar(", \t\n;"), absl::SkipEmpty())) {
    std::string_view word(item.data(), item.size());
    uint64_t times = 1;
    const size_t star = word.find('*');
    bool ok = true;
    if (star != std::string_view::npos) {
      ok = absl::SimpleAtoi(View(word.substr(star + 1)), &times);
      word = word.substr(0, star);
    }
    if (ok && times > kMaxElements - bytes.size() / size) {
      return absl::InvalidArgumentError(absl::StrCat("'", item, "' has more than ", kMaxElements,
                                                     " elements. Fix: give fewer, or a file"));
    }
    if (!ok || !StoreWord(dtype, word, bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", item, "' is not a valid ", EnumName(dtype),
          ". Fix: give numbers separated by commas, or NUMBER*TIMES, or @FILE for raw elements"));
    }
    if (times == 0) bytes.resize(bytes.size() - size);
    const std::string element = bytes.substr(bytes.size() - (times == 0 ? 0 : size));
    for (uint64_t i = 1; i < times; ++i) bytes += element;
  }
  return bytes;
}

std::string FormatValue(v1::DType dtype, std::string_view bytes, size_t index) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return Shortest(Load<float>(bytes, index));
    case v1::DTYPE_F64:
      return Shortest(Load<double>(bytes, index));
    case v1::DTYPE_F16:
      return Shortest(HalfToFloat(Load<uint16_t>(bytes, index)));
    case v1::DTYPE_BF16:
      return Shortest(Bfloat16ToFloat(Load<uint16_t>(bytes, index)));
    default:
      return ValueToJson(dtype, bytes, index).dump();
  }
}

Json ValueToJson(v1::DType dtype, std::string_view bytes, size_t index) {
  switch (dtype) {
    case v1::DTYPE_F32: {
      // The shortest decimal that reads back as this float, not the double's 17 digits.
      const float value = Load<float>(bytes, index);
      if (!std::isfinite(value)) return NumberToJson(value);
      double shortest = value;
      (void)absl::SimpleAtod(Shortest(value), &shortest);
      return shortest;
    }
    case v1::DTYPE_F64:
      return NumberToJson(Load<double>(bytes, index));
    case v1::DTYPE_F16:
      return NumberToJson(HalfToFloat(Load<uint16_t>(bytes, index)));
    case v1::DTYPE_BF16:
      return NumberToJson(Bfloat16ToFloat(Load<uint16_t>(bytes, index)));
    case v1::DTYPE_I32:
      return Load<int32_t>(bytes, index);
    case v1::DTYPE_I64:
      return Load<int64_t>(bytes, index);
    case v1::DTYPE_U8:
      return Load<uint8_t>(bytes, index);
    case v1::DTYPE_I8:
      return Load<int8_t>(bytes, index);
    case v1::DTYPE_U32:
      return Load<uint32_t>(bytes, index);
    default:
      return nullptr;
  }
}

std::string FormatValues(v1::DType dtype, std::string_view bytes, size_t max_elements) {
  const size_t count = bytes.size() / client::SizeOf(dtype);
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(count, max_elements); ++i) {
    words.push_back(FormatValue(dtype, bytes, i));
  }
  if (count > max_elements) words.push_back(absl::StrCat("... ", count - max_elements, " more"));
  return absl::StrJoin(words, " ");
}

Json ValuesToJson(v1::DType dtype, std::string_view bytes) {
  Json values = Json::array();
  const size_t count = bytes.size() / client::SizeOf(dtype);
  for (size_t i = 0; i < count; ++i) values.push_back(ValueToJson(dtype, bytes, i));
  return values;
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN.
  if (magnitude >= 0x47800000) return sign | 0x7c00;  // 65,536 or more: infinity.
  // Subnormal halves are multiples of 2^-24: the addition rounds to such a multiple.
  if (magnitude < 0x38800000) {
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return sign | static_cast<uint16_t>((magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float Bfloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace resident::cli
