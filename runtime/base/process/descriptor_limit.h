// The limit on open file descriptors of this process.
//
// Thread safety: may be called from any thread, but not concurrently.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_DESCRIPTOR_LIMIT_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_DESCRIPTOR_LIMIT_H_

#include <cstdint>

namespace resident {

// Raises the limit to `wanted`, or to the hard limit if that is lower; never lowers it. Returns the
// resulting limit.
uint64_t RaiseDescriptorLimit(uint64_t wanted);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_DESCRIPTOR_LIMIT_H_
