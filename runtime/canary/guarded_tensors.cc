#include "runtime/canary/guarded_tensors.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace resident {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kContextBytes =
    sizeof(CheckContext) + GuardedTensors::kMaxCheckedChunks * sizeof(Violation);

uint64_t RoundUp(uint64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

// What a red zone holds at an offset. It differs from byte to byte, so that whoever
// writes the same everywhere is seen.
uint8_t RedZoneByte(uint64_t offset) {
  return static_cast<uint8_t>(0x5b ^ (offset * 0x9e3779b97f4a7c15 >> 56));
}

}  // namespace

absl::StatusOr<GuardedTensors> GuardedTensors::Place(const Signature& signature,
                                                     const Example& example,
                                                     const CanaryWindow& window, bool shifted) {
  GuardedTensors placed(signature, example, window);
  placed.guarded_begin_ = RoundUp(kContextBytes);
  uint64_t end = placed.guarded_begin_;
  for (size_t i = 0; i < signature.parameters().size(); ++i) {
    const Parameter& parameter = signature.parameters()[i];
    Argument argument;
    std::memset(&argument, 0, sizeof(argument));
    if (parameter.scalar()) {
      if (i < example.values.size()) {
        std::memcpy(&argument.scalar_bits, example.values[i].data.data(),
                    std::min(sizeof(argument.scalar_bits), example.values[i].data.size()));
      } else {
        argument.scalar_bits = parameter.default_bits.value_or(0);
      }
      placed.arguments_.push_back(argument);
      continue;
    }
    const ExampleValue& value = example.values[i];
    const uint32_t element = SizeOf(value.dtype);
    const auto elements = static_cast<uint64_t>(ElementCount(value.shape).value_or(0));
    const uint64_t begin = RoundUp(end + kRedZoneBytes) + (shifted ? element : 0);
    end = begin + elements * element;
    argument.tensor.address = window.address + begin;
    argument.tensor.dtype = value.dtype;
    argument.tensor.rank = static_cast<u8>(value.shape.size());
    int64_t stride = 1;
    for (size_t d = value.shape.size(); d-- > 0;) {
      argument.tensor.shape[d] = value.shape[d];
      argument.tensor.strides[d] = stride;
      stride *= value.shape[d];
    }
    placed.arguments_.push_back(argument);
    const bool output = parameter.kind != ParameterKind::kInput;
    placed.tensors_.push_back({i, elements, element, window.host + begin, output,
                               parameter.kind == ParameterKind::kOutput});
  }
  placed.guarded_end_ = end + kRedZoneBytes;
  if (placed.guarded_end_ > window.bytes) {
    return absl::InternalError(absl::StrCat("an example takes ", placed.guarded_end_,
                                            " bytes of a canary's window of ", window.bytes));
  }
  return placed;
}

void GuardedTensors::Fill(uint8_t poison) {
  uint64_t at = guarded_begin_;
  const auto guard_until = [&](uint64_t end) {
    for (; at < end; ++at) window_.host[at] = RedZoneByte(at);
  };
  for (const Tensor& tensor : tensors_) {
    guard_until(OffsetOf(tensor));
    const uint64_t bytes = tensor.elements * tensor.element_bytes;
    if (tensor.poisoned) {
      std::memset(window_.host + at, poison, bytes);
    } else {
      // Of an inout, what is expected follows what it holds at first.
      std::memcpy(window_.host + at, example_->values[tensor.parameter].data.data(), bytes);
    }
    at += bytes;
  }
  guard_until(guarded_end_);
}

std::optional<uint64_t> GuardedTensors::common_elements() const {
  if (tensors_.empty()) return std::nullopt;
  for (const Tensor& tensor : tensors_) {
    if (tensor.elements != tensors_[0].elements) return std::nullopt;
  }
  return tensors_[0].elements;
}

std::string GuardedTensors::shapes() const {
  std::string text;
  for (const Tensor& tensor : tensors_) {
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    signature_->parameters()[tensor.parameter].name, " ",
                    ShapeText(shape(tensor.parameter)));
  }
  return text;
}

void GuardedTensors::PrepareContext(uint64_t barrier_limit_ns) {
  std::memset(window_.host, 0, kContextBytes);
  auto* context = reinterpret_cast<CheckContext*>(window_.host);
  context->barrier_limit_ns = barrier_limit_ns;
  context->argument_count = static_cast<u32>(signature_->parameters().size());
  for (size_t i = 0; i < signature_->parameters().size(); ++i) {
    const Parameter& parameter = signature_->parameters()[i];
    context->scalar[i] = parameter.scalar();
    context->dtypes[i] = parameter.scalar() ? parameter.dtypes[0] : example_->values[i].dtype;
  }
}

std::optional<Violation> GuardedTensors::FindViolation() const {
  auto* context = reinterpret_cast<CheckContext*>(window_.host);
  for (uint64_t chunk = 0; chunk < kMaxCheckedChunks; ++chunk) {
    const Violation& violation = context->violations()[chunk];
    if (violation.kind != ViolationKind::kNone) return violation;
  }
  return std::nullopt;
}

std::optional<GuardedTensors::StrayWrite> GuardedTensors::FindStrayWrite() const {
  uint64_t at = guarded_begin_;
  const Tensor* last = nullptr;
  for (size_t t = 0; t <= tensors_.size(); ++t) {
    const Tensor* const next = t < tensors_.size() ? &tensors_[t] : nullptr;
    const uint64_t begin = at;
    const uint64_t end = next != nullptr ? OffsetOf(*next) : guarded_end_;
    for (; at < end; ++at) {
      if (window_.host[at] == RedZoneByte(at)) continue;
      const uint64_t past = at - begin + 1, before = end - at;
      if (next == nullptr || (last != nullptr && past <= before)) {
        if (last == nullptr) break;  // An operator without tensors: nothing to name.
        return StrayWrite{last->parameter, false, past};
      }
      // The write nearest to the tensor behind it tells more than the first.
      uint64_t nearest = at;
      for (uint64_t i = at; i < end; ++i) {
        if (window_.host[i] != RedZoneByte(i)) nearest = i;
      }
      return StrayWrite{next->parameter, true, end - nearest};
    }
    at = end;
    if (next != nullptr) at += next->elements * next->element_bytes;
    last = next;
  }
  return std::nullopt;
}

std::optional<GuardedTensors::InputWrite> GuardedTensors::FindInputWrite() const {
  for (const Tensor& tensor : tensors_) {
    if (tensor.output) continue;
    const std::string& data = example_->values[tensor.parameter].data;
    const uint64_t bytes = tensor.elements * tensor.element_bytes;
    if (std::memcmp(tensor.data, data.data(), bytes) == 0) continue;
    const auto* was = reinterpret_cast<const uint8_t*>(data.data());
    const uint64_t byte = static_cast<uint64_t>(
        std::mismatch(tensor.data, tensor.data + bytes, was).first - tensor.data);
    return InputWrite{tensor.parameter, byte / tensor.element_bytes};
  }
  return std::nullopt;
}

}  // namespace resident
