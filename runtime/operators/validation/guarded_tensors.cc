#include "runtime/operators/validation/guarded_tensors.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace resident {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kContextBytes =
    sizeof(CheckContext) + GuardedTensors::kMaxCheckedChunks * sizeof(Violation);

constexpr uint64_t RoundUp(uint64_t value) {
  return (value + kAlignment - 1) / kAlignment * kAlignment;
}

// The context, the tensors with gaps, the shift of each by one element and the rounding of its
// begin, and the red zones.
static_assert(RoundUp(kContextBytes) + 2 * kMaxExampleBytes +
                  kMaxArguments * (kAlignment + sizeof(double)) +
                  (kMaxArguments + 1) * GuardedTensors::kRedZoneBytes <=
              GuardedTensors::kStagingBytes);

// The value of a red zone at an offset. It differs from byte to byte, so that writing one
// value everywhere is detected.
uint8_t RedZoneByte(uint64_t offset) {
  return static_cast<uint8_t>(0x5b ^ (offset * 0x9e3779b97f4a7c15 >> 56));
}

}  // namespace

absl::StatusOr<GuardedTensors> GuardedTensors::Place(const Signature& signature,
                                                     const Example& example,
                                                     const ValidationStaging& staging,
                                                     bool shifted) {
  GuardedTensors placed(signature, example, staging);
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
    const uint32_t step = shifted && parameter.strided ? 2 : 1;
    const GuardedTensors::Tensor tensor = {i,
                                           elements,
                                           element,
                                           step,
                                           begin,
                                           parameter.kind != ParameterKind::kInput,
                                           parameter.kind == ParameterKind::kOutput};
    end = begin + Extent(tensor);
    argument.tensor.address = staging.address + begin;
    argument.tensor.dtype = value.dtype;
    argument.tensor.rank = static_cast<u8>(value.shape.size());
    int64_t stride = step;
    for (size_t d = value.shape.size(); d-- > 0;) {
      argument.tensor.shape[d] = value.shape[d];
      argument.tensor.strides[d] = stride;
      stride *= value.shape[d];
    }
    placed.arguments_.push_back(argument);
    placed.tensors_.push_back(tensor);
  }
  placed.guarded_end_ = end + kRedZoneBytes;
  if (placed.guarded_end_ > staging.bytes) {
    return absl::InternalError(absl::StrCat("an example takes ", placed.guarded_end_,
                                            " bytes of a validation's staging memory of ",
                                            staging.bytes));
  }
  return placed;
}

void GuardedTensors::Fill(uint8_t poison) {
  for (uint64_t at = guarded_begin_; at < guarded_end_; ++at) staging_.host[at] = RedZoneByte(at);
  for (const Tensor& tensor : tensors_) {
    // An inout's expected data follows its initial data.
    const char* from = example_->values[tensor.parameter].data.data();
    uint8_t* to = staging_.host + tensor.offset;
    const uint64_t elements_at_once = tensor.step == 1 ? tensor.elements : 1;
    const uint64_t bytes = elements_at_once * tensor.element_bytes;
    for (uint64_t i = 0; i < tensor.elements; i += elements_at_once) {
      if (tensor.poisoned) {
        std::memset(to, poison, bytes);
      } else {
        std::memcpy(to, from, bytes);
        from += bytes;
      }
      to += bytes * tensor.step;
    }
  }
}

std::string GuardedTensors::Contents(const Tensor& tensor) const {
  const auto* from = reinterpret_cast<const char*>(staging_.host + tensor.offset);
  if (tensor.step == 1) return std::string(from, tensor.elements * tensor.element_bytes);
  std::string contents;
  contents.reserve(tensor.elements * tensor.element_bytes);
  for (uint64_t i = 0; i < tensor.elements; ++i) {
    contents.append(from + i * tensor.step * tensor.element_bytes, tensor.element_bytes);
  }
  return contents;
}

std::optional<uint64_t> GuardedTensors::compact_elements() const {
  if (tensors_.empty()) return std::nullopt;
  for (const Tensor& tensor : tensors_) {
    if (tensor.elements != tensors_[0].elements || tensor.step != 1 ||
        example_->values[tensor.parameter].dtype != DType::kF32) {
      return std::nullopt;
    }
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
  std::memset(staging_.host, 0, kContextBytes);
  auto* context = reinterpret_cast<CheckContext*>(staging_.host);
  context->barrier_limit_ns = barrier_limit_ns;
  context->argument_count = static_cast<u32>(signature_->parameters().size());
  for (size_t i = 0; i < signature_->parameters().size(); ++i) {
    const Parameter& parameter = signature_->parameters()[i];
    context->scalar[i] = parameter.scalar();
    context->dtypes[i] = parameter.scalar() ? parameter.dtypes[0] : example_->values[i].dtype;
  }
}

std::optional<Violation> GuardedTensors::FindViolation() const {
  auto* context = reinterpret_cast<CheckContext*>(staging_.host);
  for (uint64_t chunk = 0; chunk < kMaxCheckedChunks; ++chunk) {
    const Violation& violation = context->violations()[chunk];
    if (violation.kind != ViolationKind::kNone) return violation;
  }
  return std::nullopt;
}

std::optional<uint64_t> GuardedTensors::FindChanged(uint64_t from, uint64_t end) const {
  for (; from < end; ++from) {
    if (staging_.host[from] != RedZoneByte(from)) return from;
  }
  return std::nullopt;
}

std::optional<GuardedTensors::StrayWrite> GuardedTensors::FindStrayWrite() const {
  uint64_t at = guarded_begin_;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = tensors_[t];
    if (const auto changed = FindChanged(at, tensor.offset)) {
      // The write is attributed to the nearer tensor.
      const uint64_t past = *changed - at + 1;
      if (t > 0 && past <= tensor.offset - *changed) {
        return StrayWrite{tensors_[t - 1].parameter, StrayWrite::kPast, past};
      }
      uint64_t last = *changed;
      while (const auto next = FindChanged(last + 1, tensor.offset)) last = *next;
      return StrayWrite{tensor.parameter, StrayWrite::kBefore, tensor.offset - last};
    }
    at = tensor.offset + Extent(tensor);
    if (tensor.step == 1) continue;
    const uint64_t stride = tensor.step * tensor.element_bytes;
    for (uint64_t gap = tensor.offset + tensor.element_bytes; gap < at; gap += stride) {
      if (const auto changed = FindChanged(gap, gap + stride - tensor.element_bytes)) {
        return StrayWrite{tensor.parameter, StrayWrite::kBetween, *changed - tensor.offset};
      }
    }
  }
  if (tensors_.empty()) return std::nullopt;
  if (const auto changed = FindChanged(at, guarded_end_)) {
    return StrayWrite{tensors_.back().parameter, StrayWrite::kPast, *changed - at + 1};
  }
  return std::nullopt;
}

std::optional<GuardedTensors::InputWrite> GuardedTensors::FindInputWrite() const {
  for (const Tensor& tensor : tensors_) {
    if (tensor.output) continue;
    const std::string now = Contents(tensor);
    const std::string& was = example_->values[tensor.parameter].data;
    if (now == was) continue;
    const auto byte = std::mismatch(now.begin(), now.end(), was.begin()).first - now.begin();
    return InputWrite{tensor.parameter, static_cast<uint64_t>(byte) / tensor.element_bytes};
  }
  return std::nullopt;
}

}  // namespace resident
