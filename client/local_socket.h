// The client's side of the daemon's local socket (--local_address), over which descriptors of
// memory are passed. For the protocol see ImportShared and ImportCuda in
// proto/resident/v1/buffers.proto. Internal to the client library.
//
// Thread safety: a function without state.
#ifndef RESIDENT_CLIENT_LOCAL_SOCKET_H_
#define RESIDENT_CLIENT_LOCAL_SOCKET_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace resident::client {

// The first bytes of a packet: what the descriptor is one of.
inline constexpr std::string_view kSharedMemoryMagic = "residfd1";
inline constexpr std::string_view kDeviceMemoryMagic = "residcu1";

// Passes a descriptor for a session, and returns the daemon's token for it. The caller keeps
// ownership of `fd`. FAILED_PRECONDITION: there is no socket at the path. UNAVAILABLE: it does not
// answer, or not within the timeout. Otherwise the daemon's error.
absl::StatusOr<std::string> SendDescriptor(const std::string& path, std::string_view magic,
                                           const std::string& session, int fd,
                                           absl::Duration timeout);

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_LOCAL_SOCKET_H_
