// Calls the operator flux_run on the calling thread like a CPU worker, to run a batch of
// programs without a device: when the daemon checks a program that is installed, and in tests,
// benchmarks and tools.
//
//   HostBatch batch;
//   batch.bytecode = bytes;
//   batch.count = 1;
//   batch.wanted = {0, 1};
//   HostResults results = RunOnHost(batch);
//
// Thread safety: RunOnHost may be called from several threads concurrently.
#ifndef RESIDENT_RUNTIME_FLUX_HOST_OPERATOR_H_
#define RESIDENT_RUNTIME_FLUX_HOST_OPERATOR_H_

#include <cstdint>
#include <vector>

#include "kernels/layout/task.h"
#include "runtime/flux/run.h"

namespace resident::flux {

// The operator's arguments (kernels/flux/run_arguments.h).
struct HostBatch {
  Bytecode bytecode;
  std::vector<uint32_t> offsets;
  std::vector<uint32_t> index;
  std::vector<int32_t> initial;
  int64_t count = 0;
  uint32_t initial_width = 0;
  bool initial_shared = false;
  std::vector<uint32_t> wanted = {0};
  uint64_t max_cycles = 1'000'000;
  bool unknown_nop = false;
  // Number of chunks of the task; they run one after the other.
  uint32_t chunks = 1;
};

struct HostResults {
  CompletionStatus status = CompletionStatus::kOk;
  // Index of the refused argument.
  uint32_t detail = 0;
  std::vector<int32_t> registers;
  std::vector<uint8_t> errors;
  std::vector<uint32_t> cycles;
};

HostResults RunOnHost(const HostBatch& batch);

// Performs one run and returns all registers.
RunResult RunOnHost(const Bytecode& bytecode, const RunOptions& options);

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_HOST_OPERATOR_H_
