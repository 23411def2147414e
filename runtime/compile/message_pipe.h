// Messages behind their length, on a socket: how the front end and a compile process talk.
//
// Thread safety: one thread for each direction of a descriptor.
//
//   RETURN_IF_ERROR(WriteMessage(fd, request.SerializeAsString(), wait));
//   ASSIGN_OR_RETURN(std::string bytes, ReadMessage(fd, kMaxMessageBytes, wait));
#ifndef RESIDENT_RUNTIME_COMPILE_MESSAGE_PIPE_H_
#define RESIDENT_RUNTIME_COMPILE_MESSAGE_PIPE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// Returns once the descriptor is ready for the poll(2) events, or with why to give up.
using WaitForFd = std::function<absl::Status(int fd, short events)>;

// Waits for as long as it takes.
absl::Status WaitForever(int fd, short events);

// UNAVAILABLE: the other side is gone. Otherwise what `wait` said.
absl::Status WriteMessage(int fd, const std::string& message, const WaitForFd& wait);
// OUT_OF_RANGE: the other side has ended properly. RESOURCE_EXHAUSTED: over `most` bytes.
absl::StatusOr<std::string> ReadMessage(int fd, uint64_t most, const WaitForFd& wait);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_MESSAGE_PIPE_H_
