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

// Starts them all at once. Errors: the first device's
// that does not start, with its name.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> StartDevices(const DeviceChoices& choices,
                                                                  const ServeOptions& options,
                                                                  const SlotInfo& slots);

}  // namespace resident

#endif  // RESIDENT_SERVER_DEVICE_LIST_H_
