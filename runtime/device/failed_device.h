// FailedDevice: a device whose engine did not start when the daemon did, beside others that
// serve. It is unhealthy, says why, and takes nothing.
//
// It stays so until the daemon is started again: what operators must be compiled for is
// known from a device's first engine, so none was installed for this one.
//
// Thread safety: as Device.
#ifndef RESIDENT_RUNTIME_DEVICE_FAILED_DEVICE_H_
#define RESIDENT_RUNTIME_DEVICE_FAILED_DEVICE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/device/device.h"

namespace resident {

class FailedDevice final : public Device {
 public:
  // `name`: "GPU 1". `why`: what Device::Create said.
  FailedDevice(const DeviceOptions& options, const std::string& name, const absl::Status& why)
      : index_(options.index), queue_(options.queue) {
    snapshot_.state = State::kUnhealthy;
    snapshot_.detail = absl::StrCat(name, " did not start with the daemon: ", why.message(),
                                    "; the daemon goes on without it. Fix: remove the cause and "
                                    "restart the daemon, or use another device");
    snapshot_.info.traits.engine = std::string(options.engine_type->name);
    snapshot_.info.name = name;
  }

  uint32_t index() const override { return index_; }
  DeviceQueue& queue() override { return queue_; }
  std::shared_ptr<EngineSession> session() override { return nullptr; }
  void StartPark(Waiter waiter) override { waiter.settled(Unhealthy()); }
  void StartResume(Waiter waiter) override { waiter.settled(Unhealthy()); }
  absl::Status LoadGeneration(std::shared_ptr<const Generation>,
                              std::chrono::milliseconds) override {
    return Unhealthy();
  }
  void SetGeneration(std::shared_ptr<const Generation>) override {}
  Snapshot snapshot() const override { return snapshot_; }
  bool started() const override { return false; }
  const DurationHistogram& park_duration() const override { return none_; }
  const DurationHistogram& resume_duration() const override { return none_; }
  const DurationHistogram& generation_pause() const override { return none_; }
  // Nothing changes here any more.
  void OnRestart(std::function<void(const std::shared_ptr<EngineSession>&)>) override {}
  void OnFault(std::function<std::shared_ptr<const Generation>(const DeviceFault&)>) override {}
  void OnStateChange(std::function<void(State)>) override {}
  void Shutdown() override {}

 private:
  absl::Status Unhealthy() const { return errors::DeviceUnhealthy(index_, snapshot_.detail); }

  const uint32_t index_;
  DeviceQueue queue_;  // Without a ring it takes nothing.
  Snapshot snapshot_;
  DurationHistogram none_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_FAILED_DEVICE_H_
