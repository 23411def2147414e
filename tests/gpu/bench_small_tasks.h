// The part of bench_resident that runs thousands of small regular tasks, as ranges: 10,000 adds of
// 256 to 16,384 elements, and 1,000 sums over the last dimension of each of four shapes. Every task
// has buffers of its own. bench_small_tasks.py runs the same with PyTorch.
//
//   BenchSmallTasks(harness, ring, device, report, /*rounds=*/20);
//
// Thread safety: that of DeviceTasks.
#ifndef RESIDENT_TESTS_GPU_BENCH_SMALL_TASKS_H_
#define RESIDENT_TESTS_GPU_BENCH_SMALL_TASKS_H_

#include "runtime/ring/host_ring.h"
#include "tests/gpu/device_tasks.h"
#include "tests/support/bench_report.h"
#include "tests/support/engine_harness.h"

namespace resident::testing {

// Ends the benchmark if a result is wrong. A figure is the median of `rounds` rounds: the time from
// the first publication to the last completion, divided by the number of tasks.
void BenchSmallTasks(const EngineHarness& harness, HostRing& ring, DeviceTasks& device,
                     BenchReport& report, int rounds);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_BENCH_SMALL_TASKS_H_
