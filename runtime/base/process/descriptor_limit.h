// How many file descriptors this process may have open.
//
// Thread safety: any thread, but one at a time.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_DESCRIPTOR_LIMIT_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_DESCRIPTOR_LIMIT_H_

#include <cstdint>

namespace resident {

// Raises the limit to `wanted`, or as near to it as the system allows (the hard limit);
// never lowers it. The limit that holds then.
uint64_t RaiseDescriptorLimit(uint64_t wanted);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_DESCRIPTOR_LIMIT_H_
