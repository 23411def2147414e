// The arguments of a call: to which parameter of the operator each belongs, and the type of an
// output that the call leaves open.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_MODEL_CALL_ARGUMENTS_H_
#define RESIDENT_RUNTIME_MODEL_CALL_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/layout/task.h"
#include "runtime/model/signature.h"

namespace resident {

// MatchArguments: which argument of a call belongs to which parameter of an operator. The arguments
// without a name belong to the parameters in their order; those with a name follow.
//
//   MatchArguments(signature, {"", "", "alpha"});
struct MatchedArguments {
  enum class Problem : uint8_t {
    kUnnamedAfterNamed,  // It has no name, and stands after one that has.
    kUnknownName,        // The operator has no parameter of its name.
    kTwice,              // Its parameter has an argument already.
  };
  struct Refused {
    Problem problem;
    size_t argument;  // Its index.
  };

  // The arguments that belong to no parameter.
  std::vector<Refused> refused;
  // By parameter, the index of its argument; nullopt: it has none, and takes its default. Trailing
  // parameters that take their default are left out.
  absl::InlinedVector<std::optional<size_t>, kMaxArguments> by_parameter;
  // Parameters without an argument and without a default.
  std::vector<size_t> missing;
  // Whether an argument has a name.
  bool named = false;
};

// `names`: of the arguments; empty: it has none. REQUIRES: there are at most as many arguments as
// parameters.
MatchedArguments MatchArguments(const Signature& signature,
                                absl::Span<const std::string_view> names);

// InferOutput: the type of an output that a request leaves open (ReturnedColumn.infer_shape),
// derived from the signature and the tensors that are sent.
//
// A dimension of the output is known if its variable is bound by a tensor that is sent. Inputs that
// broadcast ("*S~") bind S together: to the shape that PyTorch's broadcasting gives.
//
//   // x: f32[3, 1], y: f32[4]  ->  out: f32[3, 4]
//   ASSIGN_OR_RETURN(OutputType out, InferOutput(signature, "add", sent, /*index=*/2));
struct OutputType {
  DType dtype = DType::kInvalid;
  Shape shape;
};

// The arguments of a request by position; nullopt: its type is not known, and it binds nothing.
using SentArguments = absl::Span<const std::optional<ArgumentType>>;

// The type of argument `index`. `sent` need not match the signature; Signature::Match reports that
// once all types are known. The dtype is the only one that the parameter accepts; otherwise the
// promotion, as in PyTorch, of the accepted dtypes among the tensors that are sent; otherwise
// the first one that the parameter accepts.
//
// INVALID_ARGUMENT: no tensor that is sent has one of the output's dimensions, or the inputs do
// not broadcast to one shape.
absl::StatusOr<OutputType> InferOutput(const Signature& signature, const std::string& operator_name,
                                       SentArguments sent, size_t index);

// Only the dtype.
DType InferOutputDType(const Signature& signature, SentArguments sent, size_t index);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_CALL_ARGUMENTS_H_
