
#include "server/graphs/reader/graph_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "google/protobuf/unknown_field_set.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/nearest.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/region.h"
#include "runtime/graph/values.h"
#include "runtime/model/call_arguments.h"

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

template <typename Repeated>
absl::Span<const int64_t> ReadNumbers(const Repeated& numbers) {
  return {numbers.data(), static_cast<size_t>(numbers.size())};
}

// Whether the argument is the explicit absence of a tensor.
bool IsNoTensor(const v1::GraphArgument& argument) {
  return argument.value_case() == v1::GraphArgument::kNone && argument.none();
}

// Each element is taken from the budget of the check before it is read. Once the check has ended,
// nothing is added any more.
class GraphReader {
 public:
  // All must outlive the reader.
  GraphReader(const OperatorCatalog& catalog, Findings* findings, CheckBudget* budget)
      : catalog_(catalog), findings_(*findings), budget_(*budget) {}

  Graph Read(const v1::Graph& message);

 private:
  using Index = absl::flat_hash_map<std::string_view, uint32_t>;
  using Shape = google::protobuf::RepeatedPtrField<v1::GraphDim>;

  void Begin(const v1::Graph& message);
  void AddScalar(const v1::GraphScalar& message);
  void AddTensor(const v1::GraphTensor& message);
  void EndTensors();
  void AddCounter(const v1::GraphCounter& message);
  // `index`: of the node in the message.
  void AddNode(uint32_t index, const v1::GraphNode& message);
  void SetLoop(const v1::GraphLoop& message);

  // A finding (108) for the first field that this version does not know in a message by itself.
  void CheckUnknown(const char* what, uint32_t index, const google::protobuf::Message& message);
  void CheckUnknownInNode(uint32_t index, const v1::GraphNode& message);

  // Whether the name is of at most kMaxNameBytes and new in `index`, to which it is added. `what`:
  // "tensor". An empty name is refused unless `optional`.
  std::string_view AddName(std::string_view name, Index& index, uint32_t position, const char* what,
                           bool optional, const Place& place);
  // kNone and a finding if there is none.
  uint32_t FindName(std::string_view name, const Index& index, const char* what,
                    const Place& place);
  void CheckId(uint32_t id, uint32_t position, const Place& place);
  // False, once a finding, if there are too many of a kind.
  bool CheckCount(size_t count, size_t limit, const char* what);

  // Appends the axes. Strides are in elements; without them dense. False: a finding was added.
  bool AddAxes(const Shape& shape, absl::Span<const int64_t> strides, uint32_t element_bytes,
               const Place& place);
  // The number of elements of a dimension, at most; its scalar. False: a finding was added.
  bool ResolveDim(const v1::GraphDim& dim, size_t index, const Place& place, Axis* axis);
  // Sets the offset of a tensor that has its axes, unless it has a finding: the number of errors is
  // `before` then. Returns the end of its memory; 0 with a finding.
  int64_t PlaceTensor(const v1::GraphTensor& message, const Place& place, uint32_t element_bytes,
                      uint64_t before, Tensor* tensor);

  uint32_t FindOperator(std::string_view name, uint32_t version, const Place& place);
  void ReadOrder(const v1::GraphNode& message, const Place& place, Node* node);
  // Appends the arguments in the order of the signature. False: what they use has a finding.
  // `before`: findings_.errors() before the node.
  bool ReadArguments(const v1::GraphNode& message, uint64_t before, const Place& place, Node* node);
  void ReportMatch(const OperatorInfo& info, const v1::GraphNode& message,
                   const MatchedArguments& matched, uint64_t before, const Place& place);
  bool ResolveArgument(const v1::GraphArgument& message, const Parameter& parameter,
                       const Place& place, Argument* argument);
  bool ResolveView(const v1::GraphView& message, Place place, Argument* argument);
  bool ResolveScalar(const v1::GraphScalarUse& message, const Parameter& parameter,
                     const Place& place, Argument* argument);

  const OperatorCatalog& catalog_;
  Findings& findings_;
  CheckBudget& budget_;
  Graph graph_;
  Index tensors_;
  Index scalars_;
  Index counters_;
  Index nodes_;
  // By tensor: whether it has an error, so that its uses are not checked.
  std::vector<bool> bad_tensors_;
  std::vector<bool> bad_scalars_;
  struct Alias {
    uint32_t tensor;
    std::string_view of;
  };
  std::vector<Alias> aliases_;
  // By name and version; kNone: it cannot be used.
  absl::flat_hash_map<std::pair<std::string, uint32_t>, uint32_t> operators_;
  __int128 total_bytes_ = 0;
  bool too_many_nodes_ = false;
};

Graph GraphReader::Read(const v1::Graph& message) {
  CheckUnknown("graph", 0, message);
  Begin(message);
  uint32_t index = 0;
  for (const v1::GraphScalar& scalar : message.scalars()) {
    CheckUnknown("scalar", index++, scalar);
    AddScalar(scalar);
  }
  index = 0;
  for (const v1::GraphTensor& tensor : message.tensors()) {
    if (budget_.ended()) break;
    CheckUnknown("tensor", index, tensor);
    for (const v1::GraphDim& dim : tensor.shape())
      CheckUnknown("a dimension of tensor", index, dim);
    ++index;
    AddTensor(tensor);
  }
  EndTensors();
  index = 0;
  for (const v1::GraphCounter& counter : message.counters()) {
    CheckUnknown("counter", index++, counter);
    AddCounter(counter);
  }
  index = 0;
  for (const v1::GraphNode& node : message.nodes()) {
    if (budget_.ended()) break;
    AddNode(index++, node);
  }
  if (message.has_loop()) SetLoop(message.loop());
  if (graph_.nodes.empty() && !too_many_nodes_) {
    findings_.Add(Code::kEmpty, {}, "the graph has no nodes. Fix: add at least one");
  }
  graph_.fuse = !message.has_fuse() || message.fuse();
  return std::move(graph_);
}

void GraphReader::CheckUnknown(const char* what, uint32_t index,
                               const google::protobuf::Message& message) {
  const google::protobuf::UnknownFieldSet& fields =
      message.GetReflection()->GetUnknownFields(message);
  if (fields.empty()) return;
  if (!findings_.keeps_errors()) return findings_.CountError();
  findings_.Add(Code::kUnknownField, {},
                StrCat(what, " ", index, " has a field ", fields.field(0).number(),
                       " that this daemon does not know. Fix: update the daemon, or do "
                       "not use the field"));
}

void GraphReader::CheckUnknownInNode(uint32_t index, const v1::GraphNode& message) {
  CheckUnknown("node", index, message);
  for (const v1::GraphArgument& argument : message.arguments()) {
    CheckUnknown("an argument of node", index, argument);
    if (argument.has_tensor()) {
      CheckUnknown("a view of node", index, argument.tensor());
      for (const v1::GraphDim& dim : argument.tensor().shape()) {
        CheckUnknown("a dimension of node", index, dim);
      }
    }
    if (argument.has_scalar()) CheckUnknown("a scalar of node", index, argument.scalar());
  }
  for (const v1::GraphWait& wait : message.waits()) CheckUnknown("a wait of node", index, wait);
}

void GraphReader::Begin(const v1::Graph& message) {
  const std::string_view name = message.name();
  if (name.size() > kMaxNameBytes) {
    findings_.Add(
        Code::kOverLimit, {},
        StrCat("the graph's name has ", name.size(), " bytes. Fix: use at most ", kMaxNameBytes));
  }
  graph_.name = std::string(name.substr(0, kMaxNameBytes));
  if (message.format() != kFormat) {
    findings_.Add(Code::kFormatVersion, {},
                  StrCat("format ", message.format(), " is not supported. Fix: set \"format\": ",
                         kFormat, ", and write the graph as docs/graph_format.md describes"));
  }
  graph_.blocks = message.blocks();
  if (graph_.blocks > kMaxBlocks) {
    findings_.Add(Code::kOverLimit, {},
                  StrCat("blocks is ", graph_.blocks, ". Fix: use at most ", kMaxBlocks));
  }
}

std::string_view GraphReader::AddName(std::string_view name, Index& index, uint32_t position,
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

uint32_t GraphReader::FindName(std::string_view name, const Index& index, const char* what,
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

void GraphReader::CheckId(uint32_t id, uint32_t position, const Place& place) {
  if (id == position) return;
  findings_.Add(Code::kIdIsNotIndex, place,
                StrCat("id ", id, " stands at index ", position,
                       ". Fix: number the list from 0 without gaps, or omit the ids"));
}

bool GraphReader::CheckCount(size_t count, size_t limit, const char* what) {
  if (count < limit) return true;
  if (count == limit) {
    findings_.Add(Code::kOverLimit, {},
                  StrCat("the graph has more than ", limit, " ", what, ". Fix: use fewer"));
  }
  return false;
}

void GraphReader::AddScalar(const v1::GraphScalar& message) {
  if (!budget_.TakeElements(1)) return;
  const uint32_t position = static_cast<uint32_t>(graph_.scalars.size());
  if (!CheckCount(position, kMaxScalars, "scalars")) return;
  Scalar scalar;
  scalar.name = AddName(message.name(), scalars_, position, "scalar", /*optional=*/false, {});
  const std::string text = StrCat("scalar ", Quote(message.name()));
  const uint64_t before = findings_.errors();
  if (message.dtype() != static_cast<int>(DType::kI64) &&
      message.dtype() != static_cast<int>(DType::kF32)) {
    findings_.Add(Code::kScalarDType, {},
                  StrCat(text, " has dtype ", DTypeName(static_cast<DType>(message.dtype())),
                         ". Fix: use i64 or f32"));
  }
  scalar.dtype = static_cast<DType>(message.dtype());
  scalar.min = message.least();
  scalar.max = message.most();
  if (message.has_initial()) scalar.initial = message.initial();
  if (std::isnan(scalar.min) || std::isnan(scalar.max) ||
      (scalar.initial.has_value() && !std::isfinite(*scalar.initial))) {
    findings_.Add(Code::kNotANumber, {},
                  StrCat(text,
                         " has a bound or an initial value that is not a number. Fix: give "
                         "numbers; a bound may be Infinity or -Infinity"));
  } else if (scalar.min > scalar.max) {
    findings_.Add(Code::kScalarRange, {},
                  StrCat(text, ": least ", scalar.min, " is above most ", scalar.max,
                         ". Fix: exchange them"));
  } else if (scalar.dtype == DType::kI64 &&
             !(IsWhole(scalar.min) && IsWhole(scalar.max) && IsWhole(scalar.initial.value_or(0)))) {
    findings_.Add(Code::kScalarRange, {},
                  StrCat(text,
                         " is an i64, and its bounds and initial value must be whole numbers "
                         "of at most 2^53. Fix: round them"));
  } else if (scalar.initial.has_value() &&
             (*scalar.initial < scalar.min || *scalar.initial > scalar.max)) {
    findings_.Add(Code::kScalarRange, {},
                  StrCat(text, ": the initial value ", *scalar.initial, " is not in [", scalar.min,
                         ", ", scalar.max, "]. Fix: change the value or the range"));
  }
  bad_scalars_.push_back(findings_.errors() != before);
  graph_.scalars.push_back(scalar);
}

bool GraphReader::ResolveDim(const v1::GraphDim& dim, size_t index, const Place& place,
                             Axis* axis) {
  if (dim.scalar().empty()) {
    if (dim.size() < 1) {
      findings_.Add(Code::kBadDimension, place,
                    StrCat("dimension ", index, " has ", dim.size(),
                           " elements. Fix: use at least 1; pass \"none\" for an optional tensor"));
      return false;
    }
    axis->size = dim.size();
    return true;
  }
  if (dim.size() != 0) {
    findings_.Add(Code::kBadDimension, place,
                  StrCat("dimension ", index, " has the size ", dim.size(), " and the scalar ",
                         Quote(dim.scalar()), ". Fix: give one of them"));
    return false;
  }
  axis->scalar = FindName(dim.scalar(), scalars_, "scalar", place);
  if (axis->scalar == kNone || bad_scalars_[axis->scalar]) return false;
  const Scalar& scalar = graph_.scalars[axis->scalar];
  if (scalar.dtype != DType::kI64) {
    findings_.Add(Code::kScalarDType, place,
                  StrCat("dimension ", index, " is the scalar ", Quote(dim.scalar()),
                         ", which is not an i64. Fix: declare it as i64"));
    return false;
  }
  if (!std::isfinite(scalar.max)) {
    findings_.Add(Code::kUnboundedDimension, place,
                  StrCat("dimension ", index, " is the scalar ", Quote(dim.scalar()),
                         ", which has no upper bound. Fix: set its \"most\""));
    return false;
  }
  if (scalar.min < 1) {
    findings_.Add(Code::kBadDimension, place,
                  StrCat("dimension ", index, " is the scalar ", Quote(dim.scalar()),
                         ", which may be ", scalar.min, ". Fix: set its \"least\" to 1 or more"));
    return false;
  }
  axis->size = static_cast<int64_t>(scalar.max);
  return true;
}

bool GraphReader::AddAxes(const Shape& shape, absl::Span<const int64_t> strides,
                          uint32_t element_bytes, const Place& place) {
  const size_t rank = static_cast<size_t>(shape.size());
  if (rank > kMaxRank) {
    findings_.Add(Code::kOverLimit, place,
                  StrCat("a shape has ", rank, " dimensions. Fix: use at most ", kMaxRank));
    return false;
  }
  if (!strides.empty() && strides.size() != rank) {
    findings_.Add(Code::kRank, place,
                  StrCat("there are ", strides.size(), " strides for ", rank,
                         " dimensions. Fix: give one for each dimension, or none"));
    return false;
  }
  absl::InlinedVector<Axis, kMaxRank> axes(rank);
  bool good = true;
  for (size_t d = 0; d < rank; ++d) {
    good &= ResolveDim(shape[static_cast<int>(d)], d, place, &axes[d]);
  }
  if (!good) return false;
  __int128 dense = element_bytes;
  for (size_t d = rank; d > 0; --d) {
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

void GraphReader::AddTensor(const v1::GraphTensor& message) {
  if (!budget_.TakeElements(1 + static_cast<uint64_t>(message.shape_size()))) return;
  const uint32_t position = static_cast<uint32_t>(graph_.tensors.size());
  if (!CheckCount(position, kMaxTensors, "tensors")) return;
  const uint64_t before = findings_.errors();
  Tensor tensor;
  tensor.name = AddName(message.name(), tensors_, position, "tensor", /*optional=*/false, {});
  const Place place{.tensor = message.name().empty() ? StrCat("#", position)
                                                     : message.name().substr(0, kMaxNameBytes)};
  if (message.has_id()) CheckId(message.id(), position, place);
  tensor.root = position;
  const int kind = message.kind();
  if (kind < static_cast<int>(TensorKind::kWeight) ||
      kind > static_cast<int>(TensorKind::kStream)) {
    findings_.Add(Code::kUnknownName, place,
                  StrCat("kind ", kind,
                         " does not exist. Fix: use KIND_WEIGHT, KIND_CONST, "
                         "KIND_STATE, KIND_ACTIVATION, KIND_INPUT, KIND_OUTPUT or KIND_STREAM"));
  } else {
    tensor.kind = static_cast<TensorKind>(kind);
  }
  const int dtype_number = message.dtype();
  const DTypeInfo* const dtype = FindDType(dtype_number);
  if (dtype == nullptr) {
    findings_.Add(
        Code::kUnknownName, place,
        StrCat("dtype ", dtype_number, " does not exist. Fix: use one of ", DTypeNames()));
  }
  const uint32_t element_bytes = dtype == nullptr ? 1 : dtype->size_bytes();
  tensor.view.dtype = dtype == nullptr ? DType::kInvalid : dtype->dtype;
  tensor.view.first_axis = static_cast<uint32_t>(graph_.axes.size());
  if (AddAxes(message.shape(), ReadNumbers(message.strides()), element_bytes, place)) {
    tensor.view.rank = static_cast<uint8_t>(message.shape_size());
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
  int64_t bytes = PlaceTensor(message, place, element_bytes, before, &tensor);
  if (message.alias_of().empty()) {
    total_bytes_ += bytes;
  } else {
    const std::string_view of = message.alias_of();
    aliases_.push_back({position, graph_.names.Add(of.substr(0, kMaxNameBytes + 1))});
    bytes = 0;
  }
  bad_tensors_.push_back(findings_.errors() != before);
  graph_.root_bytes.push_back(bytes);
  graph_.tensors.push_back(tensor);
}

int64_t GraphReader::PlaceTensor(const v1::GraphTensor& message, const Place& place,
                                 uint32_t element_bytes, uint64_t before, Tensor* tensor) {
  const uint64_t alignment = tensor->kind == TensorKind::kStream ? 16 : element_bytes;
  if (message.offset() % alignment != 0) {
    findings_.Add(Code::kMisaligned, place,
                  StrCat("offset ", message.offset(), " is not a multiple of ", alignment,
                         " bytes. Fix: align it"));
  }
  if (message.offset() > static_cast<uint64_t>(kMaxGraphBytes)) {
    findings_.Add(
        Code::kSizeOverflow, place,
        StrCat("offset ", message.offset(), " is too large. Fix: use at most ", kMaxGraphBytes));
  }
  if (findings_.errors() != before) return 0;
  tensor->view.offset = static_cast<int64_t>(message.offset());
  const std::optional<ByteRange> hull =
      FindHull(MaxExtents(graph_, tensor->view), tensor->view.offset, element_bytes);
  if (!hull.has_value()) {
    findings_.Add(Code::kSizeOverflow, place,
                  "the tensor's memory overflows. Fix: use a smaller shape or smaller strides");
    return 0;
  }
  if (hull->low < 0 && message.alias_of().empty()) {
    findings_.Add(Code::kOutsideBuffer, place,
                  StrCat("the first byte is ", hull->low,
                         ", before the buffer. Fix: with "
                         "negative strides set \"offset\" to the position of the first element"));
    return 0;
  }
  return hull->high;
}

void GraphReader::EndTensors() {
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
      const ByteRange own =
          *FindHull(MaxExtents(graph_, root.view), root.view.offset, root_element);
      tensor.view.offset += root.view.offset;
      const std::optional<ByteRange> hull =
          FindHull(MaxExtents(graph_, tensor.view), tensor.view.offset, SizeOf(tensor.view.dtype));
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

void GraphReader::AddCounter(const v1::GraphCounter& message) {
  if (!budget_.TakeElements(1)) return;
  const uint32_t position = static_cast<uint32_t>(graph_.counters.size());
  if (!CheckCount(position, kMaxCounters, "counters")) return;
  Counter counter;
  counter.name = AddName(message.name(), counters_, position, "counter", /*optional=*/true, {});
  counter.initial = message.initial();
  graph_.counters.push_back(counter);
}

uint32_t GraphReader::FindOperator(std::string_view name, uint32_t version, const Place& place) {
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

bool GraphReader::ResolveView(const v1::GraphView& message, Place place, Argument* argument) {
  argument->tensor = FindName(message.name(), tensors_, "tensor", place);
  if (argument->tensor == kNone || bad_tensors_[argument->tensor]) return false;
  const Tensor& tensor = graph_.tensors[argument->tensor];
  place.tensor = std::string(tensor.name);
  argument->view = tensor.view;
  const bool whole = message.shape().empty() && !message.scalar_shape();
  if (whole && message.strides().empty() && message.offset() == 0) return true;
  const uint32_t element_bytes = SizeOf(tensor.view.dtype);
  if (whole || (message.scalar_shape() && !message.shape().empty())) {
    findings_.Add(Code::kArgument, place,
                  whole ? "a view with an offset or strides has no shape. Fix: give the shape, or "
                          "\"scalar_shape\": true for one element"
                        : "a view has a shape and scalar_shape. Fix: give one of them");
    return false;
  }
  absl::InlinedVector<int64_t, kMaxRank> strides(message.strides().begin(),
                                                 message.strides().end());
  if (strides.empty() && message.shape_size() == tensor.view.rank) {
    for (const Axis& axis : graph_.AxesOf(tensor.view)) {
      strides.push_back(axis.stride / static_cast<int64_t>(element_bytes));
    }
  }
  argument->view.first_axis = static_cast<uint32_t>(graph_.axes.size());
  argument->view.rank = static_cast<uint8_t>(message.shape_size());
  if (!AddAxes(message.shape(), strides, element_bytes, place)) return false;
  const ByteRange own =
      *FindHull(MaxExtents(graph_, tensor.view), tensor.view.offset, element_bytes);
  const __int128 offset =
      static_cast<__int128>(message.offset()) * element_bytes + tensor.view.offset;
  std::optional<ByteRange> hull;
  if (offset >= own.low && offset < own.high) {
    argument->view.offset = static_cast<int64_t>(offset);
    hull = FindHull(MaxExtents(graph_, argument->view), argument->view.offset, element_bytes);
  }
  if (hull.has_value() && hull->low >= own.low && hull->high <= own.high) return true;
  const auto element = [&](int64_t byte) { return (byte - tensor.view.offset) / element_bytes; };
  findings_.Add(Code::kOutsideBuffer, place,
                StrCat("the view ", ShapeText(graph_, argument->view), " from element ",
                       message.offset(), " on ",
                       hull.has_value() ? StrCat("covers elements ", element(hull->low), " to ",
                                                 element(hull->high - 1), " and")
                                        : "begins outside, and",
                       " the tensor has elements ", element(own.low), " to ", element(own.high - 1),
                       ". Fix: use a smaller shape, stride or offset"));
  return false;
}

bool GraphReader::ResolveScalar(const v1::GraphScalarUse& message, const Parameter& parameter,
                                const Place& place, Argument* argument) {
  argument->kind = Argument::Kind::kExpression;
  const uint32_t scalar = FindName(message.name(), scalars_, "scalar", place);
  if (scalar == kNone || bad_scalars_[scalar]) return false;
  const double factor = message.has_factor() ? message.factor() : 1;
  if (!std::isfinite(factor) || !std::isfinite(message.addend())) {
    findings_.Add(Code::kNotANumber, place,
                  StrCat("argument '", parameter.name, "': factor ", factor, " or addend ",
                         message.addend(), " is not a number. Fix: give numbers"));
    return false;
  }
  argument->expression = static_cast<uint32_t>(graph_.expressions.size());
  graph_.expressions.push_back({scalar, factor, message.addend()});
  return true;
}

bool GraphReader::ResolveArgument(const v1::GraphArgument& message, const Parameter& parameter,
                                  const Place& place, Argument* argument) {
  const bool missing = message.value_case() == v1::GraphArgument::VALUE_NOT_SET ||
                       (message.value_case() == v1::GraphArgument::kNone && !IsNoTensor(message));
  const bool tensor = message.has_tensor() || IsNoTensor(message);
  if (missing || tensor == parameter.scalar()) {
    findings_.Add(Code::kArgument, place,
                  StrCat("argument '", parameter.name, "' is ", ParameterKindText(parameter.kind),
                         " and got ",
                         missing  ? "nothing"
                         : tensor ? "a tensor"
                                  : "a scalar",
                         ". Fix: give ", parameter.scalar() ? "i64, f64 or scalar" : "tensor"));
    return false;
  }
  switch (message.value_case()) {
    case v1::GraphArgument::kTensor:
      argument->kind = Argument::Kind::kTensor;
      return ResolveView(message.tensor(), place, argument);
    case v1::GraphArgument::kI64:
      argument->kind = Argument::Kind::kInteger;
      argument->integer = message.i64();
      return true;
    case v1::GraphArgument::kF64:
      argument->kind = Argument::Kind::kFloat;
      argument->number = message.f64();
      return true;
    case v1::GraphArgument::kScalar:
      return ResolveScalar(message.scalar(), parameter, place, argument);
    default:
      break;
  }
  argument->kind = Argument::Kind::kNoTensor;
  // Only a parameter that takes any shape can be left out.
  if (parameter.kind != ParameterKind::kInput || parameter.dims.size() != 1 ||
      parameter.dims[0].kind != DimPattern::Kind::kSpread) {
    findings_.Add(Code::kArgument, place,
                  StrCat("argument '", parameter.name, "' is not optional. Fix: give a tensor"));
    return false;
  }
  return true;
}

void GraphReader::ReadOrder(const v1::GraphNode& message, const Place& place, Node* node) {
  const size_t waits = static_cast<size_t>(message.waits_size());
  if (waits > kMaxWaits) {
    findings_.Add(Code::kTooManyWaits, place,
                  StrCat("the node has ", waits, " waits. Fix: use at most ", kMaxWaits,
                         ", for example by a counter that several nodes signal"));
  }
  node->first_wait = static_cast<uint32_t>(graph_.waits.size());
  for (size_t i = 0; i < std::min<size_t>(waits, kMaxWaits); ++i) {
    const v1::GraphWait& wait = message.waits(static_cast<int>(i));
    if (wait.counter() >= graph_.counters.size()) {
      findings_.Add(Code::kUnknownName, place,
                    StrCat("the node waits for counter ", wait.counter(), ", and the graph has ",
                           graph_.counters.size(), ". Fix: use an index in \"counters\""));
      continue;
    }
    graph_.waits.push_back({wait.counter(), wait.threshold()});
    ++node->wait_count;
  }
  if (message.has_signals() && message.signals() >= graph_.counters.size()) {
    findings_.Add(Code::kUnknownName, place,
                  StrCat("the node signals counter ", message.signals(), ", and the graph has ",
                         graph_.counters.size(), ". Fix: use an index in \"counters\""));
  } else if (message.has_signals()) {
    node->signals = message.signals();
  }
  if (message.has_block() != (graph_.blocks > 0) ||
      (message.has_block() && message.block() >= graph_.blocks)) {
    findings_.Add(Code::kBlock, place,
                  StrCat("the node has ",
                         message.has_block() ? StrCat("block ", message.block()) : "no block",
                         ", and the graph has ", graph_.blocks,
                         " blocks. Fix: give every node a block below \"blocks\", or none"));
  }
  node->block = message.has_block() ? message.block() : kNone;
}

void GraphReader::ReportMatch(const OperatorInfo& info, const v1::GraphNode& message,
                              const MatchedArguments& matched, uint64_t before,
                              const Place& place) {
  using Problem = MatchedArguments::Problem;
  for (const MatchedArguments::Refused& refused : matched.refused) {
    if (refused.problem == Problem::kUnnamedAfterNamed) {
      findings_.Add(Code::kArgument, place,
                    StrCat("argument ", refused.argument + 1,
                           " has no name, and stands after one that has. "
                           "Fix: name it, or move it to the front"));
      continue;
    }
    findings_.Add(Code::kArgument, place,
                  StrCat(info.name,
                         refused.problem == Problem::kUnknownName ? " has no parameter "
                                                                  : " got two arguments for ",
                         Quote(message.arguments(static_cast<int>(refused.argument)).parameter()),
                         ". Fix: use each name of its signature once"));
  }
  if (matched.missing.empty() || findings_.errors() != before) return;
  std::string missing;
  for (const size_t parameter : matched.missing) {
    absl::StrAppend(&missing, missing.empty() ? "" : ", ",
                    info.signature.parameters()[parameter].name);
  }
  const size_t given = static_cast<size_t>(message.arguments_size());
  const size_t required = info.signature.required_arguments();
  findings_.Add(given < required && !matched.named ? Code::kArity : Code::kArgument, place,
                StrCat(info.name, " takes ", required, " or more arguments and got ", given, ": ",
                       missing, " is missing. Fix: give it"));
}

bool GraphReader::ReadArguments(const v1::GraphNode& message, uint64_t before, const Place& place,
                                Node* node) {
  const OperatorInfo& info = graph_.operators[node->op];
  const std::vector<Parameter>& parameters = info.signature.parameters();
  if (static_cast<size_t>(message.arguments_size()) > parameters.size()) {
    findings_.Add(Code::kArity, place,
                  StrCat(info.name, " takes at most ", parameters.size(), " arguments and got ",
                         message.arguments_size(), ". Fix: remove some"));
    return false;
  }
  absl::InlinedVector<std::string_view, kMaxArguments> names;
  for (const v1::GraphArgument& argument : message.arguments()) {
    names.push_back(argument.parameter());
  }
  const MatchedArguments matched = MatchArguments(info.signature, names);
  ReportMatch(info, message, matched, before, place);
  if (findings_.errors() != before) return false;
  bool usable = true;
  for (size_t p = 0; p < matched.by_parameter.size(); ++p) {
    Argument argument;
    if (const std::optional<size_t> given = matched.by_parameter[p]) {
      usable &= ResolveArgument(message.arguments(static_cast<int>(*given)), parameters[p], place,
                                &argument);
    } else {
      SetDefault(parameters[p], &argument);
    }
    graph_.arguments.push_back(argument);
  }
  node->argument_count = static_cast<uint16_t>(matched.by_parameter.size());
  return usable;
}

void GraphReader::AddNode(uint32_t index, const v1::GraphNode& message) {
  uint64_t elements = 1 + static_cast<uint64_t>(message.arguments_size()) +
                      static_cast<uint64_t>(message.waits_size());
  for (const v1::GraphArgument& argument : message.arguments()) {
    elements += static_cast<uint64_t>(argument.tensor().shape_size());
  }
  if (!budget_.TakeElements(elements)) return;
  CheckUnknownInNode(index, message);
  const uint32_t position = static_cast<uint32_t>(graph_.nodes.size());
  if (!CheckCount(position, kMaxNodes, "nodes")) {
    too_many_nodes_ = true;
    return;
  }
  const uint64_t before = findings_.errors();
  Node node;
  Place place;
  node.name = AddName(message.name(), nodes_, position, "node", /*optional=*/true, place);
  place.node = node.name.empty() ? StrCat("#", position) : std::string(node.name);
  if (message.has_id()) CheckId(message.id(), position, place);
  ReadOrder(message, place, &node);
  node.op = FindOperator(message.operator_(), message.version(), place);
  node.first_argument = static_cast<uint32_t>(graph_.arguments.size());
  const bool usable = node.op != kNone && ReadArguments(message, before, place, &node);
  if (findings_.errors() != before || !usable) node.op = kNone;
  graph_.nodes.push_back(node);
}

void GraphReader::SetLoop(const v1::GraphLoop& message) {
  CheckUnknown("loop", 0, message);
  for (const v1::GraphUpdate& update : message.updates()) {
    CheckUnknown("an update of loop", 0, update);
  }
  if (message.has_stop()) CheckUnknown("the stop of loop", 0, message.stop());
  Loop loop;
  loop.max_steps = message.max_steps();
  if (message.max_steps() == 0) {
    findings_.Add(Code::kEmpty, {},
                  "the loop has max_steps 0. Fix: set it to 1 or more, or remove the loop");
  } else if (message.max_steps() > kMaxSteps) {
    findings_.Add(
        Code::kOverLimit, {},
        StrCat("the loop has max_steps ", message.max_steps(), ". Fix: use at most ", kMaxSteps));
  }
  std::vector<bool> updated(graph_.scalars.size(), false);
  for (const v1::GraphUpdate& update : message.updates()) {
    const uint32_t scalar = FindName(update.scalar(), scalars_, "scalar", {});
    const double factor = update.has_factor() ? update.factor() : 1;
    if (scalar == kNone || bad_scalars_[scalar]) continue;
    if (updated[scalar]) {
      findings_.Add(Code::kDuplicateName, {},
                    StrCat("the loop updates scalar ", Quote(update.scalar()),
                           " twice. Fix: combine the updates"));
    } else if (!std::isfinite(factor) || !std::isfinite(update.addend())) {
      findings_.Add(Code::kNotANumber, {},
                    StrCat("the update of scalar ", Quote(update.scalar()), " has factor ", factor,
                           " and addend ", update.addend(), ". Fix: give numbers"));
    } else {
      loop.updates.push_back({scalar, factor, update.addend()});
    }
    updated[scalar] = true;
  }
  if (message.has_stop()) {
    const absl::Span<const int64_t> values = ReadNumbers(message.stop().values());
    loop.stop_tensor = FindName(message.stop().tensor(), tensors_, "tensor", {});
    if (loop.stop_tensor != kNone && bad_tensors_[loop.stop_tensor]) loop.stop_tensor = kNone;
    if (values.empty() || values.size() > kMaxStopValues) {
      findings_.Add(
          values.empty() ? Code::kEmpty : Code::kOverLimit, {},
          StrCat("the loop stops at ", values.size(), " values. Fix: give 1 to ", kMaxStopValues));
    } else {
      loop.stop_values.assign(values.begin(), values.end());
    }
  }
  graph_.loop = std::move(loop);
}

}  // namespace
}  // namespace resident::graph

namespace resident {

graph::Graph ReadGraph(const v1::Graph& message, const graph::OperatorCatalog& catalog,
                       graph::Findings* findings, graph::CheckBudget* budget) {
  graph::CheckBudget own;
  return graph::GraphReader(catalog, findings, budget == nullptr ? &own : budget).Read(message);
}

}  // namespace resident
