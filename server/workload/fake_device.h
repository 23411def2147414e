// FakeDevice: a Device without an engine, for tests of what happens before the ring.
//
// Its session hands out memory of the heap (runtime/device/fake_session.h); its queue
// never runs anything.
//
// Thread safety: as Device.
#ifndef RESIDENT_SERVER_WORKLOAD_FAKE_DEVICE_H_
#define RESIDENT_SERVER_WORKLOAD_FAKE_DEVICE_H_

#include <functional>
#include <memory>

#include "runtime/device/device.h"
#include "runtime/device/fake_session.h"

namespace resident {

class FakeDevice : public Device {
 public:
  FakeDevice(uint32_t index, uint64_t memory_bytes, uint64_t staging_bytes)
      : index_(index),
        queue_(DeviceQueue::Options()),
        session_(std::make_shared<FakeSession>(1, memory_bytes, staging_bytes)) {}

  uint32_t index() const override { return index_; }
  DeviceQueue& queue() override { return queue_; }
  std::shared_ptr<EngineSession> session() override { return session_; }
  const FakeSession& fake_session() const { return *session_; }
  void StartPark(Waiter waiter) override { waiter.settled(absl::OkStatus()); }
  void StartResume(Waiter waiter) override { waiter.settled(absl::OkStatus()); }
  Snapshot snapshot() const override { return {}; }
  const DurationHistogram& park_duration() const override { return durations_; }
  absl::Status LoadGeneration(std::shared_ptr<const Generation>,
                              std::chrono::milliseconds) override {
    return absl::OkStatus();
  }
  void SetGeneration(std::shared_ptr<const Generation>) override {}
  const DurationHistogram& generation_pause() const override { return durations_; }
  void OnFault(std::function<std::shared_ptr<const Generation>(const DeviceFault&)>) override {}
  const DurationHistogram& resume_duration() const override { return durations_; }
  void OnRestart(std::function<void(const std::shared_ptr<EngineSession>&)>) override {}
  void OnStateChange(std::function<void(State)>) override {}
  void Shutdown() override {}

 private:
  const uint32_t index_;
  DeviceQueue queue_;
  const std::shared_ptr<FakeSession> session_;
  DurationHistogram durations_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_FAKE_DEVICE_H_
