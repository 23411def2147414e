// Sends a generation to an engine process: its description in a message, its objects
// (possibly several MiB) in a sealed memory object whose descriptor is sent with the request.
// Operators that share an object also share it in the engine.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_GENERATION_TRANSFER_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_GENERATION_TRANSFER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "resident/internal/engine.pb.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/engine/generation.h"

namespace resident {

// Fills in `message`. Returns the descriptor of the objects' bytes, or none if there are no
// objects. RESOURCE_EXHAUSTED: no memory or descriptor for them.
absl::StatusOr<UniqueFd> PackGeneration(const Generation& generation,
                                        internal::Generation* message);

// `fd`: the descriptor that came with the message; -1: none. INVALID_ARGUMENT: the sizes in the
// message and of the memory object differ.
absl::StatusOr<std::shared_ptr<const Generation>> UnpackGeneration(
    const internal::Generation& message, int fd);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_GENERATION_TRANSFER_H_
