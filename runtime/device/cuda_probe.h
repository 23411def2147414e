// Lists the CUDA devices in a child process, so that the front end does not load the CUDA driver: a
// loaded driver cannot be unloaded, and keeps threads and memory.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_CUDA_PROBE_H_
#define RESIDENT_RUNTIME_DEVICE_CUDA_PROBE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident {

// Returns the names of the CUDA devices, by ordinal. UNAVAILABLE: there are none; the message says
// why. `program` is run as `PROGRAM engine --list_devices`; empty: this program.
absl::StatusOr<std::vector<std::string>> ProbeCudaDevices(const std::string& program = "");

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_CUDA_PROBE_H_
