// Passes file descriptors to another process, each with a token that says which it
// is. gRPC cannot carry descriptors; the call that a descriptor belongs to names its
// token.
//
// The channel is a socket pair of type SOCK_SEQPACKET. A descriptor is sent before
// the call that names it, so it is there when the call is served. Calls may be served in
// another order than they were made: what comes for a later one is kept, up to
// kMostUnclaimed. The oldest beyond that, which no call asked for (it failed on its way),
// is closed.
//
// Thread safety: from any thread.
//
//   front end                                     engine
//   SendDescriptor(socket, fd, token);            DescriptorInbox inbox(socket);
//   MapShared(token)                 ─────────▶   inbox.Receive(token);
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_DESCRIPTOR_CHANNEL_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_DESCRIPTOR_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace resident {

// Never blocks. RESOURCE_EXHAUSTED: too many descriptors are under way.
// UNAVAILABLE: the other process is gone.
absl::Status SendDescriptor(int socket, int fd, uint64_t token);

class DescriptorInbox {
 public:
  static constexpr size_t kMostUnclaimed = 8;

  // `socket` stays the caller's and outlives the inbox.
  explicit DescriptorInbox(int socket) : socket_(socket) {}
  ~DescriptorInbox();
  DescriptorInbox(const DescriptorInbox&) = delete;
  DescriptorInbox& operator=(const DescriptorInbox&) = delete;

  // The descriptor that was sent with `token`; the caller closes it. Never blocks.
  // NOT_FOUND: none was sent, or too many others were.
  absl::StatusOr<int> Receive(uint64_t token);

 private:
  const int socket_;
  absl::Mutex mu_;
  std::map<uint64_t, int> unclaimed_ ABSL_GUARDED_BY(mu_);  // By token.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_DESCRIPTOR_CHANNEL_H_
