// Frames: messages between the front end and its child processes, on a stream socket. A frame is
// the length of the message (eight bytes, little-endian) and the message; a file descriptor may
// travel with it.
//
// Thread safety: one thread at a time for each direction of a socket.
//
//   RETURN_IF_ERROR(WriteFrame(socket, request.SerializeAsString(), wait));
//   ASSIGN_OR_RETURN(std::string bytes, ReadFrame(socket, kMaxBytes, wait));
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_FRAMES_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_FRAMES_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "resident/internal/status.pb.h"
#include "runtime/base/process/unique_fd.h"

namespace resident {

// Called when a socket that does not block is not ready for the poll(2) events. Returns once it
// is, or the reason to give up.
using WaitForFd = std::function<absl::Status(int fd, short events)>;

// Waits without a limit.
absl::Status WaitForever(int fd, short events);

// After any error except WriteFrame's RESOURCE_EXHAUSTED the stream cannot be used: part of a frame
// may have been transferred.

// `fd`, if not -1, is sent along; the caller keeps its own. RESOURCE_EXHAUSTED: the system cannot
// pass a descriptor now; nothing was sent. UNAVAILABLE: the other process has
// closed its end. Otherwise the error of `wait`.
absl::Status WriteFrame(int socket, absl::string_view message, const WaitForFd& wait, int fd = -1);

// `received`, if not null, takes the descriptor that came with the frame, if one did; without it
// the system discards descriptors. OUT_OF_RANGE: the other process has closed its end after a
// complete frame. UNAVAILABLE: within a frame. RESOURCE_EXHAUSTED: the message has more than
// `max_bytes`. Otherwise the error of `wait`.
absl::StatusOr<std::string> ReadFrame(int socket, uint64_t max_bytes, const WaitForFd& wait,
                                      UniqueFd* received = nullptr);

// These convert absl::Status to its message in the protocols of child processes, and back. Bytes that are not UTF-8 are replaced.
void SetStatus(const absl::Status& status, internal::Status* to);
absl::Status GetStatus(const internal::Status& from);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_FRAMES_H_
