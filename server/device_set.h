// DeviceSet: starts the devices that `--devices` names. Owns them and the registry of the operators
// that they run; the devices' messages take the operators' names from it.
//
// Thread safety: all members may be called from any thread, except Shutdown.
#ifndef RESIDENT_SERVER_DEVICE_SET_H_
#define RESIDENT_SERVER_DEVICE_SET_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/device/device_control.h"
#include "runtime/engine/engine_type.h"
#include "runtime/operators/registry/registry.h"
#include "server/flags.h"

namespace resident {

// What a device reads about an operator slot (DeviceOptions).
struct SlotInfo {
  std::function<std::string(uint32_t)> name;
  std::function<std::chrono::milliseconds(uint32_t)> time_limit;
};

struct DeviceChoices {
  std::vector<EngineChoice> devices;  // By index.
  // Why there is no GPU; empty unless `--devices=all` found none.
  std::string gpu_unavailable_reason;
};

// The devices that --devices selects on this machine: "all", or names from the table of engines
// (engines.h) and ordinals. INVALID_ARGUMENT: not a list of devices.
absl::StatusOr<DeviceChoices> ChooseDevices(const std::string& flag);

// The functions that StartDevices uses; tests replace them.
struct DeviceStarter {
  std::function<absl::StatusOr<std::unique_ptr<DeviceControl>>(const DeviceOptions&)> create;
  // Returns the names of an engine's devices.
  std::function<absl::StatusOr<std::vector<std::string>>(const EngineType&)> probe;

  static DeviceStarter Real();
};

// Starts all devices in parallel. A device that fails to start is replaced by a FailedDevice with
// the same index, and the others serve. Returns an error, with the device's name, if no device
// starts (the first one's error), or if the cause is a mistake in the flags: INVALID_ARGUMENT, or a
// device that this machine does not have.
absl::StatusOr<std::vector<std::unique_ptr<DeviceControl>>> StartDevices(
    const DeviceChoices& choices, const ServeOptions& options, const SlotInfo& slots,
    const DeviceStarter& starter = DeviceStarter::Real());

class DeviceSet {
 public:
  // Errors: those of ChooseDevices and StartDevices.
  static absl::StatusOr<std::unique_ptr<DeviceSet>> Start(const ServeOptions& options);
  DeviceSet(DeviceChoices choices, std::unique_ptr<Registry> registry,
            std::vector<std::unique_ptr<DeviceControl>> devices);

  Registry& registry() { return *registry_; }
  // By device index. `controls` also starts, parks and stops the devices.
  const std::vector<Device*>& devices() const { return devices_; }
  const std::vector<DeviceControl*>& controls() const { return controls_; }
  // The devices that started.
  std::vector<DeviceControl*> started() const;
  // By device index.
  const std::vector<EngineChoice>& engines() const { return choices_.devices; }
  // See DeviceChoices.
  const std::string& gpu_unavailable_reason() const { return choices_.gpu_unavailable_reason; }

  // Ends the engines. No callback of a device is called afterwards. Idempotent.
  void Shutdown();

 private:
  const DeviceChoices choices_;
  const std::unique_ptr<Registry> registry_;
  const std::vector<std::unique_ptr<DeviceControl>> owned_;
  std::vector<Device*> devices_;
  std::vector<DeviceControl*> controls_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_DEVICE_SET_H_
