#include "runtime/base/errors/batch_errors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layout/task.h"
#include "runtime/base/errors/reason.h"

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

absl::Status StrideTooLarge(const ArgumentRef& place, size_t dim, int64_t stride) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": stride ", stride,
                                           " of dimension ", dim,
                                           " is larger than any memory. Fix: send "
                                           "strides in elements that stay in the buffer"));
}

absl::Status NegativeStride(const ArgumentRef& place, size_t dim, int64_t stride) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": stride ", stride,
                                           " of dimension ", dim,
                                           " is negative, but an output needs positive strides. "
                                           "Fix: send positive strides, and reverse the inputs"));
}

absl::Status OverlappingStrides(const ArgumentRef& place, const std::string& shape,
                                const std::string& strides) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place), ": elements of shape ", shape, " with strides ", strides,
             " may overlap, and they are written. Fix: make each stride larger than the range that "
             "all dimensions with smaller strides cover together"));
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

absl::Status TooManyQueuedTasks(uint64_t queued, uint64_t tasks, uint64_t limit) {
  absl::Status status = absl::ResourceExhaustedError(StrCat(
      "the client has ", queued, " tasks queued; ", tasks, " more would exceed the limit of ",
      limit, ". Fix: wait for results, or raise --max_queued_tasks"));
  if (tasks > limit) return status;
  return WithReason(std::move(status), {"QUEUE_FULL", {{"limit", StrCat(limit)}}});
}

absl::Status TaskTooLong(const LongTask& task) {
  return absl::InvalidArgumentError(
      StrCat(task.operator_name, ": a task of ", task.amount, " ", task.unit, " takes at least ",
             task.least_seconds, " s on device ", task.device, ", over ",
             task.own_limit ? "the version's time limit" : "--task_time_limit", " of ",
             static_cast<double>(task.limit_ms) / 1e3,
             " s, which would end the engine. Fix: split it into smaller tasks, or ",
             task.own_limit ? "install the operator with a longer time limit"
                            : "raise --task_time_limit"));
}

absl::Status StagingFull(uint64_t bytes, uint64_t staging_bytes, bool ever_fits) {
  absl::Status status = absl::ResourceExhaustedError(
      ever_fits ? StrCat("staging memory is full: the batch carries ", bytes,
                         " bytes inline or "
                         "returned, of ",
                         staging_bytes,
                         " that all clients share. Fix: wait for "
                         "results before sending more, keep data in buffers, or raise "
                         "--staging_mib")
                : StrCat("the batch carries ", bytes, " bytes inline or returned, more than the ",
                         staging_bytes,
                         " of staging memory. Fix: send smaller batches, keep data "
                         "in buffers, or raise --staging_mib"));
  if (!ever_fits) return status;
  return WithReason(std::move(status), {"STAGING_FULL", {{"limit", StrCat(staging_bytes)}}});
}

}  // namespace resident::errors
