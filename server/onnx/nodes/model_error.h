// Errors of models: their codes are listed in import.h.
//
//   return ModelError(106, StrCat("tensor ", Quote(name), " has 3 bytes, and must have 4"));
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_ONNX_NODES_MODEL_ERROR_H_
#define RESIDENT_SERVER_ONNX_NODES_MODEL_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace resident::onnx {

// "MODEL_E106".
inline std::string CodeText(int code) { return absl::StrCat("MODEL_E", code); }

inline absl::Status ModelError(int code, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(CodeText(code), ": ", text));
}

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_NODES_MODEL_ERROR_H_
