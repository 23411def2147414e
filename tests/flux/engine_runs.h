// EngineRuns: performs runs of FLUX programs as tasks of a real engine, through its ring. Before
// each task the outputs are filled with a pattern, so that a value that was not written is noticed.
//
//   EngineHarness harness({});
//   EngineRuns engine(harness, /*max_runs=*/2'000, /*max_bytecode=*/1 << 20);
//   HostBatch batch;
//   batch.bytecode = program;
//   std::vector<RunResult> results = engine.Run(batch, {options, options});
//
// Thread safety: none; it uses the only ring of the harness.
#ifndef RESIDENT_TESTS_FLUX_ENGINE_RUNS_H_
#define RESIDENT_TESTS_FLUX_ENGINE_RUNS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/flux/host_operator.h"
#include "runtime/flux/run.h"
#include "runtime/ring/host_ring.h"
#include "tests/support/engine_harness.h"

namespace resident::flux {

class EngineRuns {
 public:
  // The limits are those of one task. The harness must have staging memory for them.
  EngineRuns(testing::EngineHarness& harness, uint32_t max_runs, uint64_t max_bytecode);

  // The runs of a batch's programs as one task. `batch` has the bytecode, offsets, index and
  // chunks; `runs` has the initial registers of each run, and the first one has the limit of cycles
  // and the meaning of unknown opcodes for all. If the task fails, every result has its status.
  // `slot`: of flux_run, or of another operator with its arguments.
  std::vector<RunResult> Run(const HostBatch& batch, const std::vector<RunOptions>& runs,
                             uint32_t slot = testing::OperatorSlot("flux.run"));

 private:
  // Staging memory for one argument.
  struct Area {
    Area(testing::EngineHarness& harness, uint64_t bytes)
        : bytes(bytes), span(harness.Staging(bytes)) {}
    template <typename T>
    void Set(const std::vector<T>& values);
    void Poison();

    uint64_t bytes;
    testing::EngineHarness::Span span;
  };

  TaskCompletion RunTask(const TaskDescriptor& task, const std::vector<Argument>& arguments);

  testing::EngineHarness& harness_;
  const std::shared_ptr<HostRing> ring_;
  Area code_;
  Area offsets_;
  Area index_;
  Area initial_;
  Area registers_;
  Area errors_;
  Area cycles_;
};

}  // namespace resident::flux

#endif  // RESIDENT_TESTS_FLUX_ENGINE_RUNS_H_
