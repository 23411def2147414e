// A generation on its way to an engine process: what it says in a message, its objects
// (some MiB, perhaps) in a sealed memory object whose descriptor is passed beside the
// call. Operators that share an object share it on the other side too.
//
// Thread safety: pure functions.
//
//   front end                                   engine
//   PackGeneration(generation, &message);
//   message.set_token(...); SendDescriptor(...)
//   Stage(message)                  ────────▶   UnpackGeneration(message, fd);
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_GENERATION_TRANSFER_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_GENERATION_TRANSFER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "resident/internal/engine.pb.h"
#include "runtime/engine/generation.h"

namespace resident {

// Fills in `message` but for its token. The descriptor of the bytes, which the caller
// closes; -1: there are none. RESOURCE_EXHAUSTED: no memory or descriptor for them.
absl::StatusOr<int> PackGeneration(const Generation& generation, internal::Generation* message);

// `fd` stays the caller's; -1 with a message without a token. INVALID_ARGUMENT: message
// and bytes do not agree.
absl::StatusOr<std::shared_ptr<const Generation>> UnpackGeneration(
    const internal::Generation& message, int fd);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_GENERATION_TRANSFER_H_
