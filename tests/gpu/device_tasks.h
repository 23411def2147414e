// DeviceTasks: runs tasks of a benchmark one at a time, and copies data between the host and device
// memory with tasks. A task that fails ends the benchmark.
//
//   DeviceTasks device(harness, ring);
//   const uint64_t x = device.Upload(values.data(), values.size() * 4);
//
// Thread safety: none, like that of the ring.
#ifndef RESIDENT_TESTS_GPU_DEVICE_TASKS_H_
#define RESIDENT_TESTS_GPU_DEVICE_TASKS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/layout/task.h"
#include "runtime/ring/host_ring.h"
#include "tests/support/engine_harness.h"

namespace resident::testing {

class DeviceTasks {
 public:
  // Takes 32 MiB of the harness's staging memory.
  DeviceTasks(EngineHarness& harness, std::shared_ptr<HostRing> ring);

  // Submits one task and waits for it. It wakes no worker, which would be part of the time of a
  // lone task: the kernel of a GPU looks for tasks all the time.
  TaskCompletion RunTask(const TaskDescriptor& task, const std::vector<Argument>& arguments = {});

  // Device memory, which is never freed.
  uint64_t Memory(uint64_t bytes) { return harness_.Memory(bytes); }
  // Copies bytes between staging memory and device memory, or inside one of them.
  void Copy(uint64_t to, uint64_t from, uint64_t bytes);
  // Copies from the host to new device memory, and returns its address.
  uint64_t Upload(const void* data, uint64_t bytes);
  void Download(void* data, uint64_t memory, uint64_t bytes);

 private:
  EngineHarness& harness_;
  const std::shared_ptr<HostRing> ring_;
  const EngineHarness::Span staging_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_DEVICE_TASKS_H_
