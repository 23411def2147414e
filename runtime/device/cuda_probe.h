// Which CUDA devices there are, asked in a child process: the CUDA driver, once loaded,
// stays with a process, its threads and its memory with it, and the front end is to
// stay free of it.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_CUDA_PROBE_H_
#define RESIDENT_RUNTIME_DEVICE_CUDA_PROBE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident {

// Names of the CUDA devices, by ordinal. UNAVAILABLE: why there are none. `program`
// is run as `PROGRAM engine --list_devices`; empty: this program.
absl::StatusOr<std::vector<std::string>> ProbeCudaDevices(const std::string& program = "");

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_CUDA_PROBE_H_
