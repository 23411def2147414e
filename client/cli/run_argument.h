// One argument of `residentctl run`: NAME[:DTYPE][:SHAPE]=VALUE.
//
//   x=1,2,3          values                 out=            returned and printed
//   x:2x3=0.5*6      six times 0.5, 2 x 3   out:1024=       with this shape
//   x:f16=@in.f16    raw elements of a file out=@sum.f32    written to a file
//   x=buffer:7       a buffer on the device, by its id or name
#ifndef RESIDENT_CLIENT_CLI_RUN_ARGUMENT_H_
#define RESIDENT_CLIENT_CLI_RUN_ARGUMENT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "resident/v1/types.pb.h"

namespace resident::cli {

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

#endif  // RESIDENT_CLIENT_CLI_RUN_ARGUMENT_H_
