#include "server/workload/flux_split.h"

#include <algorithm>

namespace resident {
namespace {

using std::chrono::milliseconds;

// A chunk has at least one run for each thread of a GPU's largest block, unless that takes too
// long. If all its runs execute the same program, each thread executes two at a time, so that twice
// as many are better once every block has that many; and it may have enough runs to be worth
// staging the program.
constexpr uint64_t kRunsOfBlock = 256;
constexpr uint64_t kRunsOfBlockTogether = 2 * kRunsOfBlock;
constexpr uint64_t kMaxRunsOfChunk = 4096;
constexpr uint64_t kMaxGroupedRunsOfChunk = 1024;
constexpr uint64_t kChunksOfWorker = 4;
// The least chunk of a task that one work unit may have to execute alone, as a part of that task.
constexpr uint64_t kPartsOfTask = 16;
// Runs that may take longer, even if all execute the same program, are long. A lone task of another
// client should end within a second.
constexpr uint64_t kLongRunMs = 500;

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
  const EngineTraits& traits = engine.traits;
  const bool differ = work.programs > 1;
  const uint64_t slowdown = differ ? std::max(1u, traits.divergence_slowdown) : 1;
  const uint64_t lanes = std::max(1u, traits.lockstep_runs);
  const uint64_t workers = std::max(1u, engine.workers);
  FluxSplit split;
  if (time_limit.count() > 0) {
    split.max_cycles_of_run =
        traits.run_instructions_per_ms / slowdown * static_cast<uint64_t>(time_limit.count());
  }
  if (time_limit.count() <= 0) time_limit = traits.max_task_time;
  time_limit = std::min(time_limit, traits.max_task_time);
  split.instructions_per_ms = std::max<uint64_t>(1, traits.instructions_per_ms / slowdown);
  // Of one work unit.
  const uint64_t instructions =
      split.instructions_per_ms * static_cast<uint64_t>(time_limit.count());
  const uint64_t cycles = std::max<uint64_t>(1, work.max_cycles);
  const uint64_t units = traits.units_share_task ? workers : 1;
  const uint64_t parts = traits.units_share_task ? 1 : kPartsOfTask;
  split.runs_of_task = std::max<uint64_t>(1, instructions * units / cycles / lanes) * lanes;
  if (lanes > 1 && split.runs_of_task > kRunsOfBlock) {
    split.runs_of_task -= split.runs_of_task % kRunsOfBlock;
  }
  // Runs of a chunk: those that end in time, in whole blocks, and the least.
  uint64_t in_time = std::max(instructions / cycles / parts / lanes * lanes, lanes);
  if (in_time > kRunsOfBlock) in_time -= in_time % kRunsOfBlock;
  const uint64_t min_runs = std::min(in_time, kRunsOfBlock);
  split.long_tasks = cycles / std::max<uint64_t>(1, traits.run_instructions_per_ms) > kLongRunMs;
  if (split.long_tasks && traits.units_share_task) {
    split.runs_of_task = split.runs_of_chunk = min_runs;
    return split;
  }
  const uint64_t runs = std::min(work.runs, split.runs_of_task);
  uint64_t max_runs = lanes > 1 ? min_runs : kRunsOfBlock;
  if (work.grouped) max_runs = std::max(max_runs, std::min(in_time, kMaxGroupedRunsOfChunk));
  if (!differ) max_runs = kMaxRunsOfChunk;
  uint64_t min = min_runs;
  if (lanes > 1 && runs / workers >= kRunsOfBlockTogether && in_time >= kRunsOfBlockTogether) {
    min = std::min(kRunsOfBlockTogether, max_runs);
  }
  split.runs_of_chunk = std::clamp(Up(runs / (kChunksOfWorker * workers), min), min, max_runs);
  return split;
}

}  // namespace resident
