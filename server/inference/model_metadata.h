// Describes operators as models: ModelMetadata and ModelConfig.
//
// Inputs and outputs are the tensor parameters in the order of the signature; an inout parameter is
// both. A scalar without a default is an input of shape [1]. A scalar with a default is not an
// input, because benchmark tools send random data for every input; the config describes it. A
// bytecode operator has the input `registers` and the outputs `registers`, `errors` and `cycles`.
//
// Thread safety: functions without state.
//
//   FillMetadata(*registry.Describe("add"), /*batch=*/false, response);
#ifndef RESIDENT_SERVER_INFERENCE_MODEL_METADATA_H_
#define RESIDENT_SERVER_INFERENCE_MODEL_METADATA_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "inference/open_inference.pb.h"
#include "runtime/operators/registry/operator_version.h"
#include "runtime/operators/registry/operator_view.h"

namespace resident {

// ModelName: the name and version of a model in a request. "NAME" is an operator, called with one
// task; "NAME:batch" is the same operator, called with many tasks, which the first dimension of
// every tensor counts. Names of operators contain no ':'.
//
// Thread safety: a value and a pure function.
//
//   ASSIGN_OR_RETURN(const ModelName model, ParseModelName("add:batch", "3"));
//   model.operator_name   // "add"

inline constexpr std::string_view kBatchSuffix = ":batch";

struct ModelName {
  std::string operator_name;
  bool batch = false;
  // Which version; at most one is set, and none is the active version.
  uint32_t version = 0;
  std::string content_hash = {};
  std::string label = {};

  VersionRef version_ref() const {
    VersionRef ref(version);
    ref.content_hash = content_hash;
    ref.label = label;
    return ref;
  }
  std::string text() const {
    return batch ? operator_name + std::string(kBatchSuffix) : operator_name;
  }
};

// `version`: a number, "sha256:" and the first digits of a content hash, or "@" and a label.
// INVALID_ARGUMENT: it is none of these. NOT_FOUND: an operator that only the daemon itself
// may call.
absl::StatusOr<ModelName> ParseModelName(const std::string& name, const std::string& version);

// Whether the operator is a model. Some operators are only for the daemon itself.
bool IsModel(const Operator& op);

// The platform of models and of their configs.
inline constexpr char kPlatform[] = "residentd";

// Names of the tensors of a bytecode operator.
inline constexpr char kRegistersTensor[] = "registers";
inline constexpr char kErrorsTensor[] = "errors";
inline constexpr char kCyclesTensor[] = "cycles";

// Whether requests can be served by a version in this state.
bool IsReady(VersionState state);

// `batch`: of the model NAME:batch.
void FillMetadata(const OperatorView& op, bool batch, inference::ModelMetadataResponse* out);
// `max_tasks`: --max_batch_tasks.
void FillConfig(const OperatorView& op, bool batch, uint32_t max_tasks,
                inference::ModelConfig* out);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_MODEL_METADATA_H_
