// Conversions between the messages of the control protocol and the runtime's own types.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MESSAGES_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MESSAGES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "resident/internal/engine.pb.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/generation.h"

namespace resident {

// Requests and responses are smaller than this; the largest ones describe a generation with
// all operator slots in use.
inline constexpr uint64_t kMaxControlMessageBytes = 16u << 20;

// Does not convert the generation (see PackGeneration) and the ordinal (see PrepareRequest).
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

// Sends a generation to an engine process: its description in a message, its objects
// (possibly several MiB) in a sealed memory object whose descriptor is sent with the request.
// Operators that share an object also share it in the engine.

// Fills in `message`. Returns the descriptor of the objects' bytes, or none if there are no
// objects. RESOURCE_EXHAUSTED: no memory or descriptor for them.
absl::StatusOr<UniqueFd> PackGeneration(const Generation& generation,
                                        internal::Generation* message);

// `fd`: the descriptor that came with the message; -1: none. INVALID_ARGUMENT: the sizes in the
// message and of the memory object differ.
absl::StatusOr<std::shared_ptr<const Generation>> UnpackGeneration(
    const internal::Generation& message, int fd);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MESSAGES_H_
