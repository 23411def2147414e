#include "client/cli/values.h"

#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/residentd_client.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "runtime/model/number_text.h"

namespace resident::cli {
namespace {

// Repetitions use memory of this process; the limit protects it from typing errors.
constexpr uint64_t kMaxElements = 1ull << 28;

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

template <typename T>
std::string Shortest(T value) {
  if (std::isnan(value)) return "nan";
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

// Element `index` of `bytes`. REQUIRES: info is the type's row.
Element ElementAt(const DTypeInfo& info, std::string_view bytes, size_t index) {
  return ReadElement(info.dtype, bytes.data() + index * info.size_bytes());
}

}  // namespace

absl::StatusOr<std::vector<std::string_view>> SplitList(std::string_view text,
                                                        std::string_view what) {
  std::vector<std::string_view> items;
  const std::vector<absl::string_view> parts = absl::StrSplit(View(text), absl::ByAnyChar(",;"));
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::string_view item = absl::StripAsciiWhitespace(parts[i]);
    if (!item.empty()) {
      items.emplace_back(item.data(), item.size());
    } else if (i + 1 < parts.size()) {
      return absl::InvalidArgumentError(absl::StrCat("item ", i + 1, " of ", View(what),
                                                     " is empty. Fix: give a value between two "
                                                     "commas, or omit one of them"));
    }
  }
  return items;
}

std::optional<double> ParseReal(v1::DType dtype, std::string_view word) {
  const DTypeInfo* const info = FindDType(dtype);
  return info == nullptr ? std::nullopt : resident::ParseReal(info->dtype, word);
}

std::optional<v1::DType> ParseDType(std::string_view word) {
  const DTypeInfo* const info = FindDType(word);
  if (info == nullptr) return std::nullopt;
  return static_cast<v1::DType>(info->dtype);
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

absl::StatusOr<std::string> EncodeValues(v1::DType dtype, std::string_view text,
                                         std::string_view what) {
  std::string bytes;
  const DTypeInfo* const info = FindDType(dtype);
  const uint32_t size = client::SizeOf(dtype);
  absl::StatusOr<std::vector<std::string_view>> list = SplitList(text, what);
  if (!list.ok()) return list.status();
  std::vector<absl::string_view> items;
  for (const std::string_view each : *list) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(View(each), absl::ByAnyChar(" \t\n\r"), absl::SkipEmpty());
    items.insert(items.end(), words.begin(), words.end());
  }
  for (const absl::string_view item : items) {
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
    if (!ok || info == nullptr || !AppendNumber(info->dtype, word, &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", item, "' is not a valid ", EnumName(dtype),
          IsWholeNumber(word) ? ", which does not have this number" : "",
          ". Fix: give numbers separated by commas, or NUMBER*TIMES, or @FILE for raw elements",
          IsWholeNumber(word) ? "; or choose another element type, as in x:f64=" : ""));
    }
    if (times == 0) bytes.resize(bytes.size() - size);
    const std::string element = bytes.substr(bytes.size() - (times == 0 ? 0 : size));
    for (uint64_t i = 1; i < times; ++i) bytes += element;
  }
  return bytes;
}

std::string FormatValue(v1::DType dtype, std::string_view bytes, size_t index) {
  const DTypeInfo* const info = FindDType(dtype);
  if (info == nullptr || !IsFloat(info->dtype)) return ValueToJson(dtype, bytes, index).dump();
  const double value = ElementAt(*info, bytes, index).real;
  // The shortest decimal that reads back as this float, not the double's 17 digits.
  return info->dtype == DType::kF64 ? Shortest(value) : Shortest(static_cast<float>(value));
}

Json ValueToJson(v1::DType dtype, std::string_view bytes, size_t index) {
  const DTypeInfo* const info = FindDType(dtype);
  if (info == nullptr) return nullptr;
  const Element element = ElementAt(*info, bytes, index);
  if (!element.floating) return element.integer;
  if (info->dtype != DType::kF32 || !std::isfinite(element.real)) return NumberToJson(element.real);
  double shortest = element.real;
  (void)absl::SimpleAtod(Shortest(static_cast<float>(element.real)), &shortest);
  return shortest;
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

absl::StatusOr<uint64_t> FindBufferId(client::Client& client, const std::string& word) {
  if (uint64_t id; absl::SimpleAtoi(word, &id)) return id;
  ASSIGN_OR_RETURN(const v1::BufferInfo buffer, client.FindBuffer(word));
  return buffer.id();
}

namespace {

constexpr std::string_view kBufferPrefix = "buffer:";

}  // namespace

absl::StatusOr<RunArgument> ParseRunArgument(std::string_view word) {
  RunArgument argument;
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "invalid argument '", View(word), "'. Fix: give NAME=VALUE, for example x=1,2,3 or out="));
  }
  const std::string_view value = word.substr(equals + 1);
  const std::vector<std::string> parts = absl::StrSplit(View(word.substr(0, equals)), ':');
  argument.name = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    if (std::optional<v1::DType> dtype = ParseDType(parts[i]); dtype.has_value()) {
      argument.dtype = dtype;
      continue;
    }
    absl::StatusOr<std::vector<uint64_t>> shape = ParseShape(parts[i]);
    if (!shape.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", parts[i], "' in '", View(word),
                       "' is neither an element type nor a shape. Fix: give them as in ",
                       argument.name, ":f32:2x3="));
    }
    argument.shape = *std::move(shape);
  }
  if (value.empty()) return argument;
  if (value[0] == '@') {
    argument.kind = RunArgument::kFile;
    argument.text = std::string(value.substr(1));
    if (argument.text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", View(word), "' has no file name. Fix: give ", argument.name, "=@FILE"));
    }
    return argument;
  }
  if (value.substr(0, kBufferPrefix.size()) == kBufferPrefix) {
    argument.kind = RunArgument::kBuffer;
    argument.buffer_word = std::string(value.substr(kBufferPrefix.size()));
    if (argument.buffer_word.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", View(word), "' names no buffer. Fix: give ", argument.name, "=buffer:ID"));
    }
    return argument;
  }
  argument.kind = RunArgument::kValues;
  argument.text = std::string(value);
  return argument;
}

}  // namespace resident::cli
