#include "tests/flux/engine_runs.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/flux/run_arguments.h"

namespace resident::flux {
namespace {

using testing::DenseTensor;
using testing::Scalar;

constexpr uint32_t kRegisterCount = 16;
// All registers, in order.
constexpr uint64_t kAllRegisters = 0xfedcba9876543210;
constexpr int kPattern = 0xa5;

template <typename T>
int64_t Size(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size());
}

}  // namespace

template <typename T>
void EngineRuns::Area::Set(const std::vector<T>& values) {
  const uint64_t size = values.size() * sizeof(T);
  if (size > bytes) {
    std::fprintf(stderr, "engine runs: a task with %zu values is over the limit\n", values.size());
    std::abort();
  }
  if (size != 0) std::memcpy(span.host, values.data(), size);
}

void EngineRuns::Area::Poison() { std::memset(span.host, kPattern, bytes); }

EngineRuns::EngineRuns(testing::EngineHarness& harness, uint32_t max_runs, uint64_t max_bytecode)
    : harness_(harness),
      ring_(harness.NewRing()),
      code_(harness, max_bytecode),
      offsets_(harness, uint64_t{4} * (max_runs + 1)),
      index_(harness, uint64_t{4} * max_runs),
      initial_(harness, uint64_t{4} * kRegisterCount * max_runs),
      registers_(harness, uint64_t{4} * kRegisterCount * max_runs),
      errors_(harness, max_runs),
      cycles_(harness, uint64_t{4} * max_runs) {}

std::vector<RunResult> EngineRuns::Run(const HostBatch& batch, const std::vector<RunOptions>& runs,
                                       uint32_t slot) {
  const int64_t count = Size(runs);
  std::vector<int32_t> initial;
  for (const RunOptions& run : runs) {
    initial.insert(initial.end(), run.initial.begin(), run.initial.end());
  }
  code_.Set(batch.bytecode);
  offsets_.Set(batch.offsets);
  index_.Set(batch.index);
  initial_.Set(initial);
  registers_.Poison();
  errors_.Poison();
  cycles_.Poison();
  const std::vector<Argument> arguments = {
      DenseTensor(code_.span.address, DType::kU8, {Size(batch.bytecode)}),
      DenseTensor(offsets_.span.address, DType::kU32, {Size(batch.offsets)}),
      DenseTensor(index_.span.address, DType::kU32, {Size(batch.index)}),
      DenseTensor(initial_.span.address, DType::kI32, {Size(initial)}),
      DenseTensor(registers_.span.address, DType::kI32, {count * kRegisterCount}),
      DenseTensor(errors_.span.address, DType::kU8, {count}),
      DenseTensor(cycles_.span.address, DType::kU32, {count}),
      Scalar(runs.size()),
      Scalar(kRegisterCount),
      Scalar(0),
      Scalar(kAllRegisters),
      Scalar(kRegisterCount),
      Scalar(runs[0].max_cycles),
      Scalar(runs[0].unknown_nop),
  };
  const TaskCompletion completion =
      RunTask(testing::ArgumentTask(slot, kRunArguments, batch.chunks), arguments);
  if (completion.status != CompletionStatus::kOk) {
    std::fprintf(stderr, "engine runs: a task ended with status %d, detail %u\n",
                 static_cast<int>(completion.status), static_cast<unsigned>(completion.detail));
  }
  std::vector<RunResult> results(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const int32_t* const registers = registers_.span.as<int32_t>() + i * kRegisterCount;
    std::copy(registers, registers + kRegisterCount, results[i].registers.begin());
    results[i].error = errors_.span.as<uint8_t>()[i];
    results[i].cycles = cycles_.span.as<uint32_t>()[i];
    results[i].status = completion.status;
  }
  return results;
}

TaskCompletion EngineRuns::RunTask(const TaskDescriptor& task,
                                   const std::vector<Argument>& arguments) {
  const uint64_t sequence = *ring_->Reserve();
  std::copy(arguments.begin(), arguments.end(), ring_->arguments(sequence)->arguments);
  ring_->Publish(sequence, task);
  harness_.Ring();
  TaskCompletion completion{};
  while (ring_->Consume([&](uint64_t, const TaskCompletion& c) { completion = c; }) == 0) {
  }
  return completion;
}

}  // namespace resident::flux
