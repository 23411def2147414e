// Values, buffers and arguments on the command line. Tensors as text: "1,2,3", "0.5*1024" (1,024
// times 0.5), nan, inf, -inf.
//
// Bytes are little-endian elements of one type, as in messages. float16 and bfloat16
// are rounded to nearest, ties to even.
#ifndef RESIDENT_CLIENT_CLI_VALUES_H_
#define RESIDENT_CLIENT_CLI_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/proto_json.h"
#include "client/residentd_client.h"
#include "resident/v1/types.pb.h"

namespace resident::cli {

// Parses "f32" and so on; absent for any other word.
std::optional<v1::DType> ParseDType(std::string_view word);

// Parses "2x3", "1024", "scalar" (no dimensions).
absl::StatusOr<std::vector<uint64_t>> ParseShape(std::string_view text);

// The items of a list that is separated by commas (or semicolons), without white space around them.
// A comma at the end is allowed. INVALID_ARGUMENT: an item is empty. `what`: the list, for
// messages.
absl::StatusOr<std::vector<std::string_view>> SplitList(std::string_view text,
                                                        std::string_view what);

// Parses a number of a floating type (f32, f64, ...). nullopt: it is none, or the type would change
// an integer, or make a number infinite.
std::optional<double> ParseReal(v1::DType dtype, std::string_view word);

// Encodes elements separated by commas or white space. An INVALID_ARGUMENT error contains the
// element that is not a number, or that the type would change otherwise than by rounding a
// fraction. `what`: the list, for messages.
absl::StatusOr<std::string> EncodeValues(v1::DType dtype, std::string_view text,
                                         std::string_view what = "the list");

// Formats element `index` of `bytes` as the shortest text that parses to the same value.
std::string FormatValue(v1::DType dtype, std::string_view bytes, size_t index);
Json ValueToJson(v1::DType dtype, std::string_view bytes, size_t index);

// Elements of an output that commands print unless all are wanted.
inline constexpr size_t kShownElements = 16;

// Formats at most `max_elements` elements, then "... N more".
std::string FormatValues(v1::DType dtype, std::string_view bytes, size_t max_elements);
Json ValuesToJson(v1::DType dtype, std::string_view bytes);

// The id of a buffer, which a command line names by its id or its name. A number is an id, which
// only the daemon checks; other words are names.
absl::StatusOr<uint64_t> FindBufferId(client::Client& client, const std::string& word);

// One argument of `residentctl run`: NAME[:DTYPE][:SHAPE]=VALUE.
//
//   x=1,2,3          values                 out=            returned and printed
//   x:2x3=0.5*6      six times 0.5, 2 x 3   out:1024=       with this shape
//   x:f16=@in.f16    raw elements of a file out=@sum.f32    written to a file
//   x=buffer:7       a buffer on the device, by its id or name
struct RunArgument {
  enum Kind { kNothing, kValues, kFile, kBuffer };
  std::string name;
  std::optional<v1::DType> dtype;
  std::optional<std::vector<uint64_t>> shape;
  Kind kind = kNothing;
  // The values as text, or the file's path.
  std::string text;
  // The id or name; the caller finds the id.
  std::string buffer_word;
  uint64_t buffer = 0;
};

// An INVALID_ARGUMENT error contains the malformed part.
absl::StatusOr<RunArgument> ParseRunArgument(std::string_view word);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_VALUES_H_
