// Examples of an operator in a JSON file: one object, or a list of objects.
//
//   {"inputs": {"x": [0, 1], "alpha": 2},
//    "outputs": {"out": [0, 0.880797]},
//    "relative_tolerance": 1e-5}
//
//   inputs    values by parameter name. A tensor: lists of numbers, nested to the number of its
//             dimensions ([[1, 2], [3, 4]]), or {"shape": [2, 2], "data": [1, 2, 3, 4],
//             "dtype": "f16"}. The default of dtype is the first type that the signature
//             accepts. A scalar: a number. Trailing scalars with a default may be
//             omitted. "NaN", "Infinity" and "-Infinity" are also numbers.
//   outputs   the expected values, in the same form. If "data" ({"shape": [2]}) or the output
//             is omitted, the result is compared with that of the active version, if there is
//             one. The default shape is that of the first input, without the last dimensions if
//             the output has fewer.
//   relative_tolerance, absolute_tolerance
//             |out - expected| <= absolute + relative * |expected|; without them, the
//             type's default.
//
// Parameters that are read and written ("inout") have their initial value in inputs, and their
// expected value in outputs; the type and shape are those of the input.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_OPERATOR_SET_EXAMPLE_FILE_H_
#define RESIDENT_RUNTIME_OPERATOR_SET_EXAMPLE_FILE_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "resident/v1/operators.pb.h"
#include "runtime/model/signature.h"

namespace resident {

// As messages of Operators.Install. An INVALID_ARGUMENT error contains the example, the parameter
// and the problem.
absl::StatusOr<std::vector<v1::InstallExample>> ParseExamples(std::string_view json,
                                                              const Signature& signature);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATOR_SET_EXAMPLE_FILE_H_
