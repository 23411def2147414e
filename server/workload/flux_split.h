// FluxSplit: divides a batch of FLUX runs into tasks, and a task into chunks, so that no accepted
// batch comes near --task_time_limit. Exceeding it ends the engine, and all clients lose their
// tasks there.
//
// The only bound of a program's duration is max_cycles. So a task has at most as many runs as would
// end in time if each ran for max_cycles, on an engine with the least capacity for the task:
//
//   one work unit    (a CPU's worker.) The others may have tasks of their own. The task of a batch
//                    of ordinary programs is still shared, in chunks small enough for all.
//   all work units   (a GPU's blocks, EngineTraits::units_share_task.) They come to a task one
//                    after the other and run it together. If programs differ, the runs that execute
//                    in lockstep wait for one another. Fewer runs than that in a task would not
//                    make it much shorter.
//
// Tasks whose runs may take long (long_tasks) leave some workers free for other clients
// (runtime/queue/ring_backlog.h). Each is one chunk, so that it occupies one worker.
//
// A run that alone might take longer than the limit is not taken (max_cycles_of_run). The speeds
// come from the engine (EngineTraits), which states a safe fraction of what was measured; on a much
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
  uint64_t programs = 1;  // The number of different programs.
  uint64_t max_cycles = 0;
  bool grouped = false;  // Runs of the same program are adjacent.
};

struct FluxSplit {
  uint64_t runs_of_task = 1;
  uint64_t runs_of_chunk = 1;
  // Instructions that a worker is assumed to execute in a millisecond at least.
  uint64_t instructions_per_ms = 1;
  // Whether a run may occupy its worker for longer than other clients should wait.
  bool long_tasks = false;
  // The largest limit of cycles that a run may have.
  uint64_t max_cycles_of_run = UINT64_MAX;

  uint64_t tasks(uint64_t runs) const { return (runs + runs_of_task - 1) / runs_of_task; }
  // The number of chunks of a task with `runs` runs.
  uint64_t chunks(uint64_t runs) const { return (runs + runs_of_chunk - 1) / runs_of_chunk; }
  // Worker time that a task may take, in nanoseconds.
  uint64_t task_bound_ns(const FluxWork& work) const;
};

// `time_limit`: --task_time_limit; 0: none.
FluxSplit SplitFlux(const FluxWork& work, const EngineInfo& engine,
                    std::chrono::milliseconds time_limit);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_FLUX_SPLIT_H_
