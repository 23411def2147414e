// Lists the devices of an engine in a child process, so that the front end does not load the
// driver: a loaded driver cannot be unloaded, and keeps threads and memory.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_DEVICE_PROBE_H_
#define RESIDENT_RUNTIME_DEVICE_DEVICE_PROBE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/engine_type.h"

namespace resident {

// Returns the names of the engine's devices, by ordinal. UNAVAILABLE: there are none; the message
// says why. `program` is run as `PROGRAM engine --list_devices=NAME`; empty: this program.
absl::StatusOr<std::vector<std::string>> ProbeDevices(const EngineType& type,
                                                      const std::string& program = "");

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_DEVICE_PROBE_H_
