// The devices that `--devices` names, started.
//
// Thread safety: a function without state of its own.
#ifndef RESIDENT_SERVER_DEVICE_LIST_H_
#define RESIDENT_SERVER_DEVICE_LIST_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/engine/engine_type.h"
#include "server/flags.h"

namespace resident {

// What devices ask about an operator slot (DeviceOptions).
struct SlotInfo {
  std::function<std::string(uint32_t)> name;
  std::function<std::chrono::milliseconds(uint32_t)> time_limit;
};

struct DeviceChoices {
  std::vector<EngineChoice> devices;  // By index.
  // Why there is no GPU, if GPUs were looked for and none was found.
  std::string gpu_unavailable_reason;
};

// What --devices means on this machine: "all", or names from the table of engines (engines.h) and
// ordinals. INVALID_ARGUMENT: it is not a list of devices.
absl::StatusOr<DeviceChoices> ChooseDevices(const std::string& flag);

// What StartDevices starts devices with; others in tests.
struct DeviceStarter {
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const DeviceOptions&)> create;
  // The names of an engine's devices.
  std::function<absl::StatusOr<std::vector<std::string>>(const EngineType&)> probe;

  static DeviceStarter Real();
};

// Starts them all at once. One that does not start is given up (FailedDevice) and keeps its
// index, and the others serve. Errors, with the device's name: the first one's if none starts;
// also that of a device that cannot start because of a mistake in the flags (INVALID_ARGUMENT, or a
// device that this machine does not have): otherwise nobody would notice the mistake.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> StartDevices(
    const DeviceChoices& choices, const ServeOptions& options, const SlotInfo& slots,
    const DeviceStarter& starter = DeviceStarter::Real());

}  // namespace resident

#endif  // RESIDENT_SERVER_DEVICE_LIST_H_
