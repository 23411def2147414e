// InlineFunctions: replaces calls of a model's local functions by the nodes of the functions.
//
// Names of a function's values become `fN/NAME`, where N counts the calls, so that the names remain
// unique. Functions may call functions, but not themselves.
//
// Thread safety: a pure function.
//
//   RETURN_IF_ERROR(InlineFunctions(&model));   // No node calls a function.
#ifndef RESIDENT_SERVER_ONNX_INLINE_FUNCTIONS_H_
#define RESIDENT_SERVER_ONNX_INLINE_FUNCTIONS_H_

#include "absl/status/status.h"
#include "server/onnx/onnx.pb.h"

namespace resident::onnx {

// E103: more than kMaxNodes nodes, or too much data, after it; E109: a function is malformed.
absl::Status InlineFunctions(ModelProto* model);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_INLINE_FUNCTIONS_H_
