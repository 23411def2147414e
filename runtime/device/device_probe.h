// Which devices of an engine there are. A child process is asked, because a driver, once it is
// loaded, stays in a process with its threads and its memory, and the front end must not have it.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_DEVICE_PROBE_H_
#define RESIDENT_RUNTIME_DEVICE_DEVICE_PROBE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/engine_type.h"

namespace resident {

// Names of the engine's devices, by ordinal. UNAVAILABLE: why there are none. `program` is run as
// `PROGRAM engine --list_devices=NAME`; empty: this program.
absl::StatusOr<std::vector<std::string>> ProbeDevices(const EngineType& type,
                                                      const std::string& program = "");

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_DEVICE_PROBE_H_
