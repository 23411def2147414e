// FluxSplit: how a batch of FLUX runs becomes tasks, and a task becomes chunks, so that no
// batch that is taken comes near --task_time_limit, which ends the engine and costs
// everybody there their tasks.
//
// Only max_cycles is known of a program. So a task has no more runs than would end in time
// if each looped up to it, on an engine that has as little for the task as may be:
//
//   one work unit    (a CPU's worker.) The others may have tasks of their own. The task of a batch
//                    of ordinary programs is still shared, in chunks small enough for all.
//   all work units   (a GPU's blocks, EngineTraits::units_share_task.) They come to a task one
//                    after the other and run it together. If programs differ, the runs that execute
//                    in lockstep wait for one another. Fewer runs than that in a task would not
//                    make it much shorter.
//
// A run that alone might take longer than the limit is not taken (most_cycles). The speeds come
// from the engine (EngineTraits), which states a safe fraction of what was measured; on a much
// slower machine a task may still exceed the limit.
//
// Thread safety: a function without state.
//
//   const FluxSplit split = SplitFlux({runs, programs, max_cycles}, engine, time_limit);
#ifndef RESIDENT_SERVER_WORKLOAD_FLUX_SPLIT_H_
#define RESIDENT_SERVER_WORKLOAD_FLUX_SPLIT_H_

#include <chrono>
#include <cstdint>

#include "runtime/engine/engine.h"

namespace resident {

struct FluxWork {
  uint64_t runs = 0;
  uint64_t programs = 1;  // Different ones.
  uint64_t max_cycles = 0;
};

struct FluxSplit {
  uint64_t runs_of_task = 1;
  uint64_t runs_of_chunk = 1;
  // Instructions that a worker certainly executes in a millisecond, on which all this is based.
  uint64_t instructions_per_ms = 1;
  // That a run may be allowed.
  uint64_t most_cycles = UINT64_MAX;

  uint64_t tasks(uint64_t runs) const { return (runs + runs_of_task - 1) / runs_of_task; }
  // Of a task of so many runs.
  uint64_t chunks(uint64_t runs) const { return (runs + runs_of_chunk - 1) / runs_of_chunk; }
  // Worker time that a task may take, in nanoseconds.
  uint64_t task_bound_ns(const FluxWork& work) const;
};

// `time_limit`: --task_time_limit; 0: none.
FluxSplit SplitFlux(const FluxWork& work, const EngineInfo& engine,
                    std::chrono::milliseconds time_limit);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_FLUX_SPLIT_H_
