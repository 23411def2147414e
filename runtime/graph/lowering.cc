#include "runtime/graph/lowering.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "kernels/graph/graph_arguments.h"
#include "runtime/graph/accesses.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/region.h"
#include "runtime/graph/values.h"
#include "runtime/model/cost_rule.h"
#include "runtime/model/dtype.h"
#include "runtime/model/strided_view.h"

namespace resident::graph {
namespace {

// Between the records of a step, and between the parts of an image.
constexpr uint64_t kPartAlignment = 64;

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// A graph with more nodes than this for each stream has none.
constexpr size_t kNodesForAStream = 3;

// At the declared sizes.
Shape MaxShape(const Graph& graph, const View& view) {
  Shape shape;
  for (const Axis& axis : graph.AxesOf(view)) shape.push_back(axis.size);
  return shape;
}

// The chunks of a call, at the declared sizes of its tensors.
uint64_t EstimateChunks(const Graph& graph, const View& view, const SplitRule& split,
                        uint32_t workers) {
  return split.Chunks(MaxShape(graph, view), workers);
}
uint64_t EstimateChunks(const Graph& graph, const Node& node, uint32_t workers) {
  const SplitRule& split = graph.operators[node.op].split;
  Shape shape;
  return split.Chunks(
      [&](int parameter) -> absl::Span<const int64_t> {
        const Argument& argument = graph.ArgumentsOf(node)[static_cast<size_t>(parameter)];
        // Without a tensor, one chunk.
        shape = argument.kind == Argument::Kind::kTensor ? MaxShape(graph, argument.view) : Shape();
        return shape;
      },
      workers);
}

// At the declared sizes.
double EstimateOperations(const Graph& graph, const Node& node) {
  const CostRule& cost = graph.operators[node.op].cost;
  if (cost.terms.empty()) return 0;
  const auto arguments = graph.ArgumentsOf(node);
  absl::InlinedVector<Shape, 4> shapes(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind == Argument::Kind::kTensor)
      shapes[i] = MaxShape(graph, arguments[i].view);
  }
  return cost.Operations(shapes);
}

// Bytes of the elements of a view, at its declared sizes. Elements that are repeated count once.
double ViewBytes(const Graph& graph, const View& view) {
  double bytes = SizeOf(view.dtype);
  for (const Axis& axis : graph.AxesOf(view)) {
    if (axis.stride != 0) bytes *= static_cast<double>(axis.size);
  }
  return bytes;
}

// Whether the node may write the argument.
bool Writes(const Graph& graph, const Node& node, size_t argument) {
  return graph.ArgumentsOf(node)[argument].kind == Argument::Kind::kTensor &&
         graph.operators[node.op].signature.parameters()[argument].kind != ParameterKind::kInput;
}

// By tensor: the nodes that write its memory, in their order; only of roots.
std::vector<std::vector<uint32_t>> WritersOfRoots(const Graph& graph) {
  std::vector<std::vector<uint32_t>> writers(graph.tensors.size());
  for (uint32_t node = 0; node < graph.nodes.size(); ++node) {
    const auto arguments = graph.ArgumentsOf(graph.nodes[node]);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!Writes(graph, graph.nodes[node], i)) continue;
      std::vector<uint32_t>& of_root = writers[graph.tensors[arguments[i].tensor].root];
      if (of_root.empty() || of_root.back() != node) of_root.push_back(node);
    }
  }
  return writers;
}

// Whether the node may write memory of a view of the root.
bool MayWrite(const Graph& graph, const Node& node, uint32_t root, const View& view) {
  const auto hull_of = [&](const View& of) {
    return FindHull(MaxExtents(graph, of), of.offset, SizeOf(of.dtype));
  };
  const std::optional<ByteRange> read = hull_of(view);
  const auto arguments = graph.ArgumentsOf(node);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!Writes(graph, node, i) || graph.tensors[arguments[i].tensor].root != root) continue;
    const std::optional<ByteRange> written = hull_of(arguments[i].view);
    if (!read.has_value() || !written.has_value() ||
        (read->low < written->high && written->low < read->high)) {
      return true;
    }
  }
  return false;
}

// Nodes that write a tensor which another one of them reads early: with more of them, none does.
// Each is compared with each.
constexpr size_t kMaxWriters = 512;

// GangNode::starts_early. `writers`: WritersOfRoots.
bool StartsEarly(const Graph& graph, uint32_t index,
                 absl::Span<const std::vector<uint32_t>> writers) {
  const Node& node = graph.nodes[index];
  const std::optional<uint32_t> reads = graph.operators[node.op].early_reads;
  if (!reads.has_value()) return false;
  const auto arguments = graph.ArgumentsOf(node);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind != Argument::Kind::kTensor || (*reads >> i & 1) == 0) continue;
    const uint32_t root = graph.tensors[arguments[i].tensor].root;
    const std::vector<uint32_t>& of_root = writers[root];
    if (!of_root.empty() && (!Writes(graph, node, i) || of_root.size() > kMaxWriters)) return false;
    for (const uint32_t other : of_root) {
      if (other != index && MayWrite(graph, graph.nodes[other], root, arguments[i].view)) {
        return false;
      }
    }
  }
  return true;
}

// Whether the tensor is dense, has so many elements, and begins at a multiple of kStreamAlignment,
// as its root does.
bool IsDenseAndAligned(const TensorArgument& tensor, uint64_t elements) {
  TensorArgument dense = tensor;
  SetDenseStrides(&dense);
  uint64_t count = 1;
  for (uint32_t d = 0; d < tensor.rank; ++d) {
    if (dense.strides[d] != tensor.strides[d]) return false;
    count *= static_cast<uint64_t>(tensor.shape[d]);
  }
  return count == elements && tensor.address % kStreamAlignment == 0;
}

// The stream of a node, without addresses and rotation. nullopt: it has none. `arguments`: with
// addresses relative to their roots.
std::optional<GraphStream> FindStream(const std::string& name,
                                      absl::Span<const resident::Argument> arguments,
                                      uint32_t gang) {
  const StreamOperator* const op =
      std::find_if(std::begin(kStreamOperators), std::end(kStreamOperators),
                   [&](const StreamOperator& each) { return name == each.name; });
  if (op == std::end(kStreamOperators)) return std::nullopt;
  const size_t first = op->normalized ? 2 : 1;
  const size_t matrices = CountMatrices(op->form);
  const bool gated = op->form == StreamForm::kGated;
  const size_t results = gated ? 1 : matrices;
  const TensorArgument& x = arguments[0].tensor;
  if (arguments[first].tensor.rank != 2) return std::nullopt;
  const auto columns = static_cast<uint64_t>(arguments[first].tensor.shape[1]);
  const bool wide = columns == kStreamWideColumns;
  if (wide ? gated || op->normalized : columns != kStreamColumns) return std::nullopt;
  if (!IsDenseAndAligned(x, columns)) return std::nullopt;
  if (x.dtype != DType::kF32 && (op->normalized || x.dtype != DType::kBF16)) return std::nullopt;
  if (op->normalized && (arguments[1].tensor.dtype != DType::kBF16 ||
                         !IsDenseAndAligned(arguments[1].tensor, columns))) {
    return std::nullopt;
  }
  const uint64_t rows_of_page = kStreamPageBytes / (2 * columns) / (gated ? matrices : 1);
  GraphStream stream{};
  stream.form = op->form;
  stream.normalized = op->normalized;
  stream.columns = static_cast<u32>(columns);
  uint64_t pages = 0;
  for (size_t m = 0; m < matrices; ++m) {
    const TensorArgument& matrix = arguments[first + m].tensor;
    const auto rows = static_cast<uint64_t>(matrix.shape[0]);
    if (matrix.dtype != DType::kBF16 || matrix.rank != 2 ||
        static_cast<uint64_t>(matrix.shape[1]) != columns || rows % rows_of_page != 0 ||
        !IsDenseAndAligned(matrix, rows * columns)) {
      return std::nullopt;
    }
    if (m == 0 || !gated) pages += rows / rows_of_page;
    if (pages * rows_of_page > kMaxStreamRows) return std::nullopt;
    if (m < std::size(stream.ends)) stream.ends[m] = static_cast<u32>(pages);
    if (m >= results) {
      if (rows != static_cast<uint64_t>(arguments[first].tensor.shape[0])) return std::nullopt;
      continue;
    }
    if (!IsDenseAndAligned(arguments[first + matrices + (gated ? 0 : results) + m].tensor, rows)) {
      return std::nullopt;
    }
    const TensorArgument& bias = arguments[first + matrices + m].tensor;
    const bool has_bias = !gated && bias.shape[0] != 0;
    if (has_bias && !IsDenseAndAligned(bias, rows)) return std::nullopt;
  }
  stream.base = static_cast<u32>(pages / gang);
  stream.extra = static_cast<u32>(pages % gang);
  return stream;
}

template <typename T>
void Place(const std::vector<T>& part, uint64_t at, std::string* image) {
  if (!part.empty()) std::memcpy(image->data() + at, part.data(), part.size() * sizeof(T));
}

}  // namespace

StreamRecords::StreamRecords(const Graph& graph, std::vector<uint32_t> streams)
    : streams_(std::move(streams)) {
  if (streams_.empty()) return;
  absl::flat_hash_map<uint32_t, size_t> list_of_root;
  for (const uint32_t stream : streams_) {
    lists_.push_back(
        list_of_root.try_emplace(graph.tensors[stream].root, list_of_root.size()).first->second);
  }
  writers_.resize(list_of_root.size());
  std::vector<Access> accesses;
  for (uint32_t node = 0; node < graph.nodes.size(); ++node) {
    accesses.clear();
    ListAccesses(graph, graph.nodes[node], {}, &accesses);
    for (const Access& access : accesses) {
      if (access.mode == Access::Mode::kRead) continue;
      const auto found = list_of_root.find(graph.tensors[access.tensor].root);
      if (found == list_of_root.end()) continue;
      std::vector<uint32_t>& writers = writers_[found->second];
      if (writers.empty() || writers.back() != node) writers.push_back(node);
    }
  }
}

bool Lowering::HasTaskStrides(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    const std::vector<Parameter>& parameters = graph.operators[node.op].signature.parameters();
    for (size_t i = 0; i < node.argument_count; ++i) {
      const Argument& argument = graph.ArgumentsOf(node)[i];
      if (argument.kind != Argument::Kind::kTensor) continue;
      if (parameters[i].kind == ParameterKind::kInput) continue;
      Shape shape;
      Shape strides;
      for (const Axis& axis : graph.AxesOf(argument.view)) {
        if (axis.stride < 0) return false;
        shape.push_back(axis.size);
        strides.push_back(axis.stride / SizeOf(argument.view.dtype));
      }
      if (!resident::IsDense(shape, strides) && !IsInjective(shape, strides)) return false;
    }
  }
  return true;
}

std::optional<uint64_t> Lowering::EstimateBytes(const CheckedGraph& checked,
                                                const StreamRecords& records,
                                                uint32_t gang_workers) {
  const Graph& graph = checked.graph;
  const uint64_t streams = records.streams().size();
  const uint64_t nodes = graph.nodes.size() + streams;
  uint64_t arguments = 2 * streams;
  for (const Node& node : graph.nodes) {
    arguments += graph.operators[node.op].signature.parameters().size();
  }
  uint64_t edges = checked.order.size();
  for (size_t i = 0; i < streams; ++i) edges += records.writers(i).size();
  uint64_t bytes = nodes * sizeof(GraphNode) + edges * sizeof(u32) +
                   arguments * (sizeof(resident::Argument) + sizeof(GraphPatch));
  if (gang_workers > 0) {
    const uint64_t workers = std::min(gang_workers, kMaxGang);
    uint64_t entries = workers * streams;  // Of the lists.
    for (const Node& node : graph.nodes) {
      entries += std::min(EstimateChunks(graph, node, gang_workers), workers);
    }
    bytes += nodes * (sizeof(GangNode) + sizeof(GraphStream)) + edges * sizeof(GangWait) +
             (workers + 1 + entries) * sizeof(u32);
  }
  if (nodes > kMaxImageNodes || edges > kMaxRunDependencies || bytes > kMaxImageBytes) {
    return std::nullopt;
  }
  return bytes;
}

Lowering::Lowering(const CheckedGraph& checked, const StreamRecords& records, const Gang& gang)
    : graph_(checked.graph), order_(checked.order) {
  assert(EstimateBytes(checked, records, gang.workers).has_value());
  const std::vector<uint32_t>& streams = records.streams();
  nodes_.reserve(graph_.nodes.size() + streams.size());
  size_t arguments = 2 * streams.size();
  for (const Node& node : graph_.nodes) {
    arguments += graph_.operators[node.op].signature.parameters().size();
  }
  arguments_.reserve(arguments);
  relative_to_.reserve(arguments);
  for (const Node& node : graph_.nodes) AddNode(node);
  for (const uint32_t stream : streams) AddRecord(stream);
  const std::vector<uint32_t> predecessors = Link(records);
  if (gang.workers > 0) {
    AddSchedule(streams, predecessors, gang);
    AddStreams();
  }
  AddLoop();
  header_.operators = static_cast<u32>(graph_.operators.size() + (streams.empty() ? 0 : 1));
  std::vector<uint32_t> rows;
  rows.reserve(nodes_.size());
  for (const GraphNode& node : nodes_) rows.push_back(node.op);
  rows_ = std::make_shared<const std::vector<uint32_t>>(std::move(rows));
  LayOut();
}

void Lowering::AddNode(const Node& node) {
  GraphNode record{};
  record.op = node.op;
  record.first_argument = static_cast<u32>(arguments_.size());
  record.first_patch = static_cast<u32>(patches_.size());
  nodes_.push_back(record);
  const std::vector<Parameter>& parameters = graph_.operators[node.op].signature.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const DType dtype = parameters[i].dtypes[0];
    if (i >= node.argument_count) {
      AddArgument(kNone).scalar_bits = *parameters[i].default_bits;
      continue;
    }
    const Argument& argument = graph_.ArgumentsOf(node)[i];
    switch (argument.kind) {
      case Argument::Kind::kTensor:
        AddTensor(graph_.tensors[argument.tensor].root, argument.view);
        break;
      case Argument::Kind::kNoTensor:
        AddAbsentTensor(dtype);
        break;
      default:
        AddScalar(argument, dtype);
    }
  }
}

resident::Argument& Lowering::AddArgument(uint32_t root) {
  ++nodes_.back().arguments;
  relative_to_.push_back(root);
  resident::Argument& argument = arguments_.emplace_back();
  std::memset(&argument, 0, sizeof(argument));
  return argument;
}

void Lowering::AddPatch(const GraphPatch& patch) {
  ++nodes_.back().patches;
  patches_.push_back(patch);
  patches_.back().argument = static_cast<u8>(nodes_.back().arguments - 1);
}

void Lowering::AddTensor(uint32_t root, const View& view) {
  TensorArgument& tensor = AddArgument(root).tensor;
  tensor.address = static_cast<u64>(view.offset);
  tensor.dtype = view.dtype;
  tensor.rank = view.rank;
  const absl::Span<const Axis> axes = graph_.AxesOf(view);
  bool dynamic = false;
  for (size_t d = 0; d < axes.size(); ++d) {
    tensor.shape[d] = axes[d].size;
    tensor.strides[d] = axes[d].stride / SizeOf(view.dtype);
    if (axes[d].scalar == kNone) continue;
    dynamic = true;
    GraphPatch patch{};
    patch.kind = GraphPatchKind::kSize;
    patch.dimension = static_cast<u8>(d);
    patch.scalar = axes[d].scalar;
    AddPatch(patch);
  }
  if (!dynamic) return NormalizeStrides(&tensor);
  GraphPatch patch{};
  patch.kind = GraphPatchKind::kStrides;
  AddPatch(patch);
}

void Lowering::AddAbsentTensor(DType dtype) {
  TensorArgument& tensor = AddArgument(kNone).tensor;
  tensor.dtype = dtype;
  tensor.rank = 1;
  tensor.strides[0] = 1;
}

void Lowering::AddScalar(const Argument& argument, DType dtype) {
  resident::Argument& scalar = AddArgument(kNone);
  if (argument.kind == Argument::Kind::kInteger) {
    scalar.scalar_bits = ScalarBits(dtype, argument.integer);
  } else if (argument.kind == Argument::Kind::kFloat) {
    scalar.scalar_bits = ScalarBits(dtype, argument.number);
  } else {
    const ScalarExpression& expression = graph_.expressions[argument.expression];
    GraphPatch patch{};
    patch.kind = GraphPatchKind::kValue;
    patch.dtype = dtype;
    patch.scalar = expression.scalar;
    patch.factor = expression.factor;
    patch.addend = expression.addend;
    AddPatch(patch);
  }
}

void Lowering::AddRecord(uint32_t stream) {
  const View& view = graph_.tensors[stream].view;
  GraphNode record{};
  record.op = static_cast<u32>(graph_.operators.size());
  record.first_argument = static_cast<u32>(arguments_.size());
  record.first_patch = static_cast<u32>(patches_.size());
  nodes_.push_back(record);
  AddTensor(graph_.tensors[stream].root, view);
  // The copy has the same sizes.
  AddTensor(kNone, view);
  uint64_t bytes = SizeOf(view.dtype);
  for (const Axis& axis : graph_.AxesOf(view)) bytes *= static_cast<uint64_t>(axis.size);
  GraphPatch patch{};
  patch.kind = GraphPatchKind::kRecord;
  patch.addend = static_cast<double>(record_bytes_);
  AddPatch(patch);
  record_offsets_.push_back(record_bytes_);
  record_bytes_ += RoundUp(bytes);
}

std::vector<uint32_t> Lowering::Link(const StreamRecords& records) {
  const auto calls = static_cast<uint32_t>(graph_.nodes.size());
  const auto for_each = [&](const auto& visit) {  // visit(before, after).
    for (uint32_t node = 0; node < calls; ++node) {
      for (const Dependency& each : order_.Of(node)) visit(uint32_t{each.after}, node);
    }
    for (uint32_t i = 0; i < records.streams().size(); ++i) {
      for (const uint32_t writer : records.writers(i)) visit(writer, calls + i);
    }
  };
  for_each([&](uint32_t before, uint32_t after) {
    ++nodes_[before].successors;
    ++nodes_[after].predecessors;
  });
  uint32_t total = 0;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].first_successor = total;
    total += nodes_[i].successors;
    if (nodes_[i].predecessors == 0) roots_.push_back(i);
  }
  successors_.resize(total);
  std::vector<uint32_t> predecessors;
  predecessors.reserve(total);
  std::vector<uint32_t> added(nodes_.size());
  for_each([&](uint32_t before, uint32_t after) {
    successors_[nodes_[before].first_successor + added[before]++] = after;
    predecessors.push_back(before);
  });
  return predecessors;
}

void Lowering::AddSchedule(absl::Span<const uint32_t> streams,
                           absl::Span<const uint32_t> predecessors, const Gang& gang) {
  std::vector<NodeEstimate> estimates(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    NodeEstimate& estimate = estimates[i];
    estimate.predecessors = nodes_[i].predecessors;
    if (i >= graph_.nodes.size()) {
      const View& record = graph_.tensors[streams[i - graph_.nodes.size()]].view;
      estimate.bytes = 2 * ViewBytes(graph_, record);
      estimate.chunks = EstimateChunks(graph_, record, gang.copy_split, gang.workers);
      continue;
    }
    estimate.chunks = EstimateChunks(graph_, graph_.nodes[i], gang.workers);
    for (const Argument& argument : graph_.ArgumentsOf(graph_.nodes[i])) {
      if (argument.kind != Argument::Kind::kTensor) continue;
      estimate.bytes += ViewBytes(graph_, argument.view);
    }
    estimate.operations = EstimateOperations(graph_, graph_.nodes[i]);
  }
  schedule_ = ComputeSchedule(estimates, predecessors, gang.workers);
  header_.gang = schedule_.gang;
  const std::vector<std::vector<uint32_t>> writers = WritersOfRoots(graph_);
  for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
    schedule_.nodes[i].starts_early = StartsEarly(graph_, i, writers);
  }
}

void Lowering::AddStreams() {
  const uint32_t gang = schedule_.gang;
  uint32_t rotation = 0;
  for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
    GraphNode& node = nodes_[i];
    const GangNode& members = schedule_.nodes[i];
    if (node.patches != 0 || node.predecessors > kMaxStreamWaits || members.ranks != gang ||
        members.starts_early == 0) {
      continue;
    }
    const absl::Span<const resident::Argument> arguments =
        absl::MakeConstSpan(arguments_).subspan(node.first_argument, node.arguments);
    std::optional<GraphStream> stream = FindStream(graph_.operators[node.op].name, arguments, gang);
    if (!stream.has_value()) continue;
    stream->op = node.op;
    stream->rotation = rotation;
    rotation = (rotation + gang - stream->extra) % gang;
    streams_.push_back(*stream);
    stream_matrices_.push_back(node.first_argument + (stream->normalized != 0 ? 2 : 1));
    node.stream = static_cast<u32>(streams_.size());
  }
  // Nodes without a stream take longer beside a loader than without.
  if (streams_.size() * kNodesForAStream >= nodes_.size()) return;
  for (GraphNode& node : nodes_) node.stream = 0;
  streams_.clear();
  stream_matrices_.clear();
}

void Lowering::AddLoop() {
  if (!graph_.loop.has_value()) return;
  for (const Loop::Update& update : graph_.loop->updates) {
    const Scalar& scalar = graph_.scalars[update.scalar];
    updates_.push_back({.scalar = update.scalar,
                        .reserved = 0,
                        .factor = update.factor,
                        .addend = update.addend,
                        .min = scalar.min,
                        .max = scalar.max});
  }
  if (graph_.loop->stop_tensor == kNone) return;
  stop_values_ = graph_.loop->stop_values;
  header_.stop_dtype = graph_.tensors[graph_.loop->stop_tensor].view.dtype;
}

void Lowering::LayOut() {
  uint64_t at = sizeof(GraphImage);
  const auto place = [&](const auto& part) {
    const uint64_t begin = RoundUp(at);
    at = begin + part.size() * sizeof(part[0]);
    return begin;
  };
  header_.magic = kGraphMagic;
  header_.layout_hash = GraphLayoutHash();
  header_.nodes_at = place(nodes_);
  header_.arguments_at = place(arguments_);
  header_.patches_at = place(patches_);
  header_.successors_at = place(successors_);
  header_.roots_at = place(roots_);
  header_.updates_at = place(updates_);
  header_.stop_values_at = place(stop_values_);
  if (gang() > 0) {
    header_.gang_nodes_at = place(schedule_.nodes);
    header_.waits_at = place(schedule_.waits);
    header_.list_begins_at = place(schedule_.list_begins);
    header_.lists_at = place(schedule_.lists);
    header_.streams_at = place(streams_);
    header_.streams = streams_.size();
  }
  header_.bytes = RoundUp(at);
  header_.nodes = static_cast<u32>(nodes_.size());
  header_.roots = static_cast<u32>(roots_.size());
  header_.updates = static_cast<u32>(updates_.size());
  header_.stop_values = static_cast<u32>(stop_values_.size());
  header_.scalars = static_cast<u32>(graph_.scalars.size());
}

bool Lowering::HasAlignedRoots(absl::Span<const uint64_t> addresses) const {
  for (const GraphNode& node : nodes_) {
    if (node.stream == 0) continue;
    for (u32 i = node.first_argument; i < node.first_argument + node.arguments; ++i) {
      if (relative_to_[i] != kNone && addresses[relative_to_[i]] % kStreamAlignment != 0) {
        return false;
      }
    }
  }
  return true;
}

std::string Lowering::Image(absl::Span<const uint64_t> addresses) const {
  assert(nodes() <= kMaxImageNodes && image_bytes() <= kMaxImageBytes);
  std::string image(header_.bytes, '\0');
  GraphImage header = header_;
  if (graph_.loop.has_value() && graph_.loop->stop_tensor != kNone) {
    const Tensor& stop = graph_.tensors[graph_.loop->stop_tensor];
    header.stop_address = addresses[stop.root] + static_cast<uint64_t>(stop.view.offset);
  }
  std::memcpy(image.data(), &header, sizeof(header));
  Place(nodes_, header_.nodes_at, &image);
  Place(arguments_, header_.arguments_at, &image);
  Place(patches_, header_.patches_at, &image);
  Place(successors_, header_.successors_at, &image);
  Place(roots_, header_.roots_at, &image);
  Place(updates_, header_.updates_at, &image);
  Place(stop_values_, header_.stop_values_at, &image);
  Place(schedule_.nodes, header_.gang_nodes_at, &image);
  Place(schedule_.waits, header_.waits_at, &image);
  Place(schedule_.list_begins, header_.list_begins_at, &image);
  Place(schedule_.lists, header_.lists_at, &image);
  Place(streams_, header_.streams_at, &image);
  auto* const arguments =
      reinterpret_cast<resident::Argument*>(image.data() + header_.arguments_at);
  for (size_t i = 0; i < relative_to_.size(); ++i) {
    if (relative_to_[i] != kNone) arguments[i].tensor.address += addresses[relative_to_[i]];
  }
  if (CountStreams(addresses) == 0) {
    reinterpret_cast<GraphImage*>(image.data())->streams = 0;
    auto* const nodes = reinterpret_cast<GraphNode*>(image.data() + header_.nodes_at);
    for (size_t i = 0; i < nodes_.size(); ++i) nodes[i].stream = 0;
  }
  auto* const streams = reinterpret_cast<GraphStream*>(image.data() + header_.streams_at);
  for (size_t i = 0; i < streams_.size(); ++i) {
    for (size_t m = 0; m < CountMatrices(streams_[i].form); ++m) {
      streams[i].matrices[m] = arguments[stream_matrices_[i] + m].tensor.address;
    }
  }
  return image;
}

}  // namespace resident::graph
