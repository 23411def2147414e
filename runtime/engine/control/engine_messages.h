// Conversions between the messages of the control protocol and the runtime's own types.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MESSAGES_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MESSAGES_H_

#include <cstdint>
#include <vector>

#include "resident/internal/engine.pb.h"
#include "runtime/engine/engine.h"

namespace resident {

// Requests and responses are smaller than this; the largest ones describe a generation with
// all operator slots in use.
inline constexpr uint64_t kMaxControlMessageBytes = 16u << 20;

// Does not convert the generation (see generation_transfer.h) and the ordinal (see PrepareRequest).
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

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MESSAGES_H_
