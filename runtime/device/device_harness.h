// Devices for tests that run tasks on a real device, with a real engine process.
//
// The environment selects the engine: RESIDENT_TEST_ENGINE=cpu (the default) or
// cuda, on device 0. So the same tests also run on a machine with a GPU.
//
//   DeviceHarness harness(DeviceHarness::Options());
//   const Floats counters = harness.MakeFloats(100);
//   const auto batch = harness.Run(harness.CountTasks(counters));
//   EXPECT_EQ(batch->failed, 0u);
#ifndef RESIDENT_RUNTIME_DEVICE_DEVICE_HARNESS_H_
#define RESIDENT_RUNTIME_DEVICE_DEVICE_HARNESS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device/device_control.h"
#include "tests/support/eventually.h"

namespace resident {

// The engine that RESIDENT_TEST_ENGINE selects, and whether that is the CUDA engine.
const EngineType* TestEngineType();
bool TestOnCuda();

// The program with the engine role: the one next to the tests, or $RESIDENTD.
std::string EngineProgramForTest();

// The first slot of a built-in or test operator, by its name ("add", "test.count").
uint16_t OperatorSlot(std::string_view name);

using testing::Eventually;

// A batch, and whether it is done.
struct Submission {
  std::shared_ptr<Batch> batch;
  std::shared_ptr<std::atomic<int>> done;  // Times that `done` was called.
  bool Await() const;                      // False after a minute.
};

// Floats in staging memory, which the host can access.
struct Floats {
  std::shared_ptr<const StagingMemory> memory;
  uint32_t count = 0;
  volatile float* host() const { return reinterpret_cast<volatile float*>(memory->host); }
  uint64_t address(uint32_t i = 0) const { return memory->address + 4 * i; }
};

class DeviceHarness {
 public:
  // Small memory, test operators, no idle parking.
  static DeviceOptions Options();

  // Creates the device; if that fails, the test fails.
  explicit DeviceHarness(const DeviceOptions& options = Options());
  ~DeviceHarness();

  DeviceControl& device() { return *device_; }
  pid_t engine_pid() const { return static_cast<pid_t>(device_->snapshot().engine_pid); }
  bool AwaitState(Device::State state);
  // Waits until an engine other than this one serves.
  bool AwaitAnotherEngine(pid_t than);

  // Floats in staging memory of the current session, all with this value.
  Floats MakeFloats(uint32_t count, float value = 0);

  // A task in compact form: vectors of length n, then scalars.
  static TaskDescriptor Task(std::string_view operator_name, uint64_t n,
                             const std::vector<uint64_t>& arguments);
  // One task for each counter, which adds 1 to it.
  std::shared_ptr<Batch> CountTasks(const Floats& counters);
  // One task that keeps a worker busy.
  std::shared_ptr<Batch> SpinTask(const Floats& out, std::chrono::nanoseconds time);
  // A batch of these tasks for the current engine.
  std::shared_ptr<Batch> MakeBatch(std::vector<TaskDescriptor> tasks);

  // Enqueues; the test fails if the queue refuses.
  Submission Submit(std::shared_ptr<Batch> batch);
  // Enqueues and waits.
  std::shared_ptr<Batch> Run(std::shared_ptr<Batch> batch);

  static constexpr ClientId kClient = 1;

 private:
  std::unique_ptr<DeviceControl> device_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_DEVICE_HARNESS_H_
