// Columns: checks the arguments of a batch of operator tasks and converts them to addresses.
//
// Used in five steps, because each needs the results of the previous one:
//
//   Read         kinds, dtypes, shapes, scalars; buffers; against the signature
//   FindDevice   the device of the buffers
//   Place        offsets and sizes, against the buffers and the bytes sent
//   CheckWork    what a task does, against its time limit
//   Fill         descriptors, in tight loops
//
// Thread safety: an object belongs to one thread.
#ifndef RESIDENT_SERVER_WORKLOAD_COLUMNS_H_
#define RESIDENT_SERVER_WORKLOAD_COLUMNS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "resident/v1/executor.pb.h"
#include "runtime/device/buffer_table.h"
#include "runtime/model/call_arguments.h"
#include "runtime/model/errors.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/queue/batch.h"
#include "server/workload/work_bound.h"
#include "server/workload/workload.h"

namespace resident {

// The memory to which the tasks of a batch write a returned column: task i at host + i *
// task_bytes.
struct ReturnedColumn {
  const uint8_t* host;  // Null: nothing is returned.
  uint64_t task_bytes;
  // Only if a column of the batch has infer_shape.
  std::optional<OutputType> type = std::nullopt;
};

// An argument of a batch of one task, once it was placed.
struct ArgumentTemplate {
  // Null: a scalar.
  const Buffer* buffer = nullptr;
  bool written = false;  // The task may write the tensor.
  DType dtype = DType::kInvalid;
  // The shape of a tensor; the strides are in elements, empty: dense.
  Shape shape;
  Shape strides;
  uint64_t elements = 1;
  // The part of its buffer that the tensor uses, in bytes: before its first element (negative
  // strides), and from there on.
  uint64_t bytes_before = 0;
  uint64_t bytes_from = 0;
  // Contains the tensor's address, or the scalar's bits.
  Argument argument;
};

// What a task of a batch looks like (Columns::Describe).
struct TaskTemplate {
  absl::InlinedVector<ArgumentTemplate, 4> arguments;
  // Whether all tensors are dense float32 vectors of one length, and the operator's tasks may have
  // the compact form if they are not wide.
  bool compact = false;
};

class Columns {
 public:
  // The message must outlive the object.
  Columns(const ResolvedOperator& op, const v1::OperatorTasks& tasks) : op_(op), tasks_(tasks) {}

  // Reads the columns and looks up their buffers, which `hold` then keeps alive.
  absl::Status Read(const BufferTable& table, ClientId client, KeptAlive& hold);
  // The device of the buffers; none if there are none. FAILED_PRECONDITION: they are on different
  // devices, or not on `wanted`.
  absl::Status FindDevice(std::optional<uint32_t>& wanted) const;
  // Lets Place choose that the tasks run as ranges (runtime/queue/task_range.h), if they are
  // regular, and a device with `staging_bytes` has room for what ranges need. `times`: with the
  // time of each task.
  void AllowRange(uint64_t staging_bytes, bool times) {
    range_staging_bytes_ = staging_bytes;
    range_times_ = times;
  }
  // Calculates the addresses of each task's tensors. `epoch`, `workers`: of the engine that will
  // run the tasks. FAILED_PRECONDITION: a buffer was lost with an earlier engine.
  absl::Status Place(uint64_t epoch, uint32_t workers);
  // INVALID_ARGUMENT: a task cannot end within its time limit.
  absl::Status CheckWork(const WorkLimits& limits) const;
  // Bytes of staging memory for inline and returned columns; those for returned columns alone.
  uint64_t staging_bytes() const { return staging_bytes_; }
  uint64_t returned_bytes() const { return returned_bytes_; }
  // Bytes of the descriptors and arguments that Fill writes.
  uint64_t descriptor_bytes() const;
  // Fills in tasks, arguments and returned columns; copies inline data into `staging`. `staging`
  // may be null when staging_bytes() is 0.
  void Fill(const StagingMemory* staging, RequestBatch& batch,
            std::vector<ReturnedColumn>* returned);
  // Whether the tasks could also run with other outputs: they write only to outputs, and each of
  // these is dense. Sets `outputs` to their indices.
  bool SeparateOutputs(std::vector<uint32_t>* outputs) const;
  // Whether an argument is a buffer.
  bool UsesBuffers() const;
  // The only task. REQUIRES: Place has succeeded, there is one task, and each argument is a buffer
  // or a scalar.
  TaskTemplate Describe() const;

 private:
  enum class Kind : uint8_t { kBuffer, kInline, kReturned, kScalar };
  struct Plan {
    Kind kind = Kind::kScalar;
    DType dtype = DType::kInvalid;
    // Whether the request leaves the shape open (ReturnedColumn.infer_shape).
    bool infer = false;
    Shape shape;
    // In elements; empty: dense.
    Shape strides;
    uint64_t elements = 1;
    // Bytes of the dense tensor.
    uint64_t tensor_bytes = 0;
    // The part of its buffer that a tensor uses: bytes before its first element (negative strides),
    // and bytes from there on.
    uint64_t bytes_before = 0;
    uint64_t bytes_from = 0;
    // Value of task i, an address or a scalar's bits: values[i], or base + i * stride if `values`
    // is empty.
    uint64_t base = 0;
    uint64_t stride = 0;
    std::vector<uint64_t> values;
    uint64_t staging_offset = 0;
    uint64_t values_offset = 0;         // Of a range: where the values are in staging memory.
    BufferTable::FoundBuffers buffers;  // One, or one for each task.

    ArgumentType type() const { return {kind == Kind::kScalar, dtype, shape, strides.empty()}; }
  };

  errors::ArgumentRef DescribePlace(size_t column) const {
    return {op_.op->name(), column, op_.op->signature().parameters()[column].name};
  }
  absl::Status ReadTensorType(size_t column, int dtype,
                              const google::protobuf::RepeatedField<uint64_t>& shape, Plan& plan);
  // REQUIRES: the plan's dtype and shape are known.
  absl::Status ReadStrides(size_t column, const google::protobuf::RepeatedField<int64_t>& strides,
                           Plan& plan);
  absl::Status ReadBuffers(size_t column, const v1::BufferColumn& from, const BufferTable& table,
                           ClientId client, KeptAlive& hold, Plan& plan);
  absl::Status ReadScalars(size_t column, const v1::ScalarColumn& from, Plan& plan);
  // Sets dtype and shape of the plans that leave them open. `given`: number of columns sent.
  absl::Status InferOutputs(size_t given);
  absl::Status PlaceBuffers(size_t column, const v1::BufferColumn& from, uint64_t epoch,
                            Plan& plan);
  // The error for a tensor that exceeds its buffer.
  absl::Status Beyond(size_t column, const Plan& plan, uint64_t task, uint64_t offset,
                      const Buffer& buffer) const;
  absl::Status PlaceInStaging(size_t column, Plan& plan, uint64_t bytes);
  // Whether the result contains the column: a returned column, or inline elements of an inout
  // parameter.
  bool IsReturned(size_t column) const;
  // Whether a task that is not wide has the compact form.
  bool fits_compact() const;
  bool compact() const { return chunks_ <= 1 && fits_compact(); }
  // Whether the tasks may be completed ahead of their fence (kTaskDeviceOutputs).
  bool device_outputs() const;
  // RangeDescriptor::inputs.
  uint32_t DeviceInputs() const;
  uint64_t CountChunks(uint32_t workers) const;
  // Decides whether the tasks run as ranges, and places what these need in staging memory.
  void PlaceRange();
  uint64_t TakeStaging(uint64_t bytes);
  // The argument of task 0.
  Argument DescribeArgument(const Plan& plan) const;
  // Elements of each tensor. REQUIRES: the tasks are in compact form.
  uint64_t CompactElements() const;
  void FillCompact(RequestBatch& batch) const;
  void FillArguments(RequestBatch& batch) const;
  void FillRange(const StagingMemory& staging, RequestBatch& batch) const;

  const ResolvedOperator op_;
  const v1::OperatorTasks& tasks_;
  absl::InlinedVector<Plan, 4> plans_;
  uint64_t staging_bytes_ = 0;
  uint64_t returned_bytes_ = 0;
  bool infers_ = false;  // Whether a column has infer_shape.
  bool compact_ = false;
  uint64_t chunks_ = 1;
  uint64_t range_staging_bytes_ = 0;
  bool range_times_ = false;
  bool range_ = false;
  uint64_t outcomes_offset_ = 0;  // Of a range, in staging memory.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_COLUMNS_H_
