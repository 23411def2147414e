#include "runtime/flux/host_operator.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/flux/run_arguments.h"
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR_ENTRY(flux_run);

namespace resident::flux {
namespace {

// The memory of a CPU worker, reused by all calls.
struct Worker {
  std::unique_ptr<BlockState> state = std::make_unique<BlockState>();
  std::unique_ptr<unsigned char[]> scratch{new (std::align_val_t{64}) unsigned char[kScratchBytes]};
  ~Worker() { operator delete[](scratch.release(), std::align_val_t{64}); }
};

template <typename T>
void SetTensor(Argument* argument, DType dtype, const std::vector<T>& values) {
  argument->tensor = {};
  argument->tensor.address = reinterpret_cast<uint64_t>(values.data());
  argument->tensor.dtype = dtype;
  argument->tensor.rank = 1;
  argument->tensor.shape[0] = static_cast<i64>(values.size());
  argument->tensor.strides[0] = 1;
}

}  // namespace

HostResults RunOnHost(const HostBatch& batch) {
  thread_local Worker worker;
  HostResults results;
  results.registers.resize(batch.count * batch.wanted.size());
  results.errors.resize(batch.count);
  results.cycles.resize(batch.count);

  BlockState* state = worker.state.get();
  state->descriptor = {};
  state->scratch = worker.scratch.get();
  state->status_and_detail = 0;
  Argument* arguments = state->arguments.arguments;
  SetTensor(&arguments[kRunBytecode], DType::kU8, batch.bytecode);
  SetTensor(&arguments[kRunOffsets], DType::kU32, batch.offsets);
  SetTensor(&arguments[kRunIndex], DType::kU32, batch.index);
  SetTensor(&arguments[kRunInitial], DType::kI32, batch.initial);
  SetTensor(&arguments[kRunRegisters], DType::kI32, results.registers);
  SetTensor(&arguments[kRunErrors], DType::kU8, results.errors);
  SetTensor(&arguments[kRunCycles], DType::kU32, results.cycles);
  uint64_t wanted = 0;
  for (size_t k = 0; k < batch.wanted.size() && k < 16; ++k) {
    wanted |= uint64_t{batch.wanted[k] & 15} << 4 * k;
  }
  arguments[kRunCount].scalar_bits = batch.count;
  arguments[kRunInitialWidth].scalar_bits = batch.initial_width;
  arguments[kRunInitialShared].scalar_bits = batch.initial_shared;
  arguments[kRunWanted].scalar_bits = wanted;
  arguments[kRunWantedCount].scalar_bits = batch.wanted.size();
  arguments[kRunMaxCycles].scalar_bits = batch.max_cycles;
  arguments[kRunUnknownNop].scalar_bits = batch.unknown_nop;

  state->chunk_count = batch.chunks;
  for (state->chunk = 0; state->chunk < batch.chunks; ++state->chunk) {
    RESIDENT_OPERATOR_SYMBOL(flux_run)(state);
  }
  results.status = static_cast<CompletionStatus>(state->status_and_detail & 0xffff);
  results.detail = state->status_and_detail >> 16;
  return results;
}

RunResult RunOnHost(const Bytecode& bytecode, const RunOptions& options) {
  HostBatch batch;
  batch.bytecode = bytecode;
  batch.initial.assign(options.initial.begin(), options.initial.end());
  batch.initial_width = 16;
  batch.count = 1;
  batch.wanted = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  batch.max_cycles = options.max_cycles;
  batch.unknown_nop = options.unknown_nop;
  const HostResults results = RunOnHost(batch);
  RunResult result;
  std::copy(results.registers.begin(), results.registers.end(), result.registers.begin());
  result.status = results.status;
  result.error = results.errors[0];
  result.cycles = results.cycles[0];
  return result;
}

}  // namespace resident::flux
