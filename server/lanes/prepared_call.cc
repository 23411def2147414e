#include "server/lanes/prepared_call.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "runtime/model/dtype.h"
#include "server/lanes/errors.h"
#include "server/workload/errors.h"
#include "server/workload/planner.h"

namespace resident {

BoundBuffer MakeBound(std::shared_ptr<const Buffer> buffer, uint64_t epoch) {
  BoundBuffer bound;
  if (buffer->memory != nullptr && buffer->epoch == epoch) {
    bound.address = buffer->memory->address;
    bound.bytes = buffer->size_bytes;
    if (buffer->place == Buffer::Place::kDevice) bound.device_memory = kDaemonMemory;
    if (buffer->place == Buffer::Place::kImportedDevice) bound.device_memory = kImportedMemory;
  }
  bound.buffer = std::move(buffer);
  return bound;
}

absl::StatusOr<std::shared_ptr<const PreparedCall>> PreparedCall::Prepare(
    const Sources& sources, const v1::PrepareLaneRequest& request) {
  const v1::OperatorTasks& tasks = request.tasks();
  if (tasks.count() != 1) return errors::LaneTemplateCount(tasks.count());
  // The version that is active, so that the template is not counted for a trial's shares.
  ASSIGN_OR_RETURN(const VersionRef version, ReadVersion(tasks));
  ASSIGN_OR_RETURN(const auto op, sources.registry.Resolve(tasks.operator_(), version));
  if (version.none()) sources.registry.Withdraw(op);
  if (op.op->name() == kFluxRunOperator || op.op->name() == kCompareOperator) {
    return errors::InternalOperator(op.op->name());
  }
  Columns columns(op, tasks);
  KeptAlive hold;
  RETURN_IF_ERROR(columns.Read(sources.buffers, sources.client, hold));
  for (int a = 0; a < tasks.arguments_size(); ++a) {
    if (tasks.arguments(a).has_inline_() || tasks.arguments(a).has_returned()) {
      return errors::LaneInlineArgument(a);
    }
  }
  std::optional<uint32_t> device = sources.device;
  RETURN_IF_ERROR(columns.FindDevice(device));
  RETURN_IF_ERROR(columns.Place(sources.session->epoch(), sources.session->info().workers));

  auto call = std::make_shared<PreparedCall>();
  call->operator_ = op.version->op;
  call->version_ = tasks.version();
  call->content_hash_ = tasks.content_hash();
  call->label_ = tasks.label();
  call->task_times_ = request.task_times();
  call->task_ = columns.Describe();
  for (const ArgumentTemplate& from : call->task_.arguments) {
    CallArgument& argument = call->arguments_.emplace_back();
    argument.tensor = from.buffer != nullptr;
    argument.written = from.written;
    argument.element_bytes = SizeOf(from.dtype);
    argument.bytes_before = from.bytes_before;
    argument.bytes_from = from.bytes_from;
    argument.argument = from.argument;
    const DTypeInfo* const type = FindDType(from.dtype);
    argument.is_signed = type != nullptr && type->kind == DTypeInfo::Kind::kSigned;
    if (from.buffer == nullptr) continue;
    call->max_elements_ = from.elements;
    const size_t a = call->arguments_.size() - 1;
    if (argument.written) call->outputs_ |= 1u << a;
    if (op.op->signature().parameters()[a].kind != ParameterKind::kOutput) {
      call->inputs_ |= 1u << a;
    }
  }
  RETURN_IF_ERROR(call->ReadWords(request));
  RETURN_IF_ERROR(call->HoldFixed(sources));
  // `hold` keeps them.
  for (ArgumentTemplate& argument : call->task_.arguments) argument.buffer = nullptr;
  const WorkLimits limits{sources.device, sources.session->info(), sources.task_time_limit};
  const SplitRule& split = op.version->split;
  const uint64_t chunks = split.Chunks(
      [&](int parameter) -> absl::Span<const int64_t> {
        return call->task_.arguments[static_cast<size_t>(parameter)].shape;
      },
      limits.engine.workers);
  if (call->elements_word_ >= 0 && chunks > 1) {
    return errors::LaneElementsDivided(call->max_elements_);
  }
  RETURN_IF_ERROR(CheckWork(*op.version, call->CountMaxWork(*op.version), chunks, limits));
  return call;
}

absl::Status PreparedCall::ReadWords(const v1::PrepareLaneRequest& request) {
  if (request.words_size() > kLaneWords) return errors::TooManyLaneWords(request.words_size());
  words_ = static_cast<size_t>(request.words_size());
  for (int w = 0; w < request.words_size(); ++w) RETURN_IF_ERROR(ReadWord(w, request.words(w)));
  return absl::OkStatus();
}

absl::StatusOr<PreparedCall::CallArgument*> PreparedCall::FindArgument(int index, uint32_t argument,
                                                                       bool tensor) {
  if (argument >= arguments_.size()) {
    return errors::LaneWord(index, absl::StrCat("argument ", argument, " does not exist: ",
                                                operator_name(), " has ", arguments_.size()));
  }
  if (arguments_[argument].tensor != tensor) {
    return errors::LaneWord(index,
                            absl::StrCat("argument ", argument, " is a ",
                                         tensor ? "scalar, not a tensor" : "tensor, not a scalar"));
  }
  CallArgument& found = arguments_[argument];
  if (found.role != Role::kFixed) {
    return errors::LaneWord(index, absl::StrCat("argument ", argument, " has a word already"));
  }
  found.word = static_cast<uint8_t>(index);
  return &found;
}

absl::Status PreparedCall::ReadWord(int index, const v1::LaneWord& word) {
  switch (word.kind_case()) {
    case v1::LaneWord::kPlace: {
      ASSIGN_OR_RETURN(CallArgument* const argument,
                       FindArgument(index, word.place().argument(), /*tensor=*/true));
      argument->role = Role::kPlace;
      return absl::OkStatus();
    }
    case v1::LaneWord::kValue:
      return ReadValue(index, word.value());
    case v1::LaneWord::kElements:
      return ReadElements(index, word.elements());
    case v1::LaneWord::KIND_NOT_SET:
      break;
  }
  return errors::LaneWord(index, "it has no kind");
}

absl::Status PreparedCall::ReadValue(int index, const v1::LaneWord::Value& value) {
  ASSIGN_OR_RETURN(CallArgument* const argument,
                   FindArgument(index, value.argument(), /*tensor=*/false));
  argument->role = Role::kValue;
  if (!value.has_min() && !value.has_max()) return absl::OkStatus();
  const DType dtype = task_.arguments[value.argument()].dtype;
  if (IsFloat(dtype)) {
    return errors::LaneWord(index, "a floating-point value has no min and max");
  }
  const uint32_t bits = 8 * argument->element_bytes;
  const int64_t max = bits == 64            ? std::numeric_limits<int64_t>::max()
                      : argument->is_signed ? (int64_t{1} << (bits - 1)) - 1
                                            : (int64_t{1} << bits) - 1;
  argument->bounded = true;
  argument->min = value.has_min() ? value.min() : argument->is_signed ? -max - 1 : 0;
  argument->max = value.has_max() ? value.max() : max;
  if (argument->min > argument->max) {
    return errors::LaneWord(index,
                            absl::StrCat("min ", argument->min, " is above max ", argument->max));
  }
  if (!ScalarFits(dtype, argument->min) || !ScalarFits(dtype, argument->max)) {
    return errors::LaneWord(index, absl::StrCat("min or max does not fit ", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

absl::Status PreparedCall::ReadElements(int index, const v1::LaneWord::Elements& elements) {
  if (elements_word_ >= 0) return errors::LaneWord(index, "another word is the number of elements");
  if (!task_.compact) {
    return errors::LaneWord(
        index,
        "the number of elements can change only if the operator has the compact "
        "form and all tensors are dense float32 vectors of one length");
  }
  if (elements.max() == 0 || elements.max() != max_elements_) {
    return errors::LaneWord(
        index, absl::StrCat("max is ", elements.max(), ", and the template's tensors have ",
                            max_elements_, " elements: they must have as many, at least 1"));
  }
  elements_word_ = index;
  return absl::OkStatus();
}

absl::Status PreparedCall::HoldFixed(const Sources& sources) {
  lost_ = false;
  for (size_t a = 0; a < arguments_.size(); ++a) {
    CallArgument& argument = arguments_[a];
    const Buffer* const named = task_.arguments[a].buffer;
    if (argument.role != Role::kFixed || (named == nullptr && argument.buffer == nullptr)) continue;
    const uint64_t id = argument.buffer != nullptr ? argument.buffer->id : named->id;
    const auto buffer = sources.buffers.Find(sources.client, id);
    if (argument.buffer == nullptr) {
      if (!buffer.ok()) return buffer.status();
      if ((*buffer)->memory != named->memory) {
        return errors::DeviceUnavailable(sources.device, "its engine is being replaced");
      }
      argument.offset = argument.argument.scalar_bits - named->memory->address;
    }
    if (buffer.ok()) argument.buffer = *buffer;
    const BoundBuffer bound = MakeBound(argument.buffer, sources.session->epoch());
    argument.lost = !buffer.ok() || bound.address == 0;
    lost_ |= argument.lost;
    argument.argument.scalar_bits = argument.lost ? 0 : bound.address + argument.offset;
    argument.device_memory = bound.device_memory;
  }
  return absl::OkStatus();
}

std::shared_ptr<const PreparedCall> PreparedCall::MoveTo(const Sources& sources) const {
  auto moved = std::make_shared<PreparedCall>(*this);
  (void)moved->HoldFixed(sources);  // It fails only for a new call.
  return moved;
}

TaskWork PreparedCall::CountMaxWork(const OperatorVersion& version) const {
  absl::InlinedVector<Shape, 8> shapes;
  absl::InlinedVector<Shape, 8> strides;
  absl::InlinedVector<double, 8> scalars;
  for (size_t a = 0; a < arguments_.size(); ++a) {
    const CallArgument& argument = arguments_[a];
    const ArgumentTemplate& from = task_.arguments[a];
    shapes.push_back(from.shape);
    strides.push_back(from.strides);
    if (!version.cost.limited()) continue;
    double max = -1;  // A negative value limits nothing.
    if (argument.tensor) {
      max = 0;
    } else if (argument.role == Role::kFixed) {
      max = ReadElement(from.dtype, &argument.argument.scalar_bits).AsDouble();
    } else if (argument.role == Role::kValue && argument.bounded && argument.min >= 0) {
      max = static_cast<double>(argument.max);
    }
    scalars.push_back(max);
  }
  return CountWork(version, shapes, strides, scalars);
}

VersionRef PreparedCall::version() const {
  VersionRef version(version_);
  version.content_hash = content_hash_;
  version.label = label_;
  return version;
}

std::optional<CallTarget> PreparedCall::Resolve(const Registry& registry,
                                                const WorkLimits& limits) const {
  CallTarget target;
  target.changes = registry.changes();  // Before: a later change makes another number.
  const auto resolved = registry.TryResolve(operator_name(), version());
  if (!resolved.has_value()) return std::nullopt;
  const auto refuse = [&](uint16_t why, std::string reason) {
    target.refused = why;
    target.reason = std::move(reason);
    return target;
  };
  if (!resolved->ok()) {
    const bool quarantined =
        absl::IsFailedPrecondition(resolved->status()) || absl::IsUnavailable(resolved->status());
    return refuse(quarantined ? kLaneRefusedQuarantined : kLaneRefusedPrepareAgain,
                  std::string(resolved->status().message()));
  }
  const ResolvedOperator& op = **resolved;
  target.on_trial = op.on_trial;
  if (op.op != operator_.get()) {
    return refuse(kLaneRefusedPrepareAgain,
                  absl::StrCat(operator_name(),
                               " was removed and installed again. Fix: prepare the "
                               "call again"));
  }
  const SplitRule& split = op.version->split;
  const uint64_t chunks = split.Chunks(
      [&](int parameter) -> absl::Span<const int64_t> {
        return task_.arguments[static_cast<size_t>(parameter)].shape;
      },
      limits.engine.workers);
  const absl::Status work = CheckWork(*op.version, CountMaxWork(*op.version), chunks, limits);
  if (!work.ok()) return refuse(kLaneRefusedPrepareAgain, std::string(work.message()));
  if (elements_word_ >= 0 && chunks > 1) {
    return refuse(kLaneRefusedPrepareAgain,
                  std::string(errors::LaneElementsDivided(max_elements_).message()));
  }
  target.version = op.version;
  target.stats = op.stats(limits.device);
  target.compact = task_.compact && chunks <= 1;
  target.ranges = chunks <= 1 && arguments_.size() <= kMaxRangeArguments;
  target.task.operator_slot = static_cast<u16>(op.version->slot);
  if (target.compact) {
    target.task.flags = kTaskCompact;
  } else {
    target.task.set_argument_count(arguments_.size());
    target.task.set_chunks(chunks);
  }
  return target;
}

Refusal PreparedCall::Check(const LaneWordCopy& words, const std::vector<BoundBuffer>& buffers,
                            CheckedTask* task) const {
  if (lost_) return {kLaneRefusedLostBuffer, 0};
  task->device_memory = 0;
  task->elements = max_elements_;
  if (elements_word_ >= 0) {
    const uint64_t elements = words[static_cast<size_t>(elements_word_)];
    if (elements == 0 || elements > max_elements_) {
      return {kLaneRefusedValue, static_cast<uint8_t>(elements_word_)};
    }
    task->elements = elements;
  }
  for (size_t a = 0; a < arguments_.size(); ++a) {
    const CallArgument& argument = arguments_[a];
    DeviceMemoryBits device_memory = argument.device_memory;
    if (argument.role == Role::kFixed) {
      task->values[a] = argument.argument.scalar_bits;
    } else if (const Refusal refusal = CheckArgument(argument, words[argument.word], task->elements,
                                                     buffers, &task->values[a], &device_memory)) {
      return refusal;
    }
    task->device_memory |= device_memory << a;
  }
  return {};
}

void PreparedCall::AppendArguments(const CheckedTask& task, std::vector<Argument>* to) const {
  for (size_t a = 0; a < arguments_.size(); ++a) {
    to->push_back(arguments_[a].argument);
    to->back().scalar_bits = task.values[a];
  }
}

std::string PreparedCall::Explain(const Refusal& refusal, const LaneWordCopy& words,
                                  const std::vector<BoundBuffer>& buffers) const {
  const uint64_t word = words[refusal.word];
  const std::string where = absl::StrCat(operator_name(), ", word ", refusal.word);
  const uint16_t index = lane_place_buffer(word);
  const uint64_t offset = lane_place_offset(word);
  switch (refusal.reason) {
    case kLaneRefusedBuffer:
      return absl::StrCat(where, ": the lane's table has no buffer with the index ", index,
                          ". Fix: use an index of Lanes.Bind");
    case kLaneRefusedLostBuffer:
      return absl::StrCat(where,
                          ": the buffer was lost with its engine. Fix: allocate it again, "
                          "bind it, and prepare calls that name it again");
    case kLaneRefusedAlignment:
      return absl::StrCat(where, ": the offset ", offset,
                          " is not a multiple of the element's size. Fix: align the tensor");
    case kLaneRefusedBounds:
      return absl::StrCat(where, ": the tensor at offset ", offset, " exceeds buffer ",
                          index < buffers.size() && buffers[index].buffer != nullptr
                              ? buffers[index].buffer->id
                              : 0,
                          " of ", index < buffers.size() ? buffers[index].bytes : 0,
                          " bytes. Fix: keep every element in the buffer");
    default:
      return absl::StrCat(where, ": the value ", word,
                          " is outside of the limits of Lanes.Prepare. Fix: stay within them, or "
                          "prepare a call with wider ones");
  }
}

}  // namespace resident
