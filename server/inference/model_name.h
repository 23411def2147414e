// ModelName: the name and version of a model in a request. "NAME" is an operator, called with one
// task; "NAME:batch" is the same operator, called with many tasks, which the first dimension of
// every tensor counts. Names of operators contain no ':'.
//
// Thread safety: a value and a pure function.
//
//   ASSIGN_OR_RETURN(const ModelName model, ParseModelName("add:batch", "3"));
//   model.operator_name   // "add"
#ifndef RESIDENT_SERVER_INFERENCE_MODEL_NAME_H_
#define RESIDENT_SERVER_INFERENCE_MODEL_NAME_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/operators/registry/operator_version.h"

namespace resident {

inline constexpr std::string_view kBatchSuffix = ":batch";

struct ModelName {
  std::string operator_name;
  bool batch = false;
  uint32_t version = 0;  // 0: the active version.

  std::string text() const {
    return batch ? operator_name + std::string(kBatchSuffix) : operator_name;
  }
};

// INVALID_ARGUMENT: the version is not a number. NOT_FOUND: an operator that only the daemon itself
// may call.
absl::StatusOr<ModelName> ParseModelName(const std::string& name, const std::string& version);

// Whether the operator is a model. Some operators are only for the daemon itself.
bool IsModel(const Operator& op);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_MODEL_NAME_H_
