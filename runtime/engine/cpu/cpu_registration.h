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
  // A sixth of what a worker executes (300 M/s): its core may have other work.
  traits.instructions_per_ms = 50'000;
  traits.run_instructions_per_ms = 50'000;
  // The other workers may be busy with tasks of their own.
  traits.units_share_task = false;
  // There are few workers, each may have two tasks before it, and a task takes a sixth of this at
  // most. The lone task of another client waits 0.4 s (with 4 s: 0.8 to 1.2 s).
  traits.max_task_time = std::chrono::seconds(2);
  return traits;
}

// `ordinal` is ignored: there is one CPU.
absl::StatusOr<std::unique_ptr<Engine>> CreateCpuEngine(int ordinal);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CPU_CPU_REGISTRATION_H_
