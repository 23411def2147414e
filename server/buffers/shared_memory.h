// Opens a client's POSIX shared-memory object by its name; checks the size of one that was passed
// as a descriptor.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_BUFFERS_SHARED_MEMORY_H_
#define RESIDENT_SERVER_BUFFERS_SHARED_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace resident {

// Opens an object of at least `size_bytes` by its name and returns a descriptor, which the caller
// closes. The daemon may be able to open more objects than its clients may; therefore only objects
// that belong to the daemon's user, or that all users may read and write, are accepted.
// REQUIRES: Buffers::named_shared_memory, because a name does not prove that the client may use the
// object. Errors: INVALID_ARGUMENT (name, size), NOT_FOUND, PERMISSION_DENIED.
absl::StatusOr<int> OpenSharedMemory(const std::string& name, uint64_t size_bytes);

// INVALID_ARGUMENT: shared memory that a client passed has less than `size_bytes`, or that is 0.
absl::Status CheckSharedSize(int fd, uint64_t size_bytes);

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_SHARED_MEMORY_H_
