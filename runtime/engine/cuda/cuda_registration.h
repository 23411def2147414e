// The functions of the CUDA engine that runtime/engine/engines.cc registers. In a build without the
// CUDA toolkit (no_cuda.cc) they return an error.
#ifndef RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_REGISTRATION_H_
#define RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_REGISTRATION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/engine/engine.h"

namespace resident {

inline constexpr char kCudaEngineName[] = "cuda";

// `architecture`: as in 90. `threads_per_block`: those that run operators. `graph_blocks`: as of
// GraphBlocks (launch_shape.h).
inline EngineTraits CudaTraits(uint32_t architecture, uint32_t threads_per_block,
                               uint32_t graph_blocks) {
  EngineTraits traits;
  traits.engine = kCudaEngineName;
  traits.compile_target = absl::StrCat("sm_", architecture);
  traits.work_units = "blocks";
  // A quarter of what a block of 256 threads executes beside others (1 G/s, "FLUX, one program
  // over 1 Mi inputs" in docs/benchmarks).
  traits.instructions_per_ms = uint64_t{1'000} * threads_per_block;
  // While all blocks execute FLUX, a run was measured at 3,800 (one program); a lone run at 6,800.
  traits.run_instructions_per_ms = 2'500;
  // More than an SM can do, in clocks of 2 GHz: 8,192 operations (those of the tensor cores with 16
  // bits of the largest architecture), 64 adjacent elements of 16 bits from the L1 cache, and one
  // load of a warp. A block may have an SM for itself.
  constexpr uint64_t kClocksPerMs = 2'000'000;
  traits.max_operations_per_ms = 8'192 * kClocksPerMs;
  traits.max_elements_per_ms = 64 * kClocksPerMs;
  traits.max_scattered_elements_per_ms = 32 * kClocksPerMs;
  traits.lockstep_runs = 32;
  traits.divergence_slowdown = 8;
  // The blocks come to a wide task one after the other and run it together.
  traits.units_share_task = true;
  traits.executes_graphs = graph_blocks > 0;
  traits.graph_workers = graph_blocks;
  traits.maps_device_memory = true;
  traits.max_task_time = std::chrono::seconds(10);
  return traits;
}

// For the GPU with this ordinal. UNAVAILABLE, with the reason: there is no usable GPU, or the build
// has no CUDA.
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(int ordinal);

// As EngineType::open_driver and EngineType::list_devices. Listing creates no context.
void OpenCudaDriver();
absl::StatusOr<std::vector<std::string>> ListCudaDevices();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_REGISTRATION_H_
