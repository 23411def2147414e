// FailedDevice: a device whose engine failed to start with the daemon, while other devices serve.
// It is unhealthy, reports the reason, and accepts no tasks.
//
// It stays unhealthy until the daemon is restarted: a device's first engine reports what operators
// must be compiled for, so no operators were installed for this device.
//
// Thread safety: see DeviceControl.
#ifndef RESIDENT_RUNTIME_DEVICE_FAILED_DEVICE_H_
#define RESIDENT_RUNTIME_DEVICE_FAILED_DEVICE_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/device/device_control.h"
#include "runtime/device/errors.h"

namespace resident {

class FailedDevice final : public DeviceControl {
 public:
  // `name`: "GPU 1". `why`: what DeviceControl::Create returned.
  FailedDevice(const DeviceOptions& options, const std::string& name, const absl::Status& why)
      : DeviceControl(options.index, options.queue, /*started=*/false) {
    absl::MutexLock lock(&mu_);
    status_.state = State::kUnhealthy;
    status_.detail = absl::StrCat(name, " did not start with the daemon: ", why.message(),
                                  "; the daemon continues without it. Fix: remove the cause and "
                                  "restart the daemon, or use another device");
    status_.info.traits.engine = std::string(options.engine_type->name);
    status_.info.name = name;
  }

  void StartPark(Waiter waiter) override { waiter.settled(Unhealthy()); }
  void StartResume(Waiter waiter) override { waiter.settled(Unhealthy()); }
  absl::Status LoadGeneration(std::shared_ptr<const Generation>,
                              std::chrono::milliseconds) override {
    return Unhealthy();
  }
  void SetGeneration(std::shared_ptr<const Generation>) override {}
  void Shutdown() override {}

 private:
  absl::Status Unhealthy() const {
    absl::MutexLock lock(&mu_);
    return errors::DeviceUnhealthy(index(), status_.detail);
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_FAILED_DEVICE_H_
