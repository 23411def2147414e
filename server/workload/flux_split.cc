#include "server/workload/flux_split.h"

#include <algorithm>

namespace resident {
namespace {

using std::chrono::milliseconds;

// Instructions for each millisecond of the time limit. CPU: a sixth of what a worker executes in it
// (300 M/s), because its core may have other work. GPU: a quarter of what a block of 256 threads
// executes while other blocks run (1 G/s, "FLUX, one program over 1 Mi inputs" in docs/benchmarks).
constexpr uint64_t kCpuInstructions = 50'000;
constexpr uint64_t kGpuInstructions = 256'000;
// The same for a single run on a GPU whose blocks all run FLUX (measured: 3,800 for one program;
// 6,800 for a lone run).
constexpr uint64_t kGpuRunInstructions = 2'500;
// With a longer time limit, or none, tasks are sized for this one, because parking, changes of
// generation and the lone task of another client wait for tasks. A CPU has few workers, and a task
// may wait behind two others on each.
constexpr milliseconds kMaxGpuLimit{10'000};
constexpr milliseconds kMaxCpuLimit{4'000};
// Slowdown of a GPU if the lanes of a warp execute different programs.
constexpr uint64_t kDivergence = 8;
constexpr uint64_t kWarp = 32;
// A chunk has at least one run for each thread of a GPU's largest block, unless that takes too
// long. For one program over many inputs it has enough runs to be worth staging the program.
constexpr uint64_t kRunsOfBlock = 256;
// Threads of a block when the figures above were measured.
constexpr uint64_t kMeasuredThreads = 256;
constexpr uint64_t kMaxRunsOfChunk = 4096;
constexpr uint64_t kChunksOfWorker = 4;
// The smallest chunk on the CPU is this part of a task that might take long.
constexpr uint64_t kCpuParts = 16;

uint64_t Up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

uint64_t FluxSplit::task_bound_ns(const FluxWork& work) const {
  // At most 2^32 runs of 2^32 cycles: they fit 128 bits with the nanoseconds.
  const unsigned __int128 instructions =
      static_cast<unsigned __int128>(std::min(work.runs, runs_of_task)) * work.max_cycles;
  return static_cast<uint64_t>(instructions * 1'000'000 / instructions_per_ms);
}

FluxSplit SplitFlux(const FluxWork& work, const EngineInfo& engine, milliseconds time_limit) {
  const bool gpu = engine.kind == "cuda";
  const bool differ = work.programs > 1;
  FluxSplit split;
  if (time_limit.count() > 0) {
    const uint64_t in_a_ms =
        gpu ? kGpuRunInstructions / (differ ? kDivergence : 1) : kCpuInstructions;
    split.most_cycles = in_a_ms * static_cast<uint64_t>(time_limit.count());
  }
  const milliseconds max_limit = gpu ? kMaxGpuLimit : kMaxCpuLimit;
  if (time_limit.count() <= 0 || time_limit > max_limit) time_limit = max_limit;
  const uint64_t ms = static_cast<uint64_t>(time_limit.count());
  const uint64_t workers = std::max<uint32_t>(1, engine.workers);
  const uint64_t cycles = std::max<uint64_t>(1, work.max_cycles);
  split.instructions_per_ms = kCpuInstructions;
  uint64_t least;  // Runs of a chunk.
  if (gpu) {
    split.instructions_per_ms =
        std::max<uint64_t>(1, kGpuInstructions * engine.threads_per_block / kMeasuredThreads /
                                  (differ ? kDivergence : 1));
    const uint64_t instructions = split.instructions_per_ms * ms;
    const uint64_t warps = instructions * workers / cycles / kWarp;
    const uint64_t runs = std::max<uint64_t>(1, warps) * kWarp;
    split.runs_of_task = runs < kRunsOfBlock ? runs : runs / kRunsOfBlock * kRunsOfBlock;
    least = std::clamp(instructions / cycles / kWarp * kWarp, kWarp, kRunsOfBlock);
  } else {
    split.runs_of_task = std::max<uint64_t>(1, kCpuInstructions * ms / cycles);
    least = std::clamp<uint64_t>(split.runs_of_task / kCpuParts, 1, kRunsOfBlock);
  }
  const uint64_t runs = std::min(work.runs, split.runs_of_task);
  const uint64_t fair = Up(runs / (kChunksOfWorker * workers), least);
  const uint64_t max_runs = !differ ? kMaxRunsOfChunk : gpu ? least : kRunsOfBlock;
  split.runs_of_chunk = std::clamp(fair, least, max_runs);
  return split;
}

}  // namespace resident
