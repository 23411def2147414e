// How a generation is sent to an engine process: its description in a message, its objects
// (possibly several MiB) in a sealed memory object whose descriptor travels with the request.
// Operators that share an object share it on the other side too.
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

// `fd`: what came with the message; -1: nothing. INVALID_ARGUMENT: message and bytes do not agree.
absl::StatusOr<std::shared_ptr<const Generation>> UnpackGeneration(
    const internal::Generation& message, int fd);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_GENERATION_TRANSFER_H_
