// Tensors as text: "1,2,3", "0.5*1024" (1,024 times 0.5), nan, inf, -inf.
//
// Bytes are little-endian elements of one type, as they travel. float16 and bfloat16
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
#include "resident/v1/types.pb.h"

namespace resident::cli {

// "f32" and so on; absent for any other word.
std::optional<v1::DType> ParseDType(std::string_view word);

// "2x3", "1024", "scalar" (no dimensions).
absl::StatusOr<std::vector<uint64_t>> ParseShape(std::string_view text);

// Elements separated by commas or white space. INVALID_ARGUMENT names the element that
// is no number, or does not fit the type.
absl::StatusOr<std::string> EncodeValues(v1::DType dtype, std::string_view text);

// Element `index` of `bytes`, the shortest text that reads back as the same value.
std::string FormatValue(v1::DType dtype, std::string_view bytes, size_t index);
Json ValueToJson(v1::DType dtype, std::string_view bytes, size_t index);

// At most `most` elements, then "... N more".
std::string FormatValues(v1::DType dtype, std::string_view bytes, size_t most);
Json ValuesToJson(v1::DType dtype, std::string_view bytes);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_VALUES_H_
