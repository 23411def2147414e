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
#include "server/flags.h"

namespace resident {

struct DeviceChoice {
  bool cuda = false;
  int ordinal = 0;
};

// What devices ask about an operator slot (DeviceOptions).
struct SlotInfo {
  std::function<std::string(uint32_t)> name;
  std::function<std::chrono::milliseconds(uint32_t)> time_limit;
};

struct DeviceChoices {
  std::vector<DeviceChoice> devices;  // By index.
  // Why there is no GPU, when GPUs were looked for and none was found.
  std::string gpu_unavailable_reason;
};

// What the flag means on this machine. INVALID_ARGUMENT: not a list of devices;
// UNAVAILABLE: a GPU that is named is not there.
absl::StatusOr<DeviceChoices> ChooseDevices(const std::string& flag);

// What StartDevices starts devices with; others in tests.
struct DeviceStarter {
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const DeviceOptions&)> create;
  // The names of the GPUs there are.
  std::function<absl::StatusOr<std::vector<std::string>>()> probe;

  static DeviceStarter Real();
};

// Starts them all at once. One that does not start is given up (FailedDevice) and keeps its
// index, and the others serve. Errors, with the device's name: the first one's if none
// starts; that of one that is a mistake in the flags, which nobody is to find out from a
// device that is missing: INVALID_ARGUMENT, or a GPU that this machine does not have.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> StartDevices(
    const DeviceChoices& choices, const ServeOptions& options, const SlotInfo& slots,
    const DeviceStarter& starter = DeviceStarter::Real());

}  // namespace resident

#endif  // RESIDENT_SERVER_DEVICE_LIST_H_
