#include "runtime/graph/builder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/nearest.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/region.h"
#include "runtime/graph/values.h"

namespace resident::graph {
namespace {

using absl::StrCat;
using errors::Quote;
using Place = Findings::Place;

// Comparisons of characters in the time of one step, when the nearest name is searched.
constexpr uint64_t kComparisonsInAStep = 16;

// For each character of the name of an unknown operator, which the catalog compares with all names.
constexpr uint64_t kSuggestionSteps = 64;

bool IsWhole(double value) {
  return std::isinf(value) || (std::trunc(value) == value && std::abs(value) <= kMaxWhole);
}

}  // namespace

void GraphBuilder::Begin(std::string_view name, uint32_t format, uint32_t blocks) {
  if (name.size() > kMaxNameBytes) {
    findings_.Add(
        Code::kOverLimit, {},
        StrCat("the graph's name has ", name.size(), " bytes. Fix: use at most ", kMaxNameBytes));
  }
  graph_.name = std::string(name.substr(0, kMaxNameBytes));
  if (format != kFormat) {
    findings_.Add(Code::kFormatVersion, {},
                  StrCat("format ", format, " is not supported. Fix: set \"format\": ", kFormat,
                         ", and write the graph as docs/graph_format.md describes"));
  }
  graph_.blocks = blocks;
  if (blocks > kMaxBlocks) {
    findings_.Add(Code::kOverLimit, {},
                  StrCat("blocks is ", blocks, ". Fix: use at most ", kMaxBlocks));
  }
}

std::string_view GraphBuilder::AddName(std::string_view name, Index& index, uint32_t position,
                                       const char* what, bool optional, const Place& place) {
  if (name.empty()) {
    if (!optional) {
      findings_.Add(Code::kEmpty, place,
                    StrCat(what, " ", position, " has no name. Fix: give it a unique name"));
    }
    return {};
  }
  if (name.size() > kMaxNameBytes) {
    findings_.Add(Code::kOverLimit, place,
                  StrCat("the name ", Quote(name), " of ", what, " ", position, " has ",
                         name.size(), " bytes. Fix: use at most ", kMaxNameBytes));
    return {};
  }
  const std::string_view kept = graph_.names.Add(name);
  const auto [found, is_new] = index.try_emplace(kept, position);
  if (!is_new) {
    findings_.Add(Code::kDuplicateName, place,
                  StrCat(what, "s ", found->second, " and ", position, " are both named ",
                         Quote(name), ". Fix: rename one of them"));
  }
  return kept;
}

uint32_t GraphBuilder::FindName(std::string_view name, const Index& index, const char* what,
                                const Place& place) {
  const auto found = index.find(name);
  if (found != index.end()) return found->second;
  if (!findings_.keeps_errors()) {
    findings_.CountError();
    return kNone;
  }
  std::string nearest;
  // Without a suggestion if it were a large part of the check.
  if (budget_.TakeIfCheap(index.size() * name.size() * kMaxNameBytes / kComparisonsInAStep)) {
    std::vector<std::string_view> names;
    for (const auto& [known, position] : index) names.push_back(known);
    nearest = Nearest(name, names);
  }
  findings_.Add(
      Code::kUnknownName, place,
      StrCat("there is no ", what, " ", Quote(name),
             nearest.empty() ? StrCat(". Fix: declare it, or use the name of another ", what)
                             : StrCat(". Fix: did you mean ", Quote(nearest), "?")));
  return kNone;
}

void GraphBuilder::CheckId(std::optional<uint32_t> id, uint32_t position, const Place& place) {
  if (!id.has_value() || *id == position) return;
  findings_.Add(Code::kIdIsNotIndex, place,
                StrCat("id ", *id, " stands at index ", position,
                       ". Fix: number the list from 0 without gaps, or omit the ids"));
}

bool GraphBuilder::CheckCount(size_t count, size_t limit, const char* what) {
  if (count < limit) return true;
  if (count == limit) {
    findings_.Add(Code::kOverLimit, {},
                  StrCat("the graph has more than ", limit, " ", what, ". Fix: use fewer"));
  }
  return false;
}

void GraphBuilder::AddScalar(const ScalarSpec& spec) {
  if (!budget_.TakeElements(1)) return;
  const uint32_t position = static_cast<uint32_t>(graph_.scalars.size());
  if (!CheckCount(position, kMaxScalars, "scalars")) {
    too_many_[0] = true;
    return;
  }
  Scalar scalar;
  scalar.name = AddName(spec.name, scalars_, position, "scalar", /*optional=*/false, {});
  const std::string text = StrCat("scalar ", Quote(spec.name));
  const uint64_t before = findings_.errors();
  if (spec.dtype != static_cast<int>(DType::kI64) && spec.dtype != static_cast<int>(DType::kF32)) {
    findings_.Add(Code::kScalarDType, {},
                  StrCat(text, " has dtype ", DTypeName(static_cast<DType>(spec.dtype)),
                         ". Fix: use i64 or f32"));
  }
  scalar.dtype = static_cast<DType>(spec.dtype);
  scalar.least = spec.least;
  scalar.most = spec.most;
  scalar.initial = spec.initial;
  if (std::isnan(spec.least) || std::isnan(spec.most) ||
      (spec.initial.has_value() && !std::isfinite(*spec.initial))) {
    findings_.Add(Code::kNotANumber, {},
                  StrCat(text,
                         " has a bound or an initial value that is not a number. Fix: give "
                         "numbers; a bound may be Infinity or -Infinity"));
  } else if (spec.least > spec.most) {
    findings_.Add(
        Code::kScalarRange, {},
        StrCat(text, ": least ", spec.least, " is above most ", spec.most, ". Fix: exchange them"));
  } else if (scalar.dtype == DType::kI64 &&
             !(IsWhole(spec.least) && IsWhole(spec.most) && IsWhole(spec.initial.value_or(0)))) {
    findings_.Add(Code::kScalarRange, {},
                  StrCat(text,
                         " is an i64, and its bounds and initial value must be whole numbers "
                         "of at most 2^53. Fix: round them"));
  } else if (spec.initial.has_value() &&
             (*spec.initial < spec.least || *spec.initial > spec.most)) {
    findings_.Add(Code::kScalarRange, {},
                  StrCat(text, ": the initial value ", *spec.initial, " is not in [", spec.least,
                         ", ", spec.most, "]. Fix: change the value or the range"));
  }
  bad_scalars_.push_back(findings_.errors() != before);
  graph_.scalars.push_back(scalar);
}

bool GraphBuilder::ResolveDim(const DimSpec& dim, size_t index, const Place& place, Axis* axis) {
  if (dim.scalar.empty()) {
    if (dim.size < 1) {
      findings_.Add(Code::kBadDimension, place,
                    StrCat("dimension ", index, " has ", dim.size,
                           " elements. Fix: use at least 1; pass \"none\" for an optional tensor"));
      return false;
    }
    axis->size = dim.size;
    return true;
  }
  if (dim.size != 0) {
    findings_.Add(Code::kBadDimension, place,
                  StrCat("dimension ", index, " has the size ", dim.size, " and the scalar ",
                         Quote(dim.scalar), ". Fix: give one of them"));
    return false;
  }
  axis->scalar = FindName(dim.scalar, scalars_, "scalar", place);
  if (axis->scalar == kNone || bad_scalars_[axis->scalar]) return false;
  const Scalar& scalar = graph_.scalars[axis->scalar];
  if (scalar.dtype != DType::kI64) {
    findings_.Add(Code::kScalarDType, place,
                  StrCat("dimension ", index, " is the scalar ", Quote(dim.scalar),
                         ", which is not an i64. Fix: declare it as i64"));
    return false;
  }
  if (!std::isfinite(scalar.most)) {
    findings_.Add(Code::kUnboundedDimension, place,
                  StrCat("dimension ", index, " is the scalar ", Quote(dim.scalar),
                         ", which has no upper bound. Fix: set its \"most\""));
    return false;
  }
  if (scalar.least < 1) {
    findings_.Add(Code::kBadDimension, place,
                  StrCat("dimension ", index, " is the scalar ", Quote(dim.scalar),
                         ", which may be ", scalar.least, ". Fix: set its \"least\" to 1 or more"));
    return false;
  }
  axis->size = static_cast<int64_t>(scalar.most);
  return true;
}

bool GraphBuilder::AddAxes(absl::Span<const DimSpec> shape, absl::Span<const int64_t> strides,
                           uint32_t element_bytes, const Place& place) {
  if (shape.size() > kMaxRank) {
    findings_.Add(Code::kOverLimit, place,
                  StrCat("a shape has ", shape.size(), " dimensions. Fix: use at most ", kMaxRank));
    return false;
  }
  if (!strides.empty() && strides.size() != shape.size()) {
    findings_.Add(Code::kRank, place,
                  StrCat("there are ", strides.size(), " strides for ", shape.size(),
                         " dimensions. Fix: give one for each dimension, or none"));
    return false;
  }
  absl::InlinedVector<Axis, kMaxRank> axes(shape.size());
  bool good = true;
  for (size_t d = 0; d < shape.size(); ++d) good &= ResolveDim(shape[d], d, place, &axes[d]);
  if (!good) return false;
  __int128 dense = element_bytes;
  for (size_t d = shape.size(); d > 0; --d) {
    const __int128 stride =
        strides.empty() ? dense : static_cast<__int128>(strides[d - 1]) * element_bytes;
    dense *= axes[d - 1].size;
    // Beyond any memory; FindHull refuses what is too large for other reasons.
    constexpr __int128 kLargest = __int128{1} << 61;
    if (dense > kLargest || stride > kLargest || stride < -kLargest) {
      findings_.Add(Code::kSizeOverflow, place,
                    StrCat("the size of the shape or a stride overflows at dimension ", d - 1,
                           ". Fix: use a smaller shape"));
      return false;
    }
    axes[d - 1].stride = static_cast<int64_t>(stride);
  }
  graph_.axes.insert(graph_.axes.end(), axes.begin(), axes.end());
  return true;
}

void GraphBuilder::AddTensor(const TensorSpec& spec) {
  if (!budget_.TakeElements(1 + spec.shape.size())) return;
  const uint32_t position = static_cast<uint32_t>(graph_.tensors.size());
  if (!CheckCount(position, kMaxTensors, "tensors")) {
    too_many_[1] = true;
    return;
  }
  const uint64_t before = findings_.errors();
  Tensor tensor;
  tensor.name = AddName(spec.name, tensors_, position, "tensor", /*optional=*/false, {});
  const Place place{.tensor = spec.name.empty() ? StrCat("#", position)
                                                : std::string(spec.name.substr(0, kMaxNameBytes))};
  CheckId(spec.id, position, place);
  tensor.root = position;
  if (spec.kind < static_cast<int>(TensorKind::kWeight) ||
      spec.kind > static_cast<int>(TensorKind::kStream)) {
    findings_.Add(Code::kUnknownName, place,
                  StrCat("kind ", spec.kind,
                         " does not exist. Fix: use KIND_WEIGHT, KIND_CONST, "
                         "KIND_STATE, KIND_ACTIVATION, KIND_INPUT, KIND_OUTPUT or KIND_STREAM"));
  } else {
    tensor.kind = static_cast<TensorKind>(spec.kind);
  }
  const DTypeInfo* const dtype = FindDType(spec.dtype);
  if (dtype == nullptr) {
    findings_.Add(Code::kUnknownName, place,
                  StrCat("dtype ", spec.dtype, " does not exist. Fix: use one of ", DTypeNames()));
  }
  const uint32_t element_bytes = dtype == nullptr ? 1 : dtype->size_bytes();
  tensor.view.dtype = dtype == nullptr ? DType::kInvalid : dtype->dtype;
  tensor.view.first_axis = static_cast<uint32_t>(graph_.axes.size());
  if (AddAxes(spec.shape, spec.strides, element_bytes, place)) {
    tensor.view.rank = static_cast<uint8_t>(spec.shape.size());
    if (tensor.kind == TensorKind::kStream) {
      if (tensor.view.rank == 0) {
        findings_.Add(Code::kRank, place,
                      "a stream has no dimension for its records. Fix: put the number of records "
                      "before the shape of one record");
      } else if (graph_.axes[tensor.view.first_axis].scalar != kNone) {
        findings_.Add(Code::kUnboundedDimension, place,
                      "the number of a stream's records is a scalar. Fix: give a number");
      }
    }
  }
  const uint64_t alignment = tensor.kind == TensorKind::kStream ? 16 : element_bytes;
  if (spec.offset % alignment != 0) {
    findings_.Add(Code::kMisaligned, place,
                  StrCat("offset ", spec.offset, " is not a multiple of ", alignment,
                         " bytes. Fix: align it"));
  }
  int64_t bytes = 0;
  if (spec.offset > static_cast<uint64_t>(kMaxGraphBytes)) {
    findings_.Add(
        Code::kSizeOverflow, place,
        StrCat("offset ", spec.offset, " is too large. Fix: use at most ", kMaxGraphBytes));
  } else if (findings_.errors() == before) {
    tensor.view.offset = static_cast<int64_t>(spec.offset);
    const std::optional<ByteRange> hull =
        FindHull(ExtentsOf(graph_, tensor.view), tensor.view.offset, element_bytes);
    if (!hull.has_value()) {
      findings_.Add(Code::kSizeOverflow, place,
                    "the tensor's memory overflows. Fix: use a smaller shape or smaller strides");
    } else if (hull->low < 0 && spec.alias_of.empty()) {
      findings_.Add(Code::kOutsideBuffer, place,
                    StrCat("the first byte is ", hull->low,
                           ", before the buffer. Fix: with "
                           "negative strides set \"offset\" to the position of the first element"));
    } else {
      bytes = hull->high;
    }
  }
  if (spec.alias_of.empty()) {
    total_bytes_ += bytes;
  } else {
    aliases_.push_back({position, graph_.names.Add(spec.alias_of.substr(0, kMaxNameBytes + 1))});
    bytes = 0;
  }
  bad_tensors_.push_back(findings_.errors() != before);
  graph_.root_bytes.push_back(bytes);
  graph_.tensors.push_back(tensor);
}

void GraphBuilder::EndTensors() {
  if (total_bytes_ > kMaxGraphBytes) {
    findings_.Add(Code::kSizeOverflow, {},
                  StrCat("the tensors together have more than ", kMaxGraphBytes,
                         " bytes. Fix: use smaller tensors"));
  }
  std::vector<bool> is_alias(graph_.tensors.size(), false);
  for (const Alias& alias : aliases_) is_alias[alias.tensor] = true;
  for (const Alias& alias : aliases_) {
    Tensor& tensor = graph_.tensors[alias.tensor];
    const Place place{.tensor = std::string(tensor.name)};
    const uint64_t before = findings_.errors();
    const uint32_t of = FindName(alias.of, tensors_, "tensor", place);
    if (of == kNone || bad_tensors_[of] || bad_tensors_[alias.tensor]) {
      bad_tensors_[alias.tensor] = true;
      continue;
    }
    const Tensor& root = graph_.tensors[of];
    if (is_alias[of]) {
      findings_.Add(Code::kAlias, place,
                    StrCat("it is an alias of ", Quote(alias.of),
                           ", which is an alias itself. Fix: name the tensor that has the memory"));
    } else if (root.kind != tensor.kind) {
      findings_.Add(Code::kAlias, place,
                    StrCat("it is ", KindText(tensor.kind), " and an alias of ", Quote(alias.of),
                           ", which is ", KindText(root.kind), ". Fix: give both the same kind"));
    } else {
      const uint32_t root_element = SizeOf(root.view.dtype);
      const ByteRange own = *FindHull(ExtentsOf(graph_, root.view), root.view.offset, root_element);
      tensor.view.offset += root.view.offset;
      const std::optional<ByteRange> hull =
          FindHull(ExtentsOf(graph_, tensor.view), tensor.view.offset, SizeOf(tensor.view.dtype));
      if (!hull.has_value() || hull->low < own.low || hull->high > own.high) {
        findings_.Add(Code::kOutsideBuffer, place,
                      StrCat("it is bytes ",
                             hull.has_value() ? StrCat(hull->low - root.view.offset, " to ",
                                                       hull->high - 1 - root.view.offset)
                                              : "beyond 2^62",
                             " of ", Quote(alias.of), ", which has ", own.high - own.low,
                             ". Fix: use a smaller shape, stride or offset"));
      }
    }
    tensor.root = of;
    if (findings_.errors() != before) bad_tensors_[alias.tensor] = true;
  }
  aliases_.clear();
  // From here on a stream stands for one record.
  for (Tensor& tensor : graph_.tensors) {
    if (tensor.kind != TensorKind::kStream || tensor.view.rank == 0) continue;
    ++tensor.view.first_axis;
    --tensor.view.rank;
  }
}

void GraphBuilder::AddCounter(std::string_view name, uint32_t initial) {
  if (!budget_.TakeElements(1)) return;
  const uint32_t position = static_cast<uint32_t>(graph_.counters.size());
  if (!CheckCount(position, kMaxCounters, "counters")) {
    too_many_[2] = true;
    return;
  }
  Counter counter;
  counter.name = AddName(name, counters_, position, "counter", /*optional=*/true, {});
  counter.initial = initial;
  graph_.counters.push_back(counter);
}

uint32_t GraphBuilder::FindOperator(std::string_view name, uint32_t version, const Place& place) {
  const auto [found, is_new] =
      operators_.try_emplace(std::make_pair(std::string(name), version), kNone);
  if (!is_new && found->second != kNone) return found->second;
  if (!is_new && !findings_.keeps_errors()) {
    findings_.CountError();
    return kNone;
  }
  absl::StatusOr<OperatorInfo> info = catalog_.Find(std::string(name), version);
  if (!info.ok()) {
    budget_.Take(kSuggestionSteps * std::min<size_t>(name.size(), kMaxNameBytes));
    findings_.Add(absl::IsNotFound(info.status()) ? Code::kUnknownName : Code::kNotCallable, place,
                  std::string(info.status().message()));
    return kNone;
  }
  found->second = static_cast<uint32_t>(graph_.operators.size());
  info->wanted_version = version;
  graph_.operators.push_back(*std::move(info));
  return found->second;
}

bool GraphBuilder::ResolveView(const ArgumentSpec& spec, Place place, Argument* argument) {
  argument->tensor = FindName(spec.name, tensors_, "tensor", place);
  if (argument->tensor == kNone || bad_tensors_[argument->tensor]) return false;
  const Tensor& tensor = graph_.tensors[argument->tensor];
  place.tensor = std::string(tensor.name);
  argument->view = tensor.view;
  const bool whole = spec.shape.empty() && !spec.scalar_shape;
  if (whole && spec.strides.empty() && spec.offset == 0) return true;
  const uint32_t element_bytes = SizeOf(tensor.view.dtype);
  if (whole || (spec.scalar_shape && !spec.shape.empty())) {
    findings_.Add(Code::kArgument, place,
                  whole ? "a view with an offset or strides has no shape. Fix: give the shape, or "
                          "\"scalar_shape\": true for one element"
                        : "a view has a shape and scalar_shape. Fix: give one of them");
    return false;
  }
  absl::InlinedVector<int64_t, kMaxRank> strides(spec.strides.begin(), spec.strides.end());
  if (strides.empty() && spec.shape.size() == tensor.view.rank) {
    for (const Axis& axis : graph_.AxesOf(tensor.view)) {
      strides.push_back(axis.stride / static_cast<int64_t>(element_bytes));
    }
  }
  argument->view.first_axis = static_cast<uint32_t>(graph_.axes.size());
  argument->view.rank = static_cast<uint8_t>(spec.shape.size());
  if (!AddAxes(spec.shape, strides, element_bytes, place)) return false;
  const ByteRange own =
      *FindHull(ExtentsOf(graph_, tensor.view), tensor.view.offset, element_bytes);
  const __int128 offset = static_cast<__int128>(spec.offset) * element_bytes + tensor.view.offset;
  std::optional<ByteRange> hull;
  if (offset >= own.low && offset < own.high) {
    argument->view.offset = static_cast<int64_t>(offset);
    hull = FindHull(ExtentsOf(graph_, argument->view), argument->view.offset, element_bytes);
  }
  if (hull.has_value() && hull->low >= own.low && hull->high <= own.high) return true;
  const auto element = [&](int64_t byte) { return (byte - tensor.view.offset) / element_bytes; };
  findings_.Add(
      Code::kOutsideBuffer, place,
      StrCat("the view ", ShapeText(graph_, argument->view), " from element ", spec.offset, " on ",
             hull.has_value() ? StrCat("covers elements ", element(hull->low), " to ",
                                       element(hull->high - 1), " and")
                              : "begins outside, and",
             " the tensor has elements ", element(own.low), " to ", element(own.high - 1),
             ". Fix: use a smaller shape, stride or offset"));
  return false;
}

bool GraphBuilder::ResolveArgument(const ArgumentSpec& spec, const Parameter& parameter,
                                   const Place& place, Argument* argument) {
  using Kind = ArgumentSpec::Kind;
  // Only for messages: a graph has millions of arguments.
  const auto text = [&] { return StrCat("argument '", parameter.name, "'"); };
  const bool tensor = spec.kind == Kind::kTensor || spec.kind == Kind::kNoTensor;
  if (spec.kind == Kind::kMissing || tensor == parameter.scalar()) {
    findings_.Add(Code::kArgument, place,
                  StrCat(text(), " is ", ParameterKindText(parameter.kind), " and got ",
                         spec.kind == Kind::kMissing ? "nothing"
                         : tensor                    ? "a tensor"
                                                     : "a scalar",
                         ". Fix: give ", parameter.scalar() ? "i64, f64 or scalar" : "tensor"));
    return false;
  }
  switch (spec.kind) {
    case Kind::kTensor:
      argument->kind = Argument::Kind::kTensor;
      return ResolveView(spec, place, argument);
    case Kind::kNoTensor:
      argument->kind = Argument::Kind::kNoTensor;
      // Only a parameter that takes any shape can be left out.
      if (parameter.kind != ParameterKind::kInput || parameter.dims.size() != 1 ||
          parameter.dims[0].kind != DimPattern::Kind::kSpread) {
        findings_.Add(Code::kArgument, place,
                      StrCat(text(), " is not optional. Fix: give a tensor"));
        return false;
      }
      return true;
    case Kind::kInteger:
      argument->kind = Argument::Kind::kInteger;
      argument->integer = spec.integer;
      return true;
    case Kind::kFloat:
      argument->kind = Argument::Kind::kFloat;
      argument->number = spec.number;
      return true;
    default:
      break;
  }
  argument->kind = Argument::Kind::kExpression;
  const uint32_t scalar = FindName(spec.name, scalars_, "scalar", place);
  if (scalar == kNone || bad_scalars_[scalar]) return false;
  if (!std::isfinite(spec.factor) || !std::isfinite(spec.addend)) {
    findings_.Add(Code::kNotANumber, place,
                  StrCat(text(), ": factor ", spec.factor, " or addend ", spec.addend,
                         " is not a number. Fix: give numbers"));
    return false;
  }
  argument->expression = static_cast<uint32_t>(graph_.expressions.size());
  graph_.expressions.push_back({scalar, spec.factor, spec.addend});
  return true;
}

void GraphBuilder::AddNode(const NodeSpec& spec) {
  uint64_t elements = 1 + spec.arguments.size() + spec.waits.size();
  for (const ArgumentSpec& argument : spec.arguments) elements += argument.shape.size();
  if (!budget_.TakeElements(elements)) return;
  const uint32_t position = static_cast<uint32_t>(graph_.nodes.size());
  if (!CheckCount(position, kMaxNodes, "nodes")) {
    too_many_[3] = true;
    return;
  }
  const uint64_t before = findings_.errors();
  Node node;
  Place place;
  node.name = AddName(spec.name, nodes_, position, "node", /*optional=*/true, place);
  place.node = node.name.empty() ? StrCat("#", position) : std::string(node.name);
  CheckId(spec.id, position, place);

  if (spec.waits.size() > kMaxWaits) {
    findings_.Add(Code::kTooManyWaits, place,
                  StrCat("the node has ", spec.waits.size(), " waits. Fix: use at most ", kMaxWaits,
                         ", for example by a counter that several nodes signal"));
  }
  node.first_wait = static_cast<uint32_t>(graph_.waits.size());
  for (const Wait& wait : spec.waits.subspan(0, kMaxWaits)) {
    if (wait.counter >= graph_.counters.size()) {
      findings_.Add(Code::kUnknownName, place,
                    StrCat("the node waits for counter ", wait.counter, ", and the graph has ",
                           graph_.counters.size(), ". Fix: use an index in \"counters\""));
      continue;
    }
    graph_.waits.push_back(wait);
    ++node.wait_count;
  }
  if (spec.signals.has_value() && *spec.signals >= graph_.counters.size()) {
    findings_.Add(Code::kUnknownName, place,
                  StrCat("the node signals counter ", *spec.signals, ", and the graph has ",
                         graph_.counters.size(), ". Fix: use an index in \"counters\""));
  } else if (spec.signals.has_value()) {
    node.signals = *spec.signals;
  }
  if (spec.block.has_value() != (graph_.blocks > 0) ||
      (spec.block.has_value() && *spec.block >= graph_.blocks)) {
    findings_.Add(
        Code::kBlock, place,
        StrCat("the node has ", spec.block.has_value() ? StrCat("block ", *spec.block) : "no block",
               ", and the graph has ", graph_.blocks,
               " blocks. Fix: give every node a block below \"blocks\", or none"));
  }
  node.block = spec.block.value_or(kNone);

  node.op = FindOperator(spec.op, spec.version, place);
  // False, without a finding of the node, if what it uses has one already.
  bool usable = true;
  node.first_argument = static_cast<uint32_t>(graph_.arguments.size());
  if (node.op != kNone) {
    const OperatorInfo& info = graph_.operators[node.op];
    const std::vector<Parameter>& parameters = info.signature.parameters();
    if (spec.arguments.size() > parameters.size()) {
      findings_.Add(Code::kArity, place,
                    StrCat(info.name, " takes at most ", parameters.size(), " arguments and got ",
                           spec.arguments.size(), ". Fix: remove some"));
    } else {
      // By parameter: the argument.
      absl::InlinedVector<const ArgumentSpec*, kMaxArguments> by_parameter(parameters.size());
      bool names_begun = false;
      for (size_t i = 0; i < spec.arguments.size(); ++i) {
        const ArgumentSpec& argument = spec.arguments[i];
        size_t to = i;
        if (!argument.parameter.empty()) {
          names_begun = true;
          to = 0;
          while (to < parameters.size() && parameters[to].name != argument.parameter) ++to;
        } else if (names_begun) {
          findings_.Add(Code::kArgument, place,
                        StrCat("argument ", i + 1,
                               " has no name, and stands after one that has. "
                               "Fix: name it, or move it to the front"));
          continue;
        }
        if (to == parameters.size() || by_parameter[to] != nullptr) {
          findings_.Add(
              Code::kArgument, place,
              StrCat(info.name,
                     to == parameters.size() ? " has no parameter " : " got two arguments for ",
                     Quote(argument.parameter), ". Fix: use each name of its signature once"));
          continue;
        }
        by_parameter[to] = &argument;
      }
      size_t count = parameters.size();
      while (count > 0 && by_parameter[count - 1] == nullptr &&
             parameters[count - 1].default_bits.has_value()) {
        --count;
      }
      std::string missing;
      for (size_t p = 0; p < count; ++p) {
        // Before a scalar that is given, those with a default get it.
        if (by_parameter[p] == nullptr && !parameters[p].default_bits.has_value()) {
          absl::StrAppend(&missing, missing.empty() ? "" : ", ", parameters[p].name);
        }
      }
      if (!missing.empty() && findings_.errors() == before) {
        findings_.Add(spec.arguments.size() < info.signature.required_arguments() && !names_begun
                          ? Code::kArity
                          : Code::kArgument,
                      place,
                      StrCat(info.name, " takes ", info.signature.required_arguments(),
                             " or more arguments and got ", spec.arguments.size(), ": ", missing,
                             " is missing. Fix: give it"));
      }
      if (findings_.errors() == before) {
        for (size_t p = 0; p < count; ++p) {
          Argument argument;
          if (by_parameter[p] != nullptr) {
            usable &= ResolveArgument(*by_parameter[p], parameters[p], place, &argument);
          } else {
            SetDefault(parameters[p], &argument);
          }
          graph_.arguments.push_back(argument);
        }
        node.argument_count = static_cast<uint16_t>(count);
      }
    }
  }
  if (findings_.errors() != before || !usable) node.op = kNone;
  graph_.nodes.push_back(node);
}

void GraphBuilder::SetLoop(const LoopSpec& spec) {
  Loop loop;
  loop.max_steps = spec.max_steps;
  if (spec.max_steps == 0) {
    findings_.Add(Code::kEmpty, {},
                  "the loop has max_steps 0. Fix: set it to 1 or more, or remove the loop");
  } else if (spec.max_steps > kMaxSteps) {
    findings_.Add(
        Code::kOverLimit, {},
        StrCat("the loop has max_steps ", spec.max_steps, ". Fix: use at most ", kMaxSteps));
  }
  std::vector<bool> updated(graph_.scalars.size(), false);
  for (const UpdateSpec& update : spec.updates) {
    const uint32_t scalar = FindName(update.scalar, scalars_, "scalar", {});
    if (scalar == kNone || bad_scalars_[scalar]) continue;
    if (updated[scalar]) {
      findings_.Add(Code::kDuplicateName, {},
                    StrCat("the loop updates scalar ", Quote(update.scalar),
                           " twice. Fix: combine the updates"));
    } else if (!std::isfinite(update.factor) || !std::isfinite(update.addend)) {
      findings_.Add(Code::kNotANumber, {},
                    StrCat("the update of scalar ", Quote(update.scalar), " has factor ",
                           update.factor, " and addend ", update.addend, ". Fix: give numbers"));
    } else {
      loop.updates.push_back({scalar, update.factor, update.addend});
    }
    updated[scalar] = true;
  }
  if (spec.has_stop) {
    loop.stop_tensor = FindName(spec.stop_tensor, tensors_, "tensor", {});
    if (loop.stop_tensor != kNone && bad_tensors_[loop.stop_tensor]) loop.stop_tensor = kNone;
    if (spec.stop_values.empty() || spec.stop_values.size() > kMaxStopValues) {
      findings_.Add(spec.stop_values.empty() ? Code::kEmpty : Code::kOverLimit, {},
                    StrCat("the loop stops at ", spec.stop_values.size(),
                           " values. Fix: give 1 to ", kMaxStopValues));
    } else {
      loop.stop_values.assign(spec.stop_values.begin(), spec.stop_values.end());
    }
  }
  graph_.loop = std::move(loop);
}

Graph GraphBuilder::Finish() {
  if (graph_.nodes.empty() && !too_many_[3]) {
    findings_.Add(Code::kEmpty, {}, "the graph has no nodes. Fix: add at least one");
  }
  return std::move(graph_);
}

}  // namespace resident::graph
