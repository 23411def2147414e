// Placement: the device that runs a batch or holds a buffer, and its current engine.
//
// If the client requests no device, a device that was parked by an administrator is skipped while
// another one is open, because work on it would wait until it is resumed.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_WORKLOAD_PLACEMENT_H_
#define RESIDENT_SERVER_WORKLOAD_PLACEMENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/device/device.h"

namespace resident {

struct Placement {
  uint32_t device = 0;
  std::shared_ptr<EngineSession> session;
};

// Chooses the device of a batch. `wanted`: the device requested, or that of the buffers; nullopt:
// the one with the fewest tasks queued and in flight. Errors: NOT_FOUND (no such device),
// UNAVAILABLE (no engine).
absl::StatusOr<Placement> Place(const std::vector<Device*>& devices,
                                std::optional<uint32_t> wanted);

// Chooses the device of a buffer of `bytes` bytes. `wanted`: the device requested; nullopt: `home`,
// the device of the client's newest buffer, if it has room, because all buffers of a task must be
// on one device; otherwise the one with the most free memory. Errors: see Place.
absl::StatusOr<Placement> PlaceBuffer(const std::vector<Device*>& devices,
                                      std::optional<uint32_t> wanted, std::optional<uint32_t> home,
                                      uint64_t bytes);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_PLACEMENT_H_
