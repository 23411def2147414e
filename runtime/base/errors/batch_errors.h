// Errors of batches and their columns. The rules in argument_errors.h apply.
//
//   if (count == 0) return errors::NoTasks();
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_BATCH_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_BATCH_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/base/errors/argument_errors.h"

namespace resident::errors {

absl::Status EmptyBatch();
absl::Status NoTasks();
absl::Status TooManyTasks(uint64_t count, uint64_t limit);
absl::Status TooManyArguments(uint64_t bytes, uint64_t limit);
absl::Status UnknownEnum(const std::string& field, int value, const std::string& known);
absl::Status EmptyColumn(const ArgumentRef& place);
absl::Status ShapeRank(const ArgumentRef& place, size_t rank);
absl::Status NoDType(const ArgumentRef& place);
absl::Status ColumnLength(const ArgumentRef& place, const std::string& column, uint64_t got,
                          uint64_t count);
absl::Status MixedBuffers(const ArgumentRef& place, uint64_t first, uint64_t other);
absl::Status StridesRank(const ArgumentRef& place, size_t strides, size_t rank);
absl::Status StrideTooLarge(const ArgumentRef& place, size_t dim, int64_t stride);
absl::Status NegativeStride(const ArgumentRef& place, size_t dim, int64_t stride);
absl::Status OverlappingStrides(const ArgumentRef& place, const std::string& shape,
                                const std::string& strides);
absl::Status StridedBeyondBuffer(const ArgumentRef& place, uint64_t task, uint64_t offset,
                                 uint64_t bytes_before, uint64_t bytes_from, uint64_t buffer,
                                 uint64_t buffer_bytes);
absl::Status OffsetAlignment(const ArgumentRef& place, uint64_t task, uint64_t offset,
                             uint32_t element_bytes);
absl::Status BeyondBuffer(const ArgumentRef& place, uint64_t task, uint64_t offset,
                          uint64_t tensor_bytes, uint64_t buffer, uint64_t buffer_bytes);
absl::Status InlineSize(const ArgumentRef& place, uint64_t got, uint64_t one, uint64_t all);
absl::Status ScalarKind(const ArgumentRef& place, const std::string& dtype, bool wants_float,
                        bool has_nan);
absl::Status ScalarBoth(const ArgumentRef& place);
absl::Status ScalarRange(const ArgumentRef& place, uint64_t task, const std::string& value,
                         const std::string& dtype);
absl::Status TooManyQueuedTasks(uint64_t queued, uint64_t tasks, uint64_t limit);
// A task that cannot end in time (server/workload/work_bound.h).
struct LongTask {
  std::string operator_name;
  uint32_t device;
  double amount;
  std::string unit;  // "operations".
  double least_seconds;
  uint64_t limit_ms;
  bool own_limit;  // Of the version, and not --task_time_limit.
};
absl::Status TaskTooLong(const LongTask& task);
absl::Status StagingFull(uint64_t bytes, uint64_t staging_bytes, bool ever_fits);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_BATCH_ERRORS_H_
