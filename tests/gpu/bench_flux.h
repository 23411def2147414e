// The part of bench_resident that runs FLUX: programs over 1 Mi inputs, interpreted and as native
// code, 1 Mi different programs, and programs selected by index. All data is in device memory.
//
// Every figure's errors are checked in all runs, and registers and cycles of some thousand runs
// beside the reference interpreter (of sum, R0 of all runs beside its formula). Native code must
// give the interpreter's registers, errors and cycles in every run.
//
//   auto generation = NativeFluxGeneration(harness.info().traits.compile_target);
//   harness.Launch(*generation);
//   BenchFlux(device, report, /*rounds=*/10, /*native=*/true);
//
// Thread safety: that of DeviceTasks.
#ifndef RESIDENT_TESTS_GPU_BENCH_FLUX_H_
#define RESIDENT_TESTS_GPU_BENCH_FLUX_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/engine/generation.h"
#include "tests/gpu/device_tasks.h"
#include "tests/support/bench_report.h"

namespace resident::testing {

// Compiles the programs that BenchFlux runs as native code. Errors: those of NativeGeneration.
absl::StatusOr<std::shared_ptr<const Generation>> NativeFluxGeneration(
    const std::string& compile_target);

// Ends the benchmark if a result is wrong. `rounds`: tasks of which a figure is the median.
// `native`: the kernel was launched with NativeFluxGeneration.
void BenchFlux(DeviceTasks& device, BenchReport& report, int rounds, bool native);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_BENCH_FLUX_H_
