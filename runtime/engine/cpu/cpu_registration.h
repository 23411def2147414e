// The functions of the CPU engine that runtime/engine/engines.cc registers.
#ifndef RESIDENT_RUNTIME_ENGINE_CPU_CPU_REGISTRATION_H_
#define RESIDENT_RUNTIME_ENGINE_CPU_CPU_REGISTRATION_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/engine/engine.h"

namespace resident {

inline constexpr char kCpuEngineName[] = "cpu";

inline EngineTraits CpuTraits() {
  EngineTraits traits;
  traits.engine = kCpuEngineName;
  traits.compile_target = "x86-64";
  traits.work_units = "workers";
  // A sixth of the lowest rate that was measured on a core (298 M/s, "FLUX, many programs on one
  // core" in docs/benchmarks), rounded: the core may have other work.
  traits.instructions_per_ms = 50'000;
  traits.run_instructions_per_ms = 50'000;
  // About three times what was measured on a core that other programs used as well: 22 G/s (gemm),
  // 5.9 G/s (sum over rows of f32 that are repeated), 1.0 G/s (sum over one repeated element). The
  // operators are compiled for SSE2, so that another core is faster by its clock only.
  traits.max_operations_per_ms = 64'000'000;
  traits.max_elements_per_ms = 24'000'000;
  traits.max_scattered_elements_per_ms = 6'000'000;
  // The other workers may be busy with tasks of their own.
  traits.units_share_task = false;
  traits.executes_graphs = true;
  // There are few workers, each may have two tasks before it, and a task takes about a sixth of
  // this. Measured on two cores: a lone task beside 3 batches of 300 endless programs takes 0.40 to
  // 0.52 s, the first one up to 0.83 s. With a bound of 4 s it takes 0.82 to 0.86 s, the first one
  // 1.2 s.
  traits.max_task_time = std::chrono::seconds(2);
  return traits;
}

// `ordinal` is ignored: there is one CPU.
absl::StatusOr<std::unique_ptr<Engine>> CreateCpuEngine(int ordinal);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CPU_CPU_REGISTRATION_H_
