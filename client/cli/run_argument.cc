#include "client/cli/run_argument.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/values.h"

namespace resident::cli {
namespace {

constexpr std::string_view kBufferPrefix = "buffer:";

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

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
