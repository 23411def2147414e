// Opens a client's POSIX shared-memory object by its name; checks the size of one that was passed
// as a descriptor.
//
// Thread safety: functions without state of their own.
#ifndef RESIDENT_SERVER_RPC_SHARED_MEMORY_H_
#define RESIDENT_SERVER_RPC_SHARED_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace resident {

// By name. REQUIRES: Core::named_shared_memory, as a name does not prove that the client may use
// the object. A descriptor, which the caller closes, of an object of at least `size_bytes`. The
// daemon may be able to open more than its clients may: only objects that belong to
// the daemon's user, or that everybody may read and write, are taken.
// Errors: INVALID_ARGUMENT (name, size), NOT_FOUND, PERMISSION_DENIED.
absl::StatusOr<int> OpenSharedMemory(const std::string& name, uint64_t size_bytes);

// INVALID_ARGUMENT: shared memory that a client passed has less than `size_bytes`, or that is 0.
absl::Status CheckSharedSize(int fd, uint64_t size_bytes);

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_SHARED_MEMORY_H_
