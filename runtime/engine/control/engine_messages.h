// Between the control plane's messages and the runtime's own types: the one place
// where the two meet.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MESSAGES_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MESSAGES_H_

#include <grpcpp/support/status.h>

#include <vector>

#include "absl/status/status.h"
#include "resident/internal/engine.pb.h"
#include "runtime/engine/engine.h"

namespace resident {

// Without the generation, which travels as generation_transfer.h says, and the ordinal, which is
// known since Prepare.
internal::StartRequest ToMessage(const EngineOptions& options);
EngineOptions FromMessage(const internal::StartRequest& message);

google::protobuf::RepeatedPtrField<internal::OperatorResources> ToMessage(
    const std::vector<OperatorResources>& operators);
std::vector<OperatorResources> FromMessage(
    const google::protobuf::RepeatedPtrField<internal::OperatorResources>& messages);

google::protobuf::RepeatedPtrField<internal::EnginePhase> ToMessage(
    const std::vector<EnginePhase>& phases);
std::vector<EnginePhase> FromMessage(
    const google::protobuf::RepeatedPtrField<internal::EnginePhase>& messages);

internal::SwitchResponse ToMessage(const SwitchTimes& times);
SwitchTimes FromMessage(const internal::SwitchResponse& message);

internal::EngineTraits ToMessage(const EngineTraits& traits);
EngineTraits FromMessage(const internal::EngineTraits& message);

internal::StartResponse ToMessage(const EngineInfo& info);
EngineInfo FromMessage(const internal::StartResponse& message);

// Codes are the same on both sides.
grpc::Status ToControlStatus(const absl::Status& status);
absl::Status FromControlStatus(const grpc::Status& status);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MESSAGES_H_
