// Placement: which device runs a batch or holds a buffer, and its engine at this moment.
//
// Where nothing is asked for, a device that somebody has parked is passed over as long as
// another is open: what went there would wait until it is resumed.
//
// Thread safety: functions without state of their own.
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

// Of a batch. `wanted`: the device asked for, or that of the buffers; none: the one with
// the fewest tasks queued and in flight. Errors: NOT_FOUND (no such device), UNAVAILABLE
// (no engine).
absl::StatusOr<Placement> Place(const std::vector<Device*>& devices,
                                std::optional<uint32_t> wanted);

// Of a buffer of so many bytes. `wanted`: the device asked for; none: `home`, where the
// client's newest buffer is, while there is room, since a task takes its buffers from one
// device; else the one with the most free memory. Errors: as Place.
absl::StatusOr<Placement> PlaceBuffer(const std::vector<Device*>& devices,
                                      std::optional<uint32_t> wanted, std::optional<uint32_t> home,
                                      uint64_t bytes);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_PLACEMENT_H_
