#include "server/workload/flux_programs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/flux/run_arguments.h"
#include "runtime/base/status_macros.h"
#include "server/workload/copy_workload.h"
#include "server/workload/errors.h"

namespace resident {

std::vector<uint32_t> OrderByProgram(std::span<const uint32_t> index, uint32_t programs) {
  if (std::is_sorted(index.begin(), index.end())) return {};
  // The position of the next run of each program.
  std::vector<uint32_t> next(size_t{programs} + 1);
  for (const uint32_t program : index) ++next[program + 1];
  for (size_t p = 1; p < next.size(); ++p) next[p] += next[p - 1];
  std::vector<uint32_t> order(index.size());
  for (uint32_t run = 0; run < index.size(); ++run) order[next[index[run]]++] = run;
  return order;
}

void GatherRows(std::span<const uint32_t> order, const void* from, size_t row_bytes, void* to) {
  for (size_t p = 0; p < order.size(); ++p) {
    std::memcpy(static_cast<char*>(to) + p * row_bytes,
                static_cast<const char*>(from) + order[p] * row_bytes, row_bytes);
  }
}

void ScatterRows(std::span<const uint32_t> order, const void* from, size_t row_bytes, void* to) {
  for (size_t p = 0; p < order.size(); ++p) {
    std::memcpy(static_cast<char*>(to) + order[p] * row_bytes,
                static_cast<const char*>(from) + p * row_bytes, row_bytes);
  }
}

namespace {

constexpr uint64_t kTaskBytes = sizeof(TaskDescriptor) + flux::kRunArguments * sizeof(Argument);

constexpr uint32_t kRegisters = 16;
// With this many runs of each program, on average, runs of the same program are counted as
// adjacent.
constexpr uint32_t kRunsOfGroup = 4;
// Programs larger than this on average may be read in place by the operator, several times
// (kernels/flux/run_arguments.h).
constexpr uint64_t kSmallProgramBytes = 64;
constexpr uint64_t kSmallBytecodeBytes = 64 * 1024;

}  // namespace

uint64_t FluxPrograms::Reserve(uint64_t bytes) {
  const uint64_t at = staging_bytes_;
  staging_bytes_ += (bytes + 63) / 64 * 64;
  return at;
}

absl::Status FluxPrograms::CheckOffsets() {
  if (message_.offsets_size() == 0) return absl::OkStatus();
  if (message_.offsets_size() == 1) {
    return errors::FluxOffsets("1 value describes no program");
  }
  programs_ = message_.offsets_size() - 1;
  for (uint32_t p = 0; p < programs_; ++p) {
    if (message_.offsets(p) > message_.offsets(p + 1)) {
      return errors::FluxOffsets(absl::StrCat("value ", p + 1, " (", message_.offsets(p + 1),
                                              ") is below the one before it (", message_.offsets(p),
                                              ")"));
    }
  }
  if (message_.offsets(programs_) > bytecode_.size()) {
    return errors::FluxOffsets(absl::StrCat("the last value is ", message_.offsets(programs_),
                                            " and bytecode has ", bytecode_.size(), " bytes"));
  }
  return absl::OkStatus();
}

absl::Status FluxPrograms::Check(const Limits& limits) {
  RETURN_IF_ERROR(CheckOffsets());
  runs_ = message_.count() == 0 ? programs_ : message_.count();
  if (runs_ > limits.max_batch_tasks) return errors::TooManyTasks(runs_, limits.max_batch_tasks);
  const uint32_t indices = message_.program_index_size();
  if (indices == 0) {
    if (programs_ != 1 && programs_ != runs_) return errors::FluxCount(runs_, programs_);
  } else {
    if (indices != runs_) return errors::FluxIndexLength(indices, runs_);
    for (uint32_t run = 0; run < runs_; ++run) {
      const uint32_t program = message_.program_index(run);
      if (program >= programs_) return errors::FluxIndex(run, program, programs_);
    }
  }

  const uint64_t width = message_.initial_width();
  if (width > kRegisters) return errors::FluxInitialWidth(width);
  const uint64_t initial_bytes = message_.initial().size();
  if (initial_bytes == width * 4) {
    initial_shared_ = width != 0;
  } else if (initial_bytes != width * 4 * runs_) {
    return errors::FluxInitial(initial_bytes, width, runs_);
  }

  if (message_.wanted_size() > static_cast<int>(kRegisters)) {
    return errors::FluxWanted(absl::StrCat(message_.wanted_size(), " registers"));
  }
  if (message_.wanted_size() > 0) wanted_count_ = message_.wanted_size();
  for (int k = 0; k < message_.wanted_size(); ++k) {
    if (message_.wanted(k) >= kRegisters) {
      return errors::FluxWanted(absl::StrCat("there is no register ", message_.wanted(k)));
    }
    wanted_ |= uint64_t{message_.wanted(k)} << (4 * k);
  }

  max_cycles_ = message_.has_max_cycles() ? message_.max_cycles()
                                          : std::min(kFluxDefaultCycles, limits.flux_max_cycles);
  const uint64_t max_allowed = std::min<uint64_t>(limits.flux_max_cycles, UINT32_MAX);
  if (max_cycles_ > max_allowed) return errors::FluxCycles(max_cycles_, max_allowed);
  if (!v1::FluxPrograms::UnknownOpcode_IsValid(message_.unknown_opcode())) {
    return errors::UnknownEnum("FluxPrograms.unknown_opcode", message_.unknown_opcode(),
                               "UNKNOWN_OPCODE_ERROR, UNKNOWN_OPCODE_NOP");
  }

  bytecode_at_ = Reserve(bytecode_.size());
  offsets_at_ = Reserve(uint64_t{4} * message_.offsets_size());
  index_at_ = Reserve(uint64_t{4} * indices);
  initial_at_ = Reserve(initial_bytes);
  registers_at_ = Reserve(uint64_t{4} * runs_ * wanted_count_);
  errors_at_ = Reserve(runs_);
  cycles_at_ = Reserve(uint64_t{4} * runs_);
  return absl::OkStatus();
}

bool FluxPrograms::wants_staging() const {
  const uint64_t bytes = bytecode_.size();
  return bytes > kSmallBytecodeBytes && bytes > kSmallProgramBytes * programs_;
}

FluxSplit FluxPrograms::Split(const EngineInfo& engine, std::chrono::milliseconds time_limit) {
  const bool grouped = indexed() && runs_ / kRunsOfGroup >= programs_;
  FluxWork work = {runs_, programs_, max_cycles_, grouped};
  FluxSplit split = SplitFlux(work, engine, time_limit);
  if (!message_.has_max_cycles() && max_cycles_ > split.max_cycles_of_run) {
    work.max_cycles = max_cycles_ = split.max_cycles_of_run;
    split = SplitFlux(work, engine, time_limit);
  }
  return split;
}

uint64_t FluxPrograms::descriptor_bytes(const FluxSplit& split) const {
  return max_tasks(split) * kTaskBytes;
}

absl::Status FluxPrograms::CheckSplit(const FluxSplit& split) const {
  if (max_cycles_ > split.max_cycles_of_run) {
    return errors::FluxCyclesInTime(max_cycles_, split.max_cycles_of_run);
  }
  const uint64_t tasks = split.tasks(runs_);
  if (tasks * kTaskBytes <= kMaxBatchDescriptorBytes) return absl::OkStatus();
  return errors::FluxTooMuchWork(runs_, max_cycles_, tasks, kMaxBatchDescriptorBytes / kTaskBytes);
}

std::vector<uint32_t> FluxPrograms::CopyInputs(const StagingMemory& staging) const {
  const auto copy = [&](uint64_t at, const void* data, uint64_t bytes) {
    if (bytes != 0) std::memcpy(staging.host + at, data, bytes);
  };
  copy(bytecode_at_, bytecode_.data(), bytecode_.size());
  copy(offsets_at_, message_.offsets().data(), uint64_t{4} * message_.offsets_size());
  const std::string& initial = message_.initial();
  const uint32_t* const index = message_.program_index().data();
  std::vector<uint32_t> order;
  if (indexed()) order = OrderByProgram({index, runs_}, programs_);
  if (order.empty()) {
    copy(index_at_, index, indexed() ? uint64_t{4} * runs_ : 0);
    copy(initial_at_, initial.data(), initial.size());
    return order;
  }
  GatherRows(order, index, 4, staging.host + index_at_);
  if (initial_shared_) {
    copy(initial_at_, initial.data(), initial.size());
  } else if (!initial.empty()) {
    GatherRows(order, initial.data(), size_t{4} * message_.initial_width(),
               staging.host + initial_at_);
  }
  return order;
}

FluxOutputs FluxPrograms::Fill(const ResolvedOperator& flux_run, const ResolvedOperator& copy_bytes,
                               const FluxSplit& split, const StagingMemory& staging,
                               const DeviceMemory* staged, RequestBatch& batch) const {
  std::vector<uint32_t> order = CopyInputs(staging);
  const size_t run_tasks = split.tasks(runs_);
  const size_t first_run_task = staged == nullptr ? 0 : 1;
  batch.tasks.resize(first_run_task + run_tasks);
  batch.arguments_per_task = flux::kRunArguments;
  batch.arguments.resize(batch.tasks.size() * flux::kRunArguments);
  // In order, because the programs need the staged bytecode.
  batch.in_order = staged != nullptr;
  batch.task_bound_ns = split.task_bound_ns({runs_, programs_, max_cycles_});
  batch.long_tasks = split.long_tasks;
  if (staged != nullptr) {
    FillBytesTask(copy_bytes, {staging.address + bytecode_at_, staged->address}, bytecode_.size(),
                  /*workers=*/0, batch.tasks[0], batch.arguments.data());
  }
  const uint64_t bytecode = staged == nullptr ? staging.address + bytecode_at_ : staged->address;
  for (size_t t = 0; t < run_tasks; ++t) {
    const uint64_t first = t * split.runs_of_task;
    FillRunTask(flux_run, split, staging.address, bytecode, first,
                std::min<uint64_t>(split.runs_of_task, runs_ - first),
                batch.tasks[first_run_task + t],
                &batch.arguments[(first_run_task + t) * flux::kRunArguments]);
  }

  return {.runs = runs_,
          .runs_of_task = split.runs_of_task,
          .wanted = wanted_count_,
          .registers = staging.host + registers_at_,
          .errors = staging.host + errors_at_,
          .cycles = staging.host + cycles_at_,
          .order = std::move(order)};
}

void FluxPrograms::FillRunTask(const ResolvedOperator& flux_run, const FluxSplit& split,
                               uint64_t staging, uint64_t bytecode, uint64_t first, uint64_t runs,
                               TaskDescriptor& task, Argument* arguments) const {
  const auto tensor = [&](uint32_t i, DType dtype, uint64_t address, uint64_t elements) {
    arguments[i] = VectorArgument(dtype, address, static_cast<int64_t>(elements));
  };
  const auto scalar = [&](uint32_t i, uint64_t value) {
    std::memset(&arguments[i], 0, sizeof(Argument));
    arguments[i].scalar_bits = value;
  };
  // Data with one entry for each run starts at this task's first run. In every task, offsets are
  // relative to the start of all bytecode. A single program, or programs that are selected by
  // index, are the same for every task.
  const bool program_of_its_own = !indexed() && programs_ > 1;
  const uint64_t width = initial_shared_ ? 0 : message_.initial_width();
  tensor(flux::kRunBytecode, DType::kU8, bytecode, bytecode_.size());
  tensor(flux::kRunOffsets, DType::kU32,
         staging + offsets_at_ + (program_of_its_own ? 4 * first : 0),
         program_of_its_own ? runs + 1 : message_.offsets_size());
  tensor(flux::kRunIndex, DType::kU32, staging + index_at_ + (indexed() ? 4 * first : 0),
         indexed() ? runs : 0);
  tensor(flux::kRunInitial, DType::kI32, staging + initial_at_ + 4 * first * width,
         initial_shared_ ? message_.initial().size() / 4 : runs * width);
  tensor(flux::kRunRegisters, DType::kI32, staging + registers_at_ + 4 * first * wanted_count_,
         runs * wanted_count_);
  tensor(flux::kRunErrors, DType::kU8, staging + errors_at_ + first, runs);
  tensor(flux::kRunCycles, DType::kU32, staging + cycles_at_ + 4 * first, runs);
  scalar(flux::kRunCount, runs);
  scalar(flux::kRunInitialWidth, message_.initial_width());
  scalar(flux::kRunInitialShared, initial_shared_ ? 1 : 0);
  scalar(flux::kRunWanted, wanted_);
  scalar(flux::kRunWantedCount, wanted_count_);
  scalar(flux::kRunMaxCycles, max_cycles_);
  scalar(flux::kRunUnknownNop,
         message_.unknown_opcode() == v1::FluxPrograms::UNKNOWN_OPCODE_NOP ? 1 : 0);

  const uint64_t chunks = split.chunks(runs);
  task = TaskDescriptor{};
  task.operator_slot = static_cast<u16>(flux_run.version->slot);
  task.set_argument_count(flux::kRunArguments);
  task.set_chunks(chunks);
}

}  // namespace resident
