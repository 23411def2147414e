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

#include "inference/open_inference.pb.h"
#include "runtime/operators/registry/operator_view.h"

namespace resident {

// Of models and of their configs.
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
