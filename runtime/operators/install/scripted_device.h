// ScriptedDevice: a Device whose loads of generations end as a test says. It has no engine
// and runs nothing.
//
// Thread safety: as Device.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_SCRIPTED_DEVICE_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_SCRIPTED_DEVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/device.h"
#include "runtime/queue/device_queue.h"

namespace resident {

// What operators of the device are compiled for.
inline constexpr char kScriptedTarget[] = "scripted";

class ScriptedDevice final : public Device {
 public:
  using Load = std::function<absl::Status(const Generation&)>;

  explicit ScriptedDevice(uint32_t index) : index_(index), queue_(DeviceQueue::Options()) {
    snapshot_.state = State::kResident;
    snapshot_.engine_pid = 1;
    snapshot_.info.generation = 1;
    snapshot_.info.traits.compile_target = kScriptedTarget;
  }

  // What the next loads do, in turn; then they succeed.
  void Then(Load load) {
    absl::MutexLock lock(&mu_);
    script_.push_back(std::move(load));
  }
  void set_state(State state) {
    absl::MutexLock lock(&mu_);
    snapshot_.state = state;
    snapshot_.engine_pid = state == State::kResident ? 1 : 0;
  }
  // A new engine starts with this one; null: with what the device has.
  void Restart(const std::shared_ptr<const Generation>& generation) {
    absl::MutexLock lock(&mu_);
    if (generation != nullptr) next_ = generation;
    snapshot_.info.generation = next_->number;
  }
  // What an engine would start with now.
  std::vector<uint32_t> slots() const {
    absl::MutexLock lock(&mu_);
    return SlotsOf(next_);
  }
  size_t loads() const {
    absl::MutexLock lock(&mu_);
    return loads_;
  }

  static std::vector<uint32_t> SlotsOf(const std::shared_ptr<const Generation>& generation) {
    std::vector<uint32_t> slots;
    if (generation == nullptr) return slots;
    for (const GenerationOperator& op : generation->operators) slots.push_back(op.slot);
    return slots;
  }

  absl::Status LoadGeneration(std::shared_ptr<const Generation> generation,
                              std::chrono::milliseconds) override {
    Load load;
    {
      absl::MutexLock lock(&mu_);
      ++loads_;
      if (generation->number <= snapshot_.info.generation) {
        return absl::FailedPreconditionError("not above");
      }
      if (!script_.empty()) {
        load = std::move(script_.front());
        script_.pop_front();
      }
    }
    const absl::Status status = load ? load(*generation) : absl::OkStatus();
    absl::MutexLock lock(&mu_);
    if (!status.ok() || generation->number <= snapshot_.info.generation) return status;
    next_ = generation;
    snapshot_.info.generation = generation->number;
    return status;
  }
  void SetGeneration(std::shared_ptr<const Generation> generation) override {
    absl::MutexLock lock(&mu_);
    next_ = std::move(generation);
  }
  Snapshot snapshot() const override {
    absl::MutexLock lock(&mu_);
    return snapshot_;
  }

  uint32_t index() const override { return index_; }
  DeviceQueue& queue() override { return queue_; }
  std::shared_ptr<EngineSession> session() override { return nullptr; }
  void StartPark(Waiter waiter) override { waiter.settled(absl::OkStatus()); }
  void StartResume(Waiter waiter) override { waiter.settled(absl::OkStatus()); }
  const DurationHistogram& park_duration() const override { return durations_; }
  const DurationHistogram& resume_duration() const override { return durations_; }
  const DurationHistogram& generation_pause() const override { return durations_; }
  void OnRestart(std::function<void(const std::shared_ptr<EngineSession>&)>) override {}
  void OnFault(std::function<std::shared_ptr<const Generation>(const DeviceFault&)>) override {}
  void OnStateChange(std::function<void(State)>) override {}
  void Shutdown() override {}

 private:
  const uint32_t index_;
  DeviceQueue queue_;
  DurationHistogram durations_;
  mutable absl::Mutex mu_;
  Snapshot snapshot_ ABSL_GUARDED_BY(mu_);
  std::deque<Load> script_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Generation> next_ ABSL_GUARDED_BY(mu_);
  size_t loads_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_SCRIPTED_DEVICE_H_
