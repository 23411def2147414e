// Examples of an operator, as a JSON file has them: one object, or a list of them.
//
//   {"inputs": {"x": [0, 1], "alpha": 2},
//    "outputs": {"out": [0, 0.880797]},
//    "relative_tolerance": 1e-5}
//
//   inputs    by parameter name. Of a tensor: lists of numbers, nested as deep as it has
//             dimensions ([[1, 2], [3, 4]]), or {"shape": [2, 2], "data": [1, 2, 3, 4],
//             "dtype": "f16"}, where dtype may be left out: the first that the signature
//             takes. Of a scalar: a number. Trailing scalars with a default may be left
//             out. "NaN", "Infinity" and "-Infinity" are numbers too.
//   outputs   what is expected, likewise. Without "data" ({"shape": [2]}), or left out:
//             what the active version gives, or nothing; the shape is then that of the
//             first input, or as many of its first dimensions as the output takes.
//   relative_tolerance, absolute_tolerance
//             |out - expected| <= absolute + relative * |expected|; without them, the
//             type's default.
//
// Parameters that are read and written ("inout") stand under inputs, with what they hold at
// first, and under outputs, with what is expected; the type and shape are those of the input.
#ifndef RESIDENT_CLIENT_CLI_EXAMPLE_FILE_H_
#define RESIDENT_CLIENT_CLI_EXAMPLE_FILE_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/operators.h"
#include "runtime/model/signature.h"

namespace resident::cli {

// INVALID_ARGUMENT says which example, which parameter and what is wrong with it.
absl::StatusOr<std::vector<client::Example>> ParseExamples(std::string_view json,
                                                           const Signature& signature);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_EXAMPLE_FILE_H_
