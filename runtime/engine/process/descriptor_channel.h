// Passes file descriptors to another process, each with a token that says which it
// is. gRPC cannot carry descriptors; the call that a descriptor belongs to names its
// token.
//
// The channel is a socket pair of type SOCK_SEQPACKET. A descriptor is sent before
// the call that names it, so it is there when the call is served. One that no call
// asks for (its call failed on the way) is closed by the next Receive.
//
// Thread safety: Send from any thread; Receive from one at a time.
//
//   front end                                     engine
//   SendDescriptor(socket, fd, token);
//   MapShared(token)                 ─────────▶   ReceiveDescriptor(socket, token);
#ifndef RESIDENT_RUNTIME_ENGINE_PROCESS_DESCRIPTOR_CHANNEL_H_
#define RESIDENT_RUNTIME_ENGINE_PROCESS_DESCRIPTOR_CHANNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// Never blocks. RESOURCE_EXHAUSTED: too many descriptors are under way.
// UNAVAILABLE: the other process is gone.
absl::Status SendDescriptor(int socket, int fd, uint64_t token);

// The descriptor that was sent with `token`; the caller closes it. Never blocks.
// NOT_FOUND: none was sent. Tokens rise: what was sent with a lower one is closed.
absl::StatusOr<int> ReceiveDescriptor(int socket, uint64_t token);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_PROCESS_DESCRIPTOR_CHANNEL_H_
