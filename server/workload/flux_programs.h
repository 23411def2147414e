// FluxPrograms: checks a batch of FLUX programs and converts it to wide tasks of flux.run: one, or
// several if it might take long (flux_split.h).
//
// Used in these steps: Check (the message alone), Split and CheckSplit (for the device),
// staging_bytes, Fill.
//
// Thread safety: an object belongs to one thread.
#ifndef RESIDENT_SERVER_WORKLOAD_FLUX_PROGRAMS_H_
#define RESIDENT_SERVER_WORKLOAD_FLUX_PROGRAMS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "resident/v1/executor.pb.h"
#include "runtime/base/limits.h"
#include "runtime/device/device.h"
#include "runtime/operators/registry/registry.h"
#include "server/workload/flux_split.h"
#include "server/workload/workload.h"

namespace resident {

// The order in which the runs of a batch execute that selects programs by index: runs of the same
// program are adjacent, so that the lanes of a warp, and the runs that a thread executes at a time,
// take the same path. The client sees its own order.
//
//   const std::vector<uint32_t> order = OrderByProgram(index, programs);
//   if (!order.empty()) GatherRows(order, inputs, row_bytes, staged);
//   ...
//   if (!order.empty()) ScatterRows(order, outputs, row_bytes, answer);

// The run at each position; runs of the same program keep their order. Empty: the runs are in this
// order already. `programs`: every element of `index` is below it.
std::vector<uint32_t> OrderByProgram(std::span<const uint32_t> index, uint32_t programs);

// Copies the row of run order[p], of `row_bytes` bytes, to position p of `to`; and back.
void GatherRows(std::span<const uint32_t> order, const void* from, size_t row_bytes, void* to);
void ScatterRows(std::span<const uint32_t> order, const void* from, size_t row_bytes, void* to);

// The addresses in staging memory to which the programs of a batch write their results.
struct FluxOutputs {
  uint32_t runs = 0;
  // The runs of each task but the last one, which may have fewer.
  uint64_t runs_of_task = 1;
  uint32_t wanted = 0;  // Registers of each run.
  const uint8_t* registers = nullptr;
  const uint8_t* errors = nullptr;
  const uint8_t* cycles = nullptr;
  // The run of the client at each position of these results; empty: the same (OrderByProgram).
  std::vector<uint32_t> order;
};

class FluxPrograms {
 public:
  // `installed`: the program of the operator that the message names; null if the message contains
  // its own. Both must outlive the object.
  FluxPrograms(const v1::FluxPrograms& message, const std::string* installed)
      : message_(message), bytecode_(installed == nullptr ? message.bytecode() : *installed) {}

  // Checks every offset, index and length against the data sent.
  absl::Status Check(const Limits& limits);

  uint32_t runs() const { return runs_; }
  uint64_t bytecode_bytes() const { return bytecode_.size(); }
  // Bytes of staging memory for inputs and outputs.
  uint64_t staging_bytes() const { return staging_bytes_; }
  // Whether the bytecode is so large, and read so often, that it should be copied into device
  // memory before the programs run.
  bool wants_staging() const;

  // The division of the runs into tasks on this engine; for `time_limit`, see SplitFlux. If the
  // message sets no limit of cycles, lowers the default limit to what the engine can execute in
  // that time.
  FluxSplit Split(const EngineInfo& engine, std::chrono::milliseconds time_limit);
  // INVALID_ARGUMENT: the message allows a run more cycles than this device can execute in time, or
  // there are more tasks than a batch may have.
  absl::Status CheckSplit(const FluxSplit& split) const;
  // The largest number of tasks that Fill creates, including the one that stages the bytecode;
  // bytes of their descriptors and arguments.
  uint64_t max_tasks(const FluxSplit& split) const {
    return (wants_staging() ? 1 : 0) + split.tasks(runs_);
  }
  uint64_t descriptor_bytes(const FluxSplit& split) const;
  // Bytes of registers, errors and cycles, and of the statuses if a run fails: in the message and
  // in its bytes.
  uint64_t answer_bytes() const { return uint64_t{runs_} * (4 * wanted_count_ + 1 + 4 + 4 + 1); }
  // Bytes of the order of the runs.
  uint64_t order_bytes() const { return indexed() ? uint64_t{4} * (runs_ + programs_) : 0; }

  // Fills in the tasks that run the programs, and one before them that copies the
  // bytecode when `staged` is not null.
  FluxOutputs Fill(const ResolvedOperator& flux_run, const ResolvedOperator& copy_bytes,
                   const FluxSplit& split, const StagingMemory& staging, const DeviceMemory* staged,
                   RequestBatch& batch) const;

 private:
  bool indexed() const { return message_.program_index_size() != 0; }
  // Checks the programs' offsets and counts the programs.
  absl::Status CheckOffsets();
  // Copies the inputs to staging memory. Returns the order of the runs there; empty: that of the
  // message.
  std::vector<uint32_t> CopyInputs(const StagingMemory& staging) const;
  // Returns the offset of `bytes` in staging memory.
  uint64_t Reserve(uint64_t bytes);
  // The task of runs [first, first + runs); `staging` and `bytecode` are addresses.
  void FillRunTask(const ResolvedOperator& flux_run, const FluxSplit& split, uint64_t staging,
                   uint64_t bytecode, uint64_t first, uint64_t runs, TaskDescriptor& task,
                   Argument* arguments) const;

  const v1::FluxPrograms& message_;
  const std::string& bytecode_;
  uint32_t programs_ = 1;
  uint32_t runs_ = 0;
  uint32_t wanted_count_ = 1;
  uint64_t wanted_ = 0;  // Register k in bits 4k to 4k + 3.
  uint64_t max_cycles_ = 0;
  bool initial_shared_ = false;
  uint64_t staging_bytes_ = 0;
  // Offsets in staging memory.
  uint64_t bytecode_at_ = 0;
  uint64_t offsets_at_ = 0;
  uint64_t index_at_ = 0;
  uint64_t initial_at_ = 0;
  uint64_t registers_at_ = 0;
  uint64_t errors_at_ = 0;
  uint64_t cycles_at_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_FLUX_PROGRAMS_H_
