#include "runtime/device/device.h"

#include <utility>

#include "absl/synchronization/notification.h"
#include "runtime/device/device_control.h"
#include "runtime/device/spare_engine.h"

namespace resident {

Device::Device(uint32_t index, const DeviceQueue::Options& queue, bool started,
               std::shared_ptr<SpareEngine> spare)
    : index_(index), started_(started), spare_(std::move(spare)), queue_(queue) {}

Device::~Device() = default;

std::shared_ptr<EngineSession> Device::session() const {
  absl::MutexLock lock(&mu_);
  return session_;
}

bool Device::open_to_all() const {
  absl::MutexLock lock(&mu_);
  return session_ != nullptr && !park_requested_;
}

Device::Snapshot Device::snapshot() const {
  Snapshot snapshot;
  std::shared_ptr<EngineSession> session;
  {
    absl::MutexLock lock(&mu_);
    snapshot = status_;
    session = session_;
  }
  if (session != nullptr) snapshot.memory_used_bytes = session->memory_used_bytes();
  if (spare_ != nullptr) snapshot.spare_pid = spare_->pid();
  snapshot.queue = queue_.counters();
  return snapshot;
}

DeviceControl::DeviceControl(uint32_t index, const DeviceQueue::Options& queue, bool started,
                             std::shared_ptr<SpareEngine> spare)
    : Device(index, queue, started, std::move(spare)) {}

void DeviceControl::OnRestart(RestoreCallback restore) {
  absl::MutexLock lock(&mu_);
  restore_ = std::move(restore);
}

void DeviceControl::OnFault(FaultCallback fault) {
  absl::MutexLock lock(&mu_);
  fault_ = std::move(fault);
}

void DeviceControl::OnStateChange(StateCallback changed) {
  absl::MutexLock lock(&mu_);
  changed_ = std::move(changed);
}

absl::Status DeviceControl::Await(void (DeviceControl::*start)(Waiter)) {
  absl::Notification settled;
  absl::Status outcome;
  (this->*start)({[&](const absl::Status& status) {
                    outcome = status;
                    settled.Notify();
                  },
                  nullptr});
  settled.WaitForNotification();
  return outcome;
}

}  // namespace resident
