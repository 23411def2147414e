
#include "server/workload/columns.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "runtime/model/call_arguments.h"
#include "runtime/model/dtype.h"
#include "runtime/model/errors.h"
#include "runtime/model/strided_view.h"
#include "server/workload/errors.h"

namespace resident {
namespace {

// Columns in staging memory start at cache lines, so that operators may use wide loads.
constexpr uint64_t kColumnAlignment = 64;
// The ranges of one batch may need this part of the staging memory.
constexpr uint64_t kRangeStagingShare = 8;
// Larger sizes fit into no memory; sums of a few sizes up to this do not overflow.
constexpr uint64_t kMaxBytes = uint64_t{1} << 60;

// "DTYPE_F32, ...".
std::string KnownDTypes() {
  return absl::StrJoin(kDTypeTable, ", ", [](std::string* out, const DTypeInfo& info) {
    absl::StrAppend(out, v1::DType_Name(static_cast<v1::DType>(info.dtype)));
  });
}

// Returns false if the product exceeds kMaxBytes.
bool Multiply(uint64_t a, uint64_t b, uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product) && *product <= kMaxBytes;
}

absl::Span<const uint64_t> View(const google::protobuf::RepeatedField<uint64_t>& field) {
  return absl::MakeConstSpan(field.data(), field.size());
}

}  // namespace

absl::Status Columns::ReadTensorType(size_t column, int dtype,
                                     const google::protobuf::RepeatedField<uint64_t>& shape,
                                     Plan& plan) {
  if (!v1::DType_IsValid(dtype)) {
    return errors::UnknownEnum(absl::StrCat("the dtype of column ", column + 1), dtype,
                               KnownDTypes());
  }
  plan.dtype = static_cast<DType>(dtype);
  if (shape.size() > static_cast<int>(kMaxRank)) {
    return errors::ShapeRank(DescribePlace(column), shape.size());
  }
  for (const uint64_t dim : shape) {
    if (dim > kMaxBytes) return errors::ShapeTooLarge(DescribePlace(column));
    plan.shape.push_back(static_cast<int64_t>(dim));
  }
  return absl::OkStatus();
}

absl::Status Columns::ReadStrides(size_t column,
                                  const google::protobuf::RepeatedField<int64_t>& strides,
                                  Plan& plan) {
  if (strides.empty()) return absl::OkStatus();
  assert(plan.dtype != DType::kInvalid);
  const size_t rank = plan.shape.size();
  if (static_cast<size_t>(strides.size()) != rank) {
    return errors::StridesRank(DescribePlace(column), strides.size(), rank);
  }
  const bool written = op_.op->signature().parameters()[column].kind != ParameterKind::kInput;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t stride = strides[static_cast<int>(d)];
    if (stride > static_cast<int64_t>(kMaxBytes) || stride < -static_cast<int64_t>(kMaxBytes)) {
      return errors::StrideTooLarge(DescribePlace(column), d, stride);
    }
    if (written && stride < 0) return errors::NegativeStride(DescribePlace(column), d, stride);
  }
  const Shape given(strides.begin(), strides.end());
  const std::optional<int64_t> elements = ElementCount(plan.shape);
  if (!elements.has_value()) return errors::ShapeTooLarge(DescribePlace(column));
  if (*elements == 0 || IsDense(plan.shape, given)) return absl::OkStatus();
  if (written && !IsInjective(plan.shape, given)) {
    return errors::OverlappingStrides(DescribePlace(column), ShapeText(plan.shape),
                                      ShapeText(given));
  }
  plan.strides = given;
  const ByteExtent extent = FindExtent(plan.dtype, plan.shape, given);
  // Anything over kMaxBytes exceeds every buffer.
  plan.bytes_before = std::min(extent.before, kMaxBytes + 1);
  plan.bytes_from = std::min(extent.from, kMaxBytes + 1);
  return absl::OkStatus();
}

absl::Status Columns::ReadBuffers(size_t column, const v1::BufferColumn& from,
                                  const BufferTable& table, ClientId client, KeptAlive& hold,
                                  Plan& plan) {
  RETURN_IF_ERROR(ReadTensorType(column, from.dtype(), from.shape(), plan));
  const uint64_t ids = from.buffer_ids_size();
  if (ids != 1 && ids != tasks_.count()) {
    return errors::ColumnLength(DescribePlace(column), "buffer_ids", ids, tasks_.count());
  }
  RETURN_IF_ERROR(table.FindAll(client, View(from.buffer_ids()), plan.buffers, hold));

  const Buffer& first = *plan.buffers[0];
  const bool own_dtype = plan.dtype == DType::kInvalid;
  const bool own_shape = from.shape().empty() && !from.scalar_shape();
  if (from.scalar_shape() && !from.shape().empty()) {
    return errors::ShapeOfScalar(DescribePlace(column));
  }
  if (own_dtype) plan.dtype = first.dtype;
  if (own_shape) plan.shape = first.shape;
  if (own_dtype || own_shape) {
    for (const Buffer* buffer : plan.buffers) {
      if (buffer != &first && ((own_dtype && buffer->dtype != first.dtype) ||
                               (own_shape && buffer->shape != first.shape))) {
        return errors::MixedBuffers(DescribePlace(column), first.id, buffer->id);
      }
    }
  }
  return ReadStrides(column, from.strides(), plan);
}

absl::Status Columns::ReadScalars(size_t column, const v1::ScalarColumn& from, Plan& plan) {
  const Parameter& parameter = op_.op->signature().parameters()[column];
  if (!parameter.scalar()) {
    return errors::ArgumentKind(DescribePlace(column), ParameterKindText(parameter.kind),
                                "a scalar column", AcceptedColumns(parameter.kind));
  }
  if ((from.f64_size() == 0) == (from.i64_size() == 0))
    return errors::ScalarBoth(DescribePlace(column));
  plan.dtype = parameter.dtypes[0];
  const bool wants_float = IsFloat(plan.dtype);
  if (wants_float != (from.f64_size() != 0)) {
    const bool has_nan = std::any_of(from.f64().begin(), from.f64().end(),
                                     [](double value) { return std::isnan(value); });
    return errors::ScalarKind(DescribePlace(column), DTypeName(plan.dtype), wants_float, has_nan);
  }
  const uint64_t count = wants_float ? from.f64_size() : from.i64_size();
  if (count != 1 && count != tasks_.count()) {
    return errors::ColumnLength(DescribePlace(column), "the scalar column", count, tasks_.count());
  }
  if (count > 1) plan.values.resize(count);
  const auto read = [&](const auto& values) -> absl::Status {
    for (uint64_t i = 0; i < count; ++i) {
      const auto value = values[static_cast<int>(i)];
      if (!ScalarFits(plan.dtype, value)) {
        return errors::ScalarRange(DescribePlace(column), i, absl::StrCat(value),
                                   DTypeName(plan.dtype));
      }
      (count > 1 ? plan.values[i] : plan.base) = ScalarBits(plan.dtype, value);
    }
    return absl::OkStatus();
  };
  return wants_float ? read(from.f64()) : read(from.i64());
}

absl::Status Columns::InferOutputs(size_t given) {
  absl::InlinedVector<std::optional<ArgumentType>, 4> sent(given);
  for (size_t c = 0; c < given; ++c) {
    if (!plans_[c].infer) sent[c] = plans_[c].type();
  }
  for (size_t c = 0; c < given; ++c) {
    Plan& plan = plans_[c];
    if (!plan.infer) continue;
    ASSIGN_OR_RETURN(OutputType type, InferOutput(op_.op->signature(), op_.op->name(), sent, c));
    plan.shape = std::move(type.shape);
    if (plan.dtype == DType::kInvalid) plan.dtype = type.dtype;
  }
  return absl::OkStatus();
}

absl::Status Columns::Read(const BufferTable& table, ClientId client, KeptAlive& hold) {
  const Signature& signature = op_.op->signature();
  const size_t given = tasks_.arguments_size();
  if (given > signature.parameters().size() || given < signature.required_arguments()) {
    // Match returns the error for a wrong number of arguments before it reads their types.
    return signature.Match(op_.op->name(), std::vector<ArgumentType>(given));
  }
  plans_.resize(signature.parameters().size());
  for (size_t c = 0; c < given; ++c) {
    const v1::Column& column = tasks_.arguments(static_cast<int>(c));
    const ParameterKind wanted = signature.parameters()[c].kind;
    Plan& plan = plans_[c];
    const auto refuse_kind = [&](const char* got) {
      return errors::ArgumentKind(DescribePlace(c), ParameterKindText(wanted), got,
                                  AcceptedColumns(wanted));
    };
    absl::Status status;
    switch (column.kind_case()) {
      case v1::Column::kBuffer:
        if (wanted == ParameterKind::kScalar) return refuse_kind("a buffer column");
        plan.kind = Kind::kBuffer;
        status = ReadBuffers(c, column.buffer(), table, client, hold, plan);
        break;
      case v1::Column::kInline:
        if (wanted != ParameterKind::kInput && wanted != ParameterKind::kInOut) {
          return refuse_kind("an inline column");
        }
        plan.kind = Kind::kInline;
        status = ReadTensorType(c, column.inline_().dtype(), column.inline_().shape(), plan);
        break;
      case v1::Column::kReturned:
        if (wanted != ParameterKind::kOutput) return refuse_kind("a returned column");
        plan.kind = Kind::kReturned;
        plan.infer = column.returned().infer_shape();
        infers_ |= plan.infer;
        status = ReadTensorType(c, column.returned().dtype(), column.returned().shape(), plan);
        if (status.ok() && plan.infer && !plan.shape.empty()) {
          status = errors::OutputShapeTwice(DescribePlace(c));
        }
        break;
      case v1::Column::kScalar:
        plan.kind = Kind::kScalar;
        status = ReadScalars(c, column.scalar(), plan);
        break;
      case v1::Column::KIND_NOT_SET:
        return errors::EmptyColumn(DescribePlace(c));
    }
    if (!status.ok()) return status;
    if (plan.dtype == DType::kInvalid && !plan.infer) return errors::NoDType(DescribePlace(c));
  }
  if (infers_) RETURN_IF_ERROR(InferOutputs(given));
  absl::InlinedVector<ArgumentType, 4> types;
  for (size_t c = 0; c < given; ++c) types.push_back(plans_[c].type());
  RETURN_IF_ERROR(signature.Match(op_.op->name(), types));
  for (size_t c = given; c < plans_.size(); ++c) {
    plans_[c].dtype = signature.parameters()[c].dtypes[0];
    plans_[c].base = *signature.parameters()[c].default_bits;
  }
  return absl::OkStatus();
}

absl::Status Columns::FindDevice(std::optional<uint32_t>& wanted) const {
  for (const Plan& plan : plans_) {
    for (const Buffer* buffer : plan.buffers) {
      if (!wanted.has_value()) wanted = buffer->device;
      if (buffer->device != *wanted) {
        return errors::BufferOnOtherDevice(buffer->id, buffer->device, *wanted);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Columns::PlaceBuffers(size_t column, const v1::BufferColumn& from, uint64_t epoch,
                                   Plan& plan) {
  for (const Buffer* buffer : plan.buffers) {
    if (buffer->memory == nullptr) {
      return errors::LostBuffer(buffer->id, buffer->device, buffer->lost_cause);
    }
    if (buffer->epoch != epoch) {
      return errors::DeviceUnavailable(buffer->device, "its engine is being replaced");
    }
  }
  const uint64_t count = tasks_.count();
  const uint64_t offsets = from.offsets_size();
  if (offsets != 0 && offsets != count) {
    return errors::ColumnLength(DescribePlace(column), "offsets", offsets, count);
  }
  const uint32_t element = SizeOf(plan.dtype);
  const uint64_t stride = from.stride_bytes();
  if (plan.strides.empty()) plan.bytes_from = plan.tensor_bytes;
  const uint64_t bytes = plan.bytes_from;

  if (offsets == 0 && plan.buffers.size() == 1) {
    // An arithmetic progression: checking its last member is enough.
    const Buffer& buffer = *plan.buffers[0];
    uint64_t last = 0;
    if (count > 1 && stride % element != 0) {
      return errors::OffsetAlignment(DescribePlace(column), 1, stride, element);
    }
    if (plan.bytes_before != 0) return Beyond(column, plan, 0, 0, buffer);
    if (!Multiply(stride, count - 1, &last) || bytes > buffer.size_bytes ||
        last > buffer.size_bytes - bytes) {
      const uint64_t first_bad =
          bytes > buffer.size_bytes ? 0 : (buffer.size_bytes - bytes) / stride + 1;
      return Beyond(column, plan, first_bad, first_bad * stride, buffer);
    }
    plan.base = buffer.memory->address;
    plan.stride = stride;
    return absl::OkStatus();
  }

  plan.values.resize(count);
  const bool one_buffer = plan.buffers.size() == 1;
  for (uint64_t i = 0; i < count; ++i) {
    const Buffer& buffer = *plan.buffers[one_buffer ? 0 : i];
    uint64_t offset = 0;
    if (offsets != 0) {
      offset = from.offsets(static_cast<int>(i));
    } else if (!Multiply(stride, i, &offset)) {
      offset = kMaxBytes;
    }
    if (bytes > buffer.size_bytes || offset > buffer.size_bytes - bytes ||
        offset < plan.bytes_before) {
      return Beyond(column, plan, i, offset, buffer);
    }
    if (offset % element != 0) {
      return errors::OffsetAlignment(DescribePlace(column), i, offset, element);
    }
    plan.values[i] = buffer.memory->address + offset;
  }
  return absl::OkStatus();
}

absl::Status Columns::Beyond(size_t column, const Plan& plan, uint64_t task, uint64_t offset,
                             const Buffer& buffer) const {
  if (plan.strides.empty()) {
    return errors::BeyondBuffer(DescribePlace(column), task, offset, plan.tensor_bytes, buffer.id,
                                buffer.size_bytes);
  }
  return errors::StridedBeyondBuffer(DescribePlace(column), task, offset, plan.bytes_before,
                                     plan.bytes_from, buffer.id, buffer.size_bytes);
}

absl::Status Columns::PlaceInStaging(size_t column, Plan& plan, uint64_t bytes) {
  if (bytes > kMaxBytes - staging_bytes_) return errors::ShapeTooLarge(DescribePlace(column));
  plan.staging_offset = TakeStaging(bytes);
  return absl::OkStatus();
}

uint64_t Columns::TakeStaging(uint64_t bytes) {
  const uint64_t offset = staging_bytes_;
  staging_bytes_ += (bytes + kColumnAlignment - 1) / kColumnAlignment * kColumnAlignment;
  return offset;
}

void Columns::PlaceRange() {
  const uint64_t count = tasks_.count();
  if (count < kMinRangeTasks || chunks_ > 1 || plans_.size() > kMaxRangeArguments) return;
  uint64_t bytes = count * sizeof(RangeOutcome) + kColumnAlignment;
  for (const Plan& plan : plans_) {
    if (!plan.values.empty()) bytes += count * sizeof(uint64_t) + kColumnAlignment;
  }
  if (bytes > range_staging_bytes_ / kRangeStagingShare ||
      staging_bytes_ + bytes > range_staging_bytes_) {
    return;
  }
  range_ = true;
  outcomes_offset_ = TakeStaging(count * sizeof(RangeOutcome));
  for (Plan& plan : plans_) {
    if (!plan.values.empty()) plan.values_offset = TakeStaging(count * sizeof(uint64_t));
  }
}

absl::Status Columns::Place(uint64_t epoch, uint32_t workers) {
  const uint64_t count = tasks_.count();
  for (size_t c = 0; c < plans_.size(); ++c) {
    Plan& plan = plans_[c];
    if (plan.kind == Kind::kScalar) continue;
    const std::optional<int64_t> elements = ElementCount(plan.shape);
    uint64_t all = 0;
    if (!elements.has_value() ||
        !Multiply(static_cast<uint64_t>(*elements), SizeOf(plan.dtype), &plan.tensor_bytes)) {
      return errors::ShapeTooLarge(DescribePlace(c));
    }
    plan.elements = static_cast<uint64_t>(*elements);

    absl::Status status;
    const v1::Column& column = tasks_.arguments(static_cast<int>(c));
    if (plan.kind == Kind::kBuffer) {
      status = PlaceBuffers(c, column.buffer(), epoch, plan);
    } else if (!Multiply(plan.tensor_bytes, count, &all)) {
      status = errors::ShapeTooLarge(DescribePlace(c));
    } else if (plan.kind == Kind::kInline) {
      const uint64_t sent = column.inline_().data().size();
      if (sent != all && sent != plan.tensor_bytes) {
        return errors::InlineSize(DescribePlace(c), sent, plan.tensor_bytes, all);
      }
      if (IsReturned(c)) {
        plan.stride = plan.tensor_bytes;
        returned_bytes_ += all;
        RETURN_IF_ERROR(PlaceInStaging(c, plan, all));
        continue;
      }
      plan.stride = sent == all ? plan.tensor_bytes : 0;
      status = PlaceInStaging(c, plan, sent);
    } else {
      plan.stride = plan.tensor_bytes;
      returned_bytes_ += all;  // At most kMaxBytes each: a few of them do not overflow.
      status = PlaceInStaging(c, plan, all);
    }
    if (!status.ok()) return status;
  }
  chunks_ = CountChunks(workers);
  compact_ = compact();
  PlaceRange();
  return absl::OkStatus();
}

absl::Status Columns::CheckWork(const WorkLimits& limits) const {
  absl::InlinedVector<Shape, 8> shapes;
  absl::InlinedVector<double, 8> scalars;
  absl::InlinedVector<Shape, 8> strides;
  for (const Plan& plan : plans_) {
    shapes.push_back(plan.shape);
    strides.push_back(plan.strides);
  }
  if (op_.version->cost.limited()) {
    // Those of the task that does most: a negative value does not limit it.
    for (const Plan& plan : plans_) {
      const auto read = [&](uint64_t bits) { return ReadElement(plan.dtype, &bits).AsDouble(); };
      double max = plan.kind == Kind::kScalar && plan.values.empty() ? read(plan.base) : 0;
      if (plan.kind == Kind::kScalar) {
        for (const uint64_t bits : plan.values) {
          max = max < 0 ? max : read(bits) < 0 ? -1 : std::max(max, read(bits));
        }
      }
      scalars.push_back(max);
    }
  }
  return resident::CheckWork(*op_.version, CountWork(*op_.version, shapes, strides, scalars),
                             chunks_, limits);
}

bool Columns::IsReturned(size_t column) const {
  return plans_[column].kind == Kind::kReturned ||
         (plans_[column].kind == Kind::kInline &&
          op_.op->signature().parameters()[column].kind == ParameterKind::kInOut);
}

uint64_t Columns::CountChunks(uint32_t workers) const {
  return op_.version->split.Chunks(
      [&](int parameter) -> absl::Span<const int64_t> { return plans_[parameter].shape; }, workers);
}

// The signature guarantees that the rank does not matter. It remains to check that all tensors are
// dense float32 of one length. (A tensor that is broadcast and has as many elements as the output
// has the output's shape, except for leading dimensions of 1.)
bool Columns::fits_compact() const {
  if (!op_.op->signature().compact()) return false;
  const Plan* first = nullptr;
  for (const Plan& plan : plans_) {
    if (plan.kind == Kind::kScalar) continue;
    if (first == nullptr) first = &plan;
    if (plan.elements != first->elements || plan.dtype != DType::kF32 || !plan.strides.empty()) {
      return false;
    }
  }
  return true;
}

bool Columns::device_outputs() const {
  if (!op_.version->trusted) return false;
  const auto& parameters = op_.op->signature().parameters();
  for (size_t c = 0; c < plans_.size(); ++c) {
    const ParameterKind kind = parameters[c].kind;
    if (kind != ParameterKind::kOutput && kind != ParameterKind::kInOut) continue;
    if (plans_[c].kind != Kind::kBuffer) return false;
    for (const Buffer* buffer : plans_[c].buffers) {
      if (buffer->place != Buffer::Place::kDevice) return false;
    }
  }
  return true;
}

uint32_t Columns::DeviceInputs() const {
  uint32_t inputs = 0;
  for (size_t c = 0; c < plans_.size(); ++c) {
    const bool in_device_memory =
        plans_[c].kind == Kind::kBuffer &&
        std::none_of(plans_[c].buffers.begin(), plans_[c].buffers.end(),
                     [](const Buffer* buffer) { return buffer->place == Buffer::Place::kHost; });
    const bool read = op_.op->signature().parameters()[c].kind != ParameterKind::kOutput;
    if (in_device_memory && read) inputs |= 1u << c;
  }
  return inputs;
}

bool Columns::SeparateOutputs(std::vector<uint32_t>* outputs) const {
  const auto& parameters = op_.op->signature().parameters();
  for (size_t c = 0; c < plans_.size(); ++c) {
    if (parameters[c].kind == ParameterKind::kInOut) return false;
    if (parameters[c].kind != ParameterKind::kOutput) continue;
    if (!plans_[c].strides.empty()) return false;
    outputs->push_back(static_cast<uint32_t>(c));
  }
  return true;
}

bool Columns::UsesBuffers() const {
  return std::any_of(plans_.begin(), plans_.end(),
                     [](const Plan& plan) { return plan.kind == Kind::kBuffer; });
}

TaskTemplate Columns::Describe() const {
  assert(tasks_.count() == 1);
  TaskTemplate task;
  task.compact = fits_compact();
  for (size_t c = 0; c < plans_.size(); ++c) {
    const Plan& plan = plans_[c];
    assert(plan.kind == Kind::kBuffer || plan.kind == Kind::kScalar);
    ArgumentTemplate& to = task.arguments.emplace_back();
    to.dtype = plan.dtype;
    to.argument = DescribeArgument(plan);
    if (plan.kind == Kind::kScalar) continue;
    to.buffer = plan.buffers[0];
    to.written = op_.op->signature().parameters()[c].kind != ParameterKind::kInput;
    to.shape = plan.shape;
    to.strides = plan.strides;
    to.elements = plan.elements;
    to.bytes_before = plan.bytes_before;
    to.bytes_from = plan.bytes_from;
  }
  return task;
}

uint64_t Columns::descriptor_bytes() const {
  if (range_) {
    return sizeof(TaskRange) + plans_.size() * (sizeof(Argument) + sizeof(RangeColumn));
  }
  const uint64_t task = sizeof(TaskDescriptor) + (compact_ ? 0 : plans_.size() * sizeof(Argument));
  return tasks_.count() * task;
}

uint64_t Columns::CompactElements() const {
  assert(compact_);
  for (const Plan& plan : plans_) {
    if (plan.kind != Kind::kScalar) return plan.elements;
  }
  return 0;
}

Argument Columns::DescribeArgument(const Plan& plan) const {
  Argument argument;
  std::memset(&argument, 0, sizeof(argument));
  if (plan.kind != Kind::kScalar) {
    argument.tensor.dtype = plan.dtype;
    argument.tensor.rank = static_cast<u8>(plan.shape.size());
    int64_t stride = 1;
    for (size_t d = plan.shape.size(); d-- > 0;) {
      argument.tensor.shape[d] = plan.shape[d];
      argument.tensor.strides[d] = plan.strides.empty() ? stride : plan.strides[d];
      stride *= plan.shape[d];
    }
  }
  // The address and a scalar's bits are at the same offset.
  argument.scalar_bits = plan.values.empty() ? plan.base : plan.values[0];
  return argument;
}

void Columns::FillCompact(RequestBatch& batch) const {
  TaskDescriptor first{};
  first.operator_slot = static_cast<u16>(op_.version->slot);
  first.flags = kTaskCompact | (device_outputs() ? kTaskDeviceOutputs : 0);
  first.set_elements(CompactElements());
  batch.tasks.assign(tasks_.count(), first);
  TaskDescriptor* const tasks = batch.tasks.data();
  const size_t count = batch.tasks.size();
  for (size_t c = 0; c < plans_.size(); ++c) {
    const Plan& plan = plans_[c];
    if (!plan.values.empty()) {
      for (size_t i = 0; i < count; ++i) tasks[i].set_compact_argument(c, plan.values[i]);
    } else {
      uint64_t value = plan.base;
      for (size_t i = 0; i < count; ++i, value += plan.stride)
        tasks[i].set_compact_argument(c, value);
    }
  }
}

void Columns::FillArguments(RequestBatch& batch) const {
  TaskDescriptor first{};
  first.operator_slot = static_cast<u16>(op_.version->slot);
  first.flags = device_outputs() ? kTaskDeviceOutputs : 0;
  first.set_argument_count(plans_.size());
  first.set_chunks(chunks_);
  batch.tasks.assign(tasks_.count(), first);
  batch.arguments_per_task = plans_.size();
  batch.arguments.resize(batch.tasks.size() * plans_.size());

  for (size_t c = 0; c < plans_.size(); ++c) {
    const Plan& plan = plans_[c];
    Argument argument = DescribeArgument(plan);
    for (size_t i = 0; i < batch.tasks.size(); ++i) {
      argument.scalar_bits = plan.values.empty() ? plan.base + i * plan.stride : plan.values[i];
      batch.arguments[i * plans_.size() + c] = argument;
    }
  }
}

void Columns::FillRange(const StagingMemory& staging, RequestBatch& batch) const {
  auto range = std::make_unique<TaskRange>();
  range->count = tasks_.count();
  range->descriptor.operator_slot = static_cast<u16>(op_.version->slot);
  range->descriptor.options = range_times_ ? u32{kRangeTimes} : 0;
  if (compact_) {
    range->descriptor.flags = kTaskCompact;
    range->descriptor.elements = CompactElements();
    range->descriptor.inputs = DeviceInputs();
  }
  const uint64_t outcome_bytes = range->count * sizeof(RangeOutcome);
  std::memset(staging.host + outcomes_offset_, 0, outcome_bytes);
  range->outcomes = reinterpret_cast<const RangeOutcome*>(staging.host + outcomes_offset_);
  range->descriptor.outcomes = staging.address + outcomes_offset_;
  range->arguments.reserve(plans_.size());
  for (const Plan& plan : plans_) {
    range->arguments.push_back(DescribeArgument(plan));
    RangeColumn column{.base = plan.base, .stride = plan.stride, .values = 0, .reserved = 0};
    const uint64_t* values = nullptr;
    if (!plan.values.empty()) {
      uint8_t* const to = staging.host + plan.values_offset;
      std::memcpy(to, plan.values.data(), plan.values.size() * sizeof(uint64_t));
      values = reinterpret_cast<const uint64_t*>(to);
      column.values = staging.address + plan.values_offset;
    }
    range->columns.push_back(column);
    range->values.push_back(values);
  }
  batch.range = std::move(range);
}

void Columns::Fill(const StagingMemory* staging, RequestBatch& batch,
                   std::vector<ReturnedColumn>* returned) {
  for (size_t c = 0; c < plans_.size(); ++c) {
    Plan& plan = plans_[c];
    if (plan.kind != Kind::kInline && plan.kind != Kind::kReturned) continue;
    uint8_t* const host = staging == nullptr ? nullptr : staging->host + plan.staging_offset;
    if (staging != nullptr) plan.base = staging->address + plan.staging_offset;
    if (IsReturned(c)) {
      returned->push_back({host, plan.tensor_bytes});
      if (infers_) returned->back().type = {plan.dtype, plan.shape};
    }
    if (plan.kind == Kind::kInline && host != nullptr) {
      const std::string& data = tasks_.arguments(static_cast<int>(c)).inline_().data();
      // An inout parameter has one copy for each task, also if the tasks share the elements.
      const uint64_t bytes = IsReturned(c) ? plan.tensor_bytes * tasks_.count() : data.size();
      for (uint64_t at = 0; at < bytes; at += data.size()) {
        data.copy(reinterpret_cast<char*>(host + at), data.size());
      }
    }
  }
  if (range_) {
    FillRange(*staging, batch);
  } else if (compact_) {
    FillCompact(batch);
  } else {
    FillArguments(batch);
  }
}

}  // namespace resident
