#include "server/lanes/lane_range.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

using ArgumentRole = PreparedCall::Role;

uint64_t LoadRelaxed(const uint64_t* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }

// Whether `bytes` at an offset lie in the data area.
bool InData(const RangeSource& source, uint64_t offset, uint64_t bytes) {
  return offset % sizeof(uint64_t) == 0 && offset <= source.data_bytes &&
         bytes <= source.data_bytes - offset;
}

}  // namespace

bool LaneRange::Add(const CheckedTask& task) {
  if (count_ == max_tasks_ || (count_ > 0 && task.elements != elements_)) return false;
  elements_ = task.elements;
  device_memory_ &= task.device_memory;
  for (size_t a = 0; a < call_.arguments(); ++a) {
    const PreparedCall::CallArgument& argument = call_.argument(a);
    if (argument.role != ArgumentRole::kFixed) values(argument.word)[count_] = task.values[a];
  }
  ++count_;
  return true;
}

CheckedTask LaneRange::Task(uint32_t i) const {
  assert(i < count_);
  CheckedTask task;
  task.elements = elements_;
  // What not all tasks have is left out: a task without it ends a little later.
  task.device_memory = device_memory_;
  for (size_t a = 0; a < call_.arguments(); ++a) {
    const PreparedCall::CallArgument& argument = call_.argument(a);
    task.values[a] = argument.role == ArgumentRole::kFixed ? argument.argument.scalar_bits
                                                           : values(argument.word)[i];
  }
  return task;
}

RangeRefusal LaneRange::RefuseRange(size_t word, const std::string& what) const {
  RangeRefusal refused;
  refused.refusal = {kLaneRefusedRange, static_cast<uint8_t>(word)};
  refused.text = absl::StrCat(call_.operator_name(), ", word ", word, " of a range: ", what);
  return refused;
}

RangeRefusal LaneRange::Read(const RangeSource& source, uint32_t count,
                             const std::vector<BoundBuffer>& buffers) {
  assert(count > 0 && count <= max_tasks_ && count_ == 0);
  if (call_.lost()) return {{kLaneRefusedLostBuffer, 0}, 0, 0, {}};
  const size_t words = call_.words();
  if (words > 0 && !InData(source, source.records, words * sizeof(lane_range_column))) {
    return RefuseRange(0, absl::StrCat("the records at the offset ", source.records,
                                       " do not lie in the data area of ", source.data_bytes,
                                       " bytes, at a multiple of 8. Fix: correct the offset, or "
                                       "open the lane with more data_bytes"));
  }
  std::array<lane_range_column, kLaneWords> records = {};
  const auto* const from = reinterpret_cast<const uint64_t*>(source.data + source.records);
  for (size_t w = 0; w < words; ++w) {
    records[w] = {LoadRelaxed(from + 3 * w), LoadRelaxed(from + 3 * w + 1),
                  LoadRelaxed(from + 3 * w + 2)};
    if (records[w].values != 0 && (records[w].base != 0 || records[w].stride != 0)) {
      return RefuseRange(w,
                         "a column of values has a base or a stride. Fix: set both to 0, or values "
                         "to 0");
    }
  }
  elements_ = call_.max_elements();
  if (call_.elements_word() >= 0) {
    const auto w = static_cast<size_t>(call_.elements_word());
    if (records[w].values != 0 || records[w].stride != 0) {
      return RefuseRange(w,
                         "the number of elements differs from task to task. Fix: set base to the "
                         "number, stride and values to 0, and submit a range for each number");
    }
    elements_ = records[w].base;
    if (elements_ == 0 || elements_ > call_.max_elements()) {
      return {{kLaneRefusedValue, static_cast<uint8_t>(w)}, 0, elements_, {}};
    }
  }
  device_memory_ = 0;
  for (size_t a = 0; a < call_.arguments(); ++a) {
    const PreparedCall::CallArgument& argument = call_.argument(a);
    if (argument.role == ArgumentRole::kFixed) {
      device_memory_ |= argument.device_memory << a;
    } else if (RangeRefusal refused =
                   ReadColumn(source, records[argument.word], a, count, buffers)) {
      return refused;
    }
  }
  count_ = count;
  return {};
}

RangeRefusal LaneRange::ReadColumn(const RangeSource& source, const lane_range_column& from,
                                   size_t argument, uint32_t count,
                                   const std::vector<BoundBuffer>& buffers) {
  const PreparedCall::CallArgument& to = call_.argument(argument);
  const bool by_values = from.values != 0;
  if (by_values && !InData(source, from.values, uint64_t{count} * sizeof(uint64_t))) {
    return RefuseRange(to.word,
                       absl::StrCat(count, " values at the offset ", from.values,
                                    " do not lie in the data area of ", source.data_bytes,
                                    " bytes, at a multiple of 8. Fix: correct the offset, or open "
                                    "the lane with more data_bytes"));
  }
  if (!by_values && (to.role == ArgumentRole::kPlace || from.stride == 0)) {
    return ReadStride(from, argument, count, buffers);
  }
  columns_[to.word].form = Form::kValues;
  uint64_t* const values = this->values(to.word);
  const auto* const given = reinterpret_cast<const uint64_t*>(source.data + from.values);
  DeviceMemoryBits of_all = kDaemonMemory;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t word = by_values ? LoadRelaxed(given + i) : from.base + i * from.stride;
    uint64_t value = 0;
    DeviceMemoryBits device_memory = 0;
    if (const Refusal refused =
            call_.CheckArgument(to, word, elements_, buffers, &value, &device_memory)) {
      return {refused, i, word, {}};
    }
    values[i] = value;
    of_all &= device_memory;
  }
  device_memory_ |= of_all << argument;
  return {};
}

RangeRefusal LaneRange::ReadStride(const lane_range_column& from, size_t argument, uint32_t count,
                                   const std::vector<BoundBuffer>& buffers) {
  const PreparedCall::CallArgument& to = call_.argument(argument);
  Column& column = columns_[to.word];
  uint64_t value = 0;
  DeviceMemoryBits device_memory = 0;
  if (const Refusal refused =
          call_.CheckArgument(to, from.base, elements_, buffers, &value, &device_memory)) {
    return {refused, 0, from.base, {}};
  }
  column = {Form::kConstant, value, 0};
  device_memory_ |= device_memory << argument;
  if (from.stride == 0 || count == 1) return {};
  // Between the first and the last place the offset changes evenly, so that all are in the buffer
  // if these two are.
  const auto stride = static_cast<int64_t>(from.stride);
  int64_t distance = 0;
  uint64_t last_word = 0;
  if (__builtin_mul_overflow(stride, static_cast<int64_t>(count - 1), &distance) ||
      __builtin_add_overflow(from.base, distance, &last_word) ||
      lane_place_buffer(last_word) != lane_place_buffer(from.base)) {
    return RefuseRange(to.word,
                       absl::StrCat("places with the stride ", stride,
                                    " are not all in one buffer. Fix: correct the stride, or give "
                                    "each place as a value"));
  }
  if (stride % static_cast<int64_t>(to.element_bytes) != 0) {
    return {{kLaneRefusedAlignment, to.word}, 1, from.base + from.stride, {}};
  }
  uint64_t unused = 0;
  if (const Refusal refused =
          call_.CheckArgument(to, last_word, elements_, buffers, &unused, &device_memory)) {
    return {refused, count - 1, last_word, {}};
  }
  column = {Form::kStride, value, from.stride};
  return {};
}

std::unique_ptr<const TaskRange> LaneRange::Build(const CallTarget& target) const {
  assert(count_ > 0 && target.ranges);
  auto range = std::make_unique<TaskRange>();
  range->count = count_;
  range->descriptor.operator_slot = target.task.operator_slot;
  range->descriptor.options = call_.task_times() ? u32{kRangeTimes} : 0;
  if (target.compact) {
    range->descriptor.flags = kTaskCompact;
    range->descriptor.elements = elements_;
    range->descriptor.inputs = call_.inputs() & OnDevice(device_memory_);
  }
  std::memset(memory_.host, 0, count_ * sizeof(RangeOutcome));
  range->outcomes = reinterpret_cast<const RangeOutcome*>(memory_.host);
  range->descriptor.outcomes = memory_.address;
  range->arguments.reserve(call_.arguments());
  for (size_t a = 0; a < call_.arguments(); ++a) {
    const PreparedCall::CallArgument& argument = call_.argument(a);
    RangeColumn column{
        .base = argument.argument.scalar_bits, .stride = 0, .values = 0, .reserved = 0};
    const uint64_t* host = nullptr;
    if (argument.role != ArgumentRole::kFixed) {
      const Column& from = columns_[argument.word];
      column.base = from.base;
      column.stride = from.stride;
      if (from.form == Form::kValues) {
        host = values(argument.word);
        column.values = memory_.address + StagingBytes(max_tasks_, argument.word);
      }
    }
    range->arguments.push_back(argument.argument);
    range->arguments.back().scalar_bits = host != nullptr ? host[0] : column.base;
    range->columns.push_back(column);
    range->values.push_back(host);
  }
  return range;
}

RangeBlocks::RangeBlocks(Ticket ticket, uint32_t tasks, size_t words)
    : ticket_(std::move(ticket)), tasks_(tasks), words_(words) {
  const uint64_t bytes = LaneRange::StagingBytes(tasks, words);
  for (uint32_t b = 0; b < kBlocks; ++b) {
    blocks_[b].memory = *ticket_.staging();
    blocks_[b].memory.host += b * bytes;
    blocks_[b].memory.address += b * bytes;
    blocks_[b].memory.size_bytes = bytes;
  }
}

std::shared_ptr<const StagingMemory> RangeBlocks::Take() {
  for (Block& block : blocks_) {
    if (block.taken.exchange(true, std::memory_order_acquire)) continue;
    return {&block.memory, [self = shared_from_this(), &block](const StagingMemory*) {
              block.taken.store(false, std::memory_order_release);
            }};
  }
  return nullptr;
}

}  // namespace resident
