// The type of an output that a request leaves open (ReturnedColumn.infer_shape): derived from the
// signature and the tensors that are sent.
//
// A dimension of the output is known if its variable is bound by a tensor that is sent. Inputs that
// broadcast ("*S~") bind S together: to the shape that PyTorch's broadcasting gives.
//
// Thread safety: functions without state.
//
//   // x: f32[3, 1], y: f32[4]  ->  out: f32[3, 4]
//   ASSIGN_OR_RETURN(OutputType out, InferOutput(signature, "add", sent, /*index=*/2));
#ifndef RESIDENT_RUNTIME_MODEL_INFER_OUTPUT_H_
#define RESIDENT_RUNTIME_MODEL_INFER_OUTPUT_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/model/signature.h"

namespace resident {

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

#endif  // RESIDENT_RUNTIME_MODEL_INFER_OUTPUT_H_
