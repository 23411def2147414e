// The parameters of a ModelInferRequest: the timeout, scalars of the operator, types of outputs,
// and parameters that clients send to every server.
//
// Thread safety: functions without state.
//
//   ASSIGN_OR_RETURN(const RequestParameters parameters, ReadParameters("add", op, message));
#ifndef RESIDENT_SERVER_INFERENCE_INFER_PARAMETERS_H_
#define RESIDENT_SERVER_INFERENCE_INFER_PARAMETERS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/open_inference.pb.h"
#include "resident/v1/executor.pb.h"
#include "runtime/model/signature.h"
#include "runtime/operators/registry/operator_version.h"

namespace resident {

// The type of an output that a request sets.
struct RequestedType {
  std::optional<DType> dtype;
  std::optional<std::vector<int64_t>> shape;
};

struct RequestParameters {
  uint64_t timeout_us = 0;
  // Whether the answer contains that it is the last one of its request.
  bool final_response = false;
  // By the operator's parameter: scalars that are set here, and types of outputs.
  std::vector<std::optional<v1::ScalarColumn>> scalars;
  std::vector<RequestedType> types;
  // Bytecode only.
  std::vector<uint32_t> wanted;
  std::optional<uint64_t> max_cycles;
  // Of a model that was loaded: its scalars, by name.
  std::map<std::string, double> model_scalars;
};

// INVALID_ARGUMENT: a parameter that is not known, a value that does not fit, a sequence.
absl::StatusOr<RequestParameters> ReadParameters(const std::string& model, const Operator& op,
                                                 const inference::ModelInferRequest& message);

// The same for a model that was loaded, with these scalars.
absl::StatusOr<RequestParameters> ReadModelParameters(const std::string& model,
                                                      const std::set<std::string>& scalars,
                                                      const inference::ModelInferRequest& message);

// A value that is not negative. INVALID_ARGUMENT.
absl::StatusOr<uint64_t> ReadCount(const std::string& name, const inference::InferParameter& value);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFER_PARAMETERS_H_
