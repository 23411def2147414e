// Errors of batches: operator tasks and FLUX programs.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_WORKLOAD_ERRORS_H_
#define RESIDENT_SERVER_WORKLOAD_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/model/errors.h"

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
// A task that cannot end in time (server/workload/work_bound.h).
struct LongTask {
  std::string operator_name;
  uint32_t device;
  double amount;
  std::string unit;  // "operations".
  double min_seconds;
  uint64_t limit_ms;
  bool own_limit;  // Of the version, and not --task_time_limit.
};
absl::Status TaskTooLong(const LongTask& task);

absl::Status BufferOnOtherDevice(uint64_t id, uint32_t device, uint32_t batch_device);
absl::Status TransferFailed(const std::string& what, const std::string& cause);

absl::Status UnknownDevice(int64_t device, size_t devices);
absl::Status NoDeviceAvailable();

absl::Status FluxOffsets(const std::string& what);
absl::Status FluxCount(uint64_t count, uint64_t programs);
absl::Status FluxIndex(uint64_t run, uint64_t program, uint64_t programs);
absl::Status FluxIndexLength(uint64_t got, uint64_t count);
absl::Status FluxInitial(uint64_t got, uint64_t width, uint64_t count);
absl::Status FluxInitialWidth(uint64_t width);
absl::Status FluxWanted(const std::string& what);
absl::Status FluxOperatorAndPrograms(const std::string& name);
absl::Status FluxVersionAlone(uint32_t version);
absl::Status FluxVersionNameAlone();
absl::Status FluxCycles(uint64_t cycles, uint64_t limit);
// `limit`: the cycles that a run may have on the device because of the time limit.
absl::Status FluxCyclesInTime(uint64_t cycles, uint64_t limit);
absl::Status FluxTooMuchWork(uint64_t runs, uint64_t cycles, uint64_t tasks, uint64_t limit);

absl::Status InternalOperator(const std::string& name);

// `level` and `required`: as IsolationName.
absl::Status IsolationTooLow(const std::string& name, uint32_t version, const std::string& level,
                             const std::string& required);
absl::Status IsolationOfOtherWork();

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_WORKLOAD_ERRORS_H_
