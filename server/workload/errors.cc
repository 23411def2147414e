#include "server/workload/errors.h"

#include "absl/strings/str_cat.h"
#include "kernels/layout/task.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/errors/reason.h"
#include "runtime/model/errors.h"

namespace resident::errors {

using absl::StrCat;

absl::Status EmptyBatch() {
  return absl::InvalidArgumentError(
      "the batch has no work. Fix: set Batch.tasks or Batch.programs");
}

absl::Status NoTasks() {
  return absl::InvalidArgumentError(
      "OperatorTasks.count is 0. Fix: send at least one task, or no batch");
}

absl::Status TooManyTasks(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("a batch of ", count, " tasks is over the limit of ",
                                           limit,
                                           ". Fix: send smaller batches or raise "
                                           "--max_batch_tasks"));
}

absl::Status TooManyArguments(uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("the batch's tasks take ", bytes,
                                           " bytes of descriptors, over the limit of ", limit,
                                           ". Fix: send fewer tasks in a batch"));
}

absl::Status UnknownEnum(const std::string& field, int value, const std::string& known) {
  return absl::InvalidArgumentError(
      StrCat(field, " has the unknown value ", value, ". Fix: send one of ", known));
}

absl::Status EmptyColumn(const ArgumentRef& place) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place),
             ": the column is empty. Fix: set one of buffer, inline, returned, scalar"));
}

absl::Status ShapeRank(const ArgumentRef& place, size_t rank) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": ", rank,
                                           " dimensions are over the limit "
                                           "of ",
                                           kMaxRank, ". Fix: merge dimensions"));
}

absl::Status NoDType(const ArgumentRef& place) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place), ": dtype is not set. Fix: set it, e.g. DTYPE_F32"));
}

absl::Status ColumnLength(const ArgumentRef& place, const std::string& column, uint64_t got,
                          uint64_t count) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": ", column, " has ", got,
                                           " values for ", count, " tasks. Fix: send ",
                                           column == "offsets" ? "none" : "1", " or ", count));
}

absl::Status MixedBuffers(const ArgumentRef& place, uint64_t first, uint64_t other) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place), ": buffers ", first, " and ", other,
             " differ in dtype or shape, and the "
             "column does not set them. Fix: set BufferColumn.dtype and .shape"));
}

absl::Status StridesRank(const ArgumentRef& place, size_t strides, size_t rank) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), " has ", strides, " strides and ",
                                           rank,
                                           " dimensions. Fix: send one stride for each "
                                           "dimension, or none for a dense tensor"));
}

absl::Status StridedBeyondBuffer(const ArgumentRef& place, uint64_t task, uint64_t offset,
                                 uint64_t bytes_before, uint64_t bytes_from, uint64_t buffer,
                                 uint64_t buffer_bytes) {
  return absl::InvalidArgumentError(StrCat(
      ArgumentText(place), ": task ", task, " reaches from ", bytes_before, " bytes before offset ",
      offset, " to ", bytes_from, " bytes after it, beyond buffer ", buffer, " of ", buffer_bytes,
      " bytes. Fix: change offset, shape or strides so that every element "
      "lies in the buffer"));
}

absl::Status OffsetAlignment(const ArgumentRef& place, uint64_t task, uint64_t offset,
                             uint32_t element_bytes) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": byte offset ", offset,
                                           " of task ", task,
                                           " is not a multiple of the element's ", element_bytes,
                                           " bytes. Fix: send offsets in bytes, aligned to the "
                                           "element"));
}

absl::Status BeyondBuffer(const ArgumentRef& place, uint64_t task, uint64_t offset,
                          uint64_t tensor_bytes, uint64_t buffer, uint64_t buffer_bytes) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place), ": task ", task, "'s tensor of ", tensor_bytes,
             " bytes at offset ", offset, " ends beyond buffer ", buffer, " of ", buffer_bytes,
             " bytes. Fix: check offsets, stride_bytes and shape, or allocate a larger buffer"));
}

absl::Status InlineSize(const ArgumentRef& place, uint64_t got, uint64_t one, uint64_t all) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": inline data has ", got,
                                           " bytes. Fix: send ", all, " (all tasks) or ", one,
                                           " (one task's, shared by all)"));
}

absl::Status ScalarKind(const ArgumentRef& place, const std::string& dtype, bool wants_float,
                        bool has_nan) {
  return absl::InvalidArgumentError(
      wants_float ? StrCat(ArgumentText(place), " is a ", dtype,
                           " and got integers. Fix: send "
                           "ScalarColumn.f64")
                  : StrCat(ArgumentText(place), " is a ", dtype, " and got floating-point numbers",
                           has_nan ? " (including NaN)" : "", ". Fix: send ScalarColumn.i64"));
}

absl::Status ScalarBoth(const ArgumentRef& place) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place),
             ": both f64 and i64 are set, or neither. Fix: set the one that the "
             "parameter takes"));
}

absl::Status ScalarRange(const ArgumentRef& place, uint64_t task, const std::string& value,
                         const std::string& dtype) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": task ", task, "'s value ", value,
                                           " does not fit ", dtype,
                                           ". Fix: send a value in its range"));
}

absl::Status TaskTooLong(const LongTask& task) {
  return absl::InvalidArgumentError(
      StrCat(task.operator_name, ": a task of ", task.amount, " ", task.unit, " takes at least ",
             task.min_seconds, " s on device ", task.device, ", over ",
             task.own_limit ? "the version's time limit" : "--task_time_limit", " of ",
             static_cast<double>(task.limit_ms) / 1e3,
             " s, which would end the engine. Fix: split it into smaller tasks, or ",
             task.own_limit ? "install the operator with a longer time limit"
                            : "raise --task_time_limit"));
}

absl::Status BufferOnOtherDevice(uint64_t id, uint32_t device, uint32_t batch_device) {
  return absl::FailedPreconditionError(StrCat("buffer ", id, " is on device ", device,
                                              " and the batch runs on device ", batch_device,
                                              ". Fix: send the batch to the buffers' device, and "
                                              "allocate all of its buffers there"));
}

absl::Status TransferFailed(const std::string& what, const std::string& cause) {
  return absl::UnavailableError(StrCat(what, " was interrupted: ", cause,
                                       ". Fix: wait until the device serves and send it again"));
}

absl::Status UnknownDevice(int64_t device, size_t devices) {
  return absl::NotFoundError(
      StrCat("no device ", device,
             ". Fix: ", devices == 1 ? "send 0, the only one" : StrCat("send 0 to ", devices - 1),
             " (Admin.Status lists them)"));
}

absl::Status NoDeviceAvailable() {
  return WithReason(
      absl::UnavailableError("no device has a running engine. Fix: send it again in a second; "
                             "Admin.Status returns the reason"),
      {"NO_DEVICE", {}});
}

absl::Status FluxOffsets(const std::string& what) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.offsets: ", what,
                                           ". Fix: send programs + 1 ascending values, the last at "
                                           "most bytecode's size; or none for one program"));
}

absl::Status FluxCount(uint64_t count, uint64_t programs) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.count is ", count, " for ", programs,
                                           " programs without program_index. Fix: send count 0 or ",
                                           programs, ", or a program_index for each run"));
}

absl::Status FluxIndex(uint64_t run, uint64_t program, uint64_t programs) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.program_index: run ", run,
                                           " names program ", program, " of ", programs,
                                           ". Fix: send indices below ", programs));
}

absl::Status FluxIndexLength(uint64_t got, uint64_t count) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.program_index has ", got, " values for ",
                                           count, " runs. Fix: send none or ", count));
}

absl::Status FluxInitial(uint64_t got, uint64_t width, uint64_t count) {
  return absl::InvalidArgumentError(
      StrCat("FluxPrograms.initial has ", got, " bytes with initial_width ", width, ". Fix: send ",
             count * width * 4, " (all runs) or ", width * 4, " (shared by all)"));
}

absl::Status FluxInitialWidth(uint64_t width) {
  return absl::InvalidArgumentError(
      StrCat("FluxPrograms.initial_width is ", width, ". Fix: send 0 to 16"));
}

absl::Status FluxWanted(const std::string& what) {
  return absl::InvalidArgumentError(
      StrCat("FluxPrograms.wanted: ", what, ". Fix: send at most 16 registers, each 0 to 15"));
}

absl::Status FluxOperatorAndPrograms(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms has both the operator ", Quote(name),
                                           " and its own programs. Fix: send either operator, or "
                                           "bytecode with offsets and program_index"));
}

absl::Status FluxVersionAlone(uint32_t version) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.version is ", version,
                                           " but operator is not set. Fix: set operator to the "
                                           "installed program, or leave out version"));
}

absl::Status FluxVersionNameAlone() {
  return absl::InvalidArgumentError(
      "FluxPrograms names a content hash or a label but operator is not set. Fix: set operator to "
      "the "
      "installed program, or leave them out");
}

absl::Status FluxCycles(uint64_t cycles, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.max_cycles is ", cycles,
                                           ", over the limit of ", limit,
                                           ". Fix: send less or raise --flux_max_cycles"));
}

absl::Status FluxCyclesInTime(uint64_t cycles, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(
      "FluxPrograms.max_cycles is ", cycles, ", but on this device a run of more than ", limit,
      " might take longer than --task_time_limit, which ends the engine. Fix: send less, or "
      "raise --task_time_limit"));
}

absl::Status FluxTooMuchWork(uint64_t runs, uint64_t cycles, uint64_t tasks, uint64_t limit) {
  return absl::InvalidArgumentError(
      StrCat(runs, " runs of up to ", cycles, " cycles need ", tasks,
             " tasks, because the time of one task is limited. This is over the limit of ", limit,
             " tasks. Fix: send fewer runs in a batch, or a lower max_cycles"));
}

absl::Status InternalOperator(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("operator '", name,
                                           "' is not called with tasks. Fix: "
                                           "send Batch.programs, whose arguments the daemon "
                                           "checks and packs"));
}

absl::Status IsolationTooLow(const std::string& name, uint32_t version, const std::string& level,
                             const std::string& required) {
  return absl::FailedPreconditionError(StrCat(
      "version ", version, " of operator '", name, "' is ", level, ", and the batch requires ",
      required, " (BatchOptions.require_isolation). Fix: ", "install a version with --isolation=",
      required, " and activate it, or send the batch without the requirement"));
}

absl::Status IsolationOfOtherWork() {
  return absl::InvalidArgumentError(
      "BatchOptions.require_isolation is for tasks of an operator, and the batch has programs or a "
      "request to a model. Fix: leave it out");
}

}  // namespace resident::errors
