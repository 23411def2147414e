#include "tests/gpu/device_graph.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/graph/graph_arguments.h"
#include "kernels/ops/early_operators.h"
#include "runtime/graph/fuse.h"
#include "server/graphs/graph_messages.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/graph_maker.h"
#include "tests/support/bench_report.h"

namespace resident::testing {
namespace {

constexpr uint64_t kAlignment = 256;
// Events of a node in a trace: one for each member, or without a gang one for each chunk, of which
// graphs of benchmarks for such engines have no more.
constexpr uint64_t kMaxChunksWithoutGang = 1024;
// Longer than any quantum of a benchmark takes.
constexpr uint64_t kBudgetNs = 20'000'000'000;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

graph::CheckedGraph CheckMessage(const v1::Graph& message) {
  const BuiltinCatalog catalog;
  graph::Findings findings;
  graph::CheckedGraph checked;
  checked.graph = ReadGraph(message, catalog, &findings);
  graph::GraphCheck check = graph::CheckGraph(checked.graph, &findings);
  if (!check.accepted) {
    Fail(absl::StrCat("graph '", message.name(), "' is refused:\n",
                      FindingsText(ValidateGraph(message, catalog, /*dependencies=*/false))));
  }
  checked.order = *std::move(check.order);
  graph::Fuse(catalog, &checked);
  return checked;
}

template <typename Elements>
uint32_t FindByName(const Elements& elements, const std::string& name) {
  for (uint32_t i = 0; i < elements.size(); ++i) {
    if (elements[i].name == name) return i;
  }
  Fail(absl::StrCat("the graph has no '", name, "'"));
}

GraphOperator Row(const std::string& name, const SplitRule& split) {
  return {.slot = OperatorSlot(name),
          .split_parameter = split.parameter,
          .by_first_dim = split.by_first_dim,
          .starts_early = FindEarlyReads(name).has_value() ? kStartsEarly | kTakesPages : 0,
          .grain = split.grain,
          .limit = split.limit,
          .other_parameter = split.other_parameter,
          .other_grain = split.other_grain,
          .tasks = 0,
          .ns = 0};
}

}  // namespace

DeviceGraph::DeviceGraph(EngineHarness& harness, DeviceTasks& device, const v1::Graph& message,
                         uint32_t max_steps)
    : device_(device),
      workers_(harness.info().workers),
      max_steps_(max_steps),
      checked_(CheckMessage(message)) {
  const graph::Graph& graph = checked_.graph;
  std::vector<uint32_t> streams;
  addresses_.resize(graph.tensors.size());
  for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
    if (graph.tensors[i].kind == graph::TensorKind::kStream) streams.push_back(i);
    if (graph.tensors[i].root != i) continue;
    addresses_[i] = device.Memory(static_cast<uint64_t>(graph.root_bytes[i]));
  }
  const SplitRule copy_split =
      BuiltinCatalog().Find(graph::Lowering::kCopyOperator, 0).value().split;
  lowering_.emplace(checked_, graph::StreamRecords(graph, streams),
                    graph::Lowering::Gang{.workers = harness.info().traits.graph_workers,
                                          .copy_split = copy_split});
  for (const graph::OperatorInfo& op : graph.operators) {
    operators_.push_back(Row(op.name, op.split));
  }
  if (!streams.empty()) operators_.push_back(Row(graph::Lowering::kCopyOperator, copy_split));

  image_ = lowering_->Image(addresses_);
  descriptor_.operator_slot = kGraphSlot;
  descriptor_.flags = kTaskGraph;
  descriptor_.image = device.Upload(image_.data(), image_.size());
  descriptor_.state = device.Memory(lowering_->state_bytes());
  descriptor_.gang = lowering_->gang();
  descriptor_.streams = lowering_->CountStreams(addresses_);

  records_at_ = RoundUp(sizeof(GraphQuantum) + operators_.size() * sizeof(GraphOperator));
  quantum_ = harness.Staging(records_at_ + max_steps * record_bytes());
  descriptor_.quantum = quantum_.address;
  for (const graph::Scalar& scalar : graph.scalars) {
    scalars_.push_back(scalar.initial.value_or(scalar.min));
  }
  Prepare(1);
}

std::vector<std::string> DeviceGraph::Operators() const {
  std::vector<std::string> operators;
  for (const uint32_t row : *lowering_->rows()) {
    const bool copy = row == graph().operators.size();
    operators.push_back(copy ? graph::Lowering::kCopyOperator : graph().operators[row].name);
  }
  return operators;
}

DeviceGraph::Memory DeviceGraph::MemoryOf(const std::string& tensor) const {
  return MemoryOf(FindByName(graph().tensors, tensor));
}

DeviceGraph::Memory DeviceGraph::MemoryOf(uint32_t tensor) const {
  return {addresses_[tensor], static_cast<uint64_t>(graph().root_bytes[tensor])};
}

void DeviceGraph::SetScalar(const std::string& name, double value) {
  const uint32_t scalar = FindByName(graph().scalars, name);
  scalars_[scalar] = quantum().scalars[scalar] = value;
}

void DeviceGraph::Prepare(uint32_t steps) {
  GraphQuantum& quantum = *new (quantum_.host) GraphQuantum{};
  quantum.fresh = 1;
  quantum.max_steps = steps;
  quantum.last_step = steps;
  quantum.budget_ns = kBudgetNs;
  quantum.operators = quantum_.address + sizeof(GraphQuantum);
  quantum.records = quantum_.address + records_at_;
  quantum.record_bytes = record_bytes();
  std::copy(scalars_.begin(), scalars_.end(), quantum.scalars);
  std::memcpy(quantum_.host + sizeof(GraphQuantum), operators_.data(),
              operators_.size() * sizeof(GraphOperator));
}

uint64_t DeviceGraph::Submit(HostRing& ring) {
  const std::optional<uint64_t> sequence = TrySubmit(ring);
  if (!sequence.has_value()) Fail("the ring is full");
  return *sequence;
}

std::optional<uint64_t> DeviceGraph::TrySubmit(HostRing& ring) {
  const std::optional<uint64_t> sequence = ring.Reserve();
  if (!sequence.has_value()) return std::nullopt;
  quantum().leave = quantum().end = quantum().steps = 0;
  ring.Publish(*sequence, std::bit_cast<TaskDescriptor>(descriptor_));
  return sequence;
}

void DeviceGraph::Check(const TaskCompletion& completion) const {
  const GraphQuantum& ended = quantum();
  if (completion.status == CompletionStatus::kOk &&
      ended.end == static_cast<u32>(GraphEnd::kSteps) && ended.steps == ended.max_steps) {
    return;
  }
  std::string failed;
  if (ended.end == static_cast<u32>(GraphEnd::kFailed) && ended.failed_node < nodes()) {
    failed = absl::StrCat("; node ", ended.failed_node, " (", Operators()[ended.failed_node],
                          ") failed in step ", ended.failed_step);
  }
  Fail(absl::StrCat("a quantum of graph '", graph().name, "' ended with status ",
                    static_cast<int>(completion.status), ", detail ", completion.detail,
                    ", reason ", ended.end, " (GraphEnd), after ", ended.steps, " of ",
                    ended.max_steps, " steps", failed));
}

TaskCompletion DeviceGraph::Run(HostRing& ring) {
  Submit(ring);
  TaskCompletion result{};
  while (ring.Consume([&](uint64_t, const TaskCompletion& c) { result = c; }) == 0) {
  }
  Check(result);
  return result;
}

std::vector<GraphTraceEvent> DeviceGraph::Trace(HostRing& ring) {
  const uint64_t events_of_node = gang() == 0 ? kMaxChunksWithoutGang : gang();
  const uint64_t capacity = events_of_node * nodes() * quantum().max_steps;
  const uint64_t trace = device_.Memory(capacity * sizeof(GraphTraceEvent));
  quantum().trace = trace;
  quantum().trace_capacity = static_cast<u32>(capacity);
  Run(ring);
  const uint64_t count = quantum().trace_events;
  if (count > capacity)
    Fail(absl::StrCat("a trace has ", count, " events, and room for ", capacity));
  quantum().trace = 0;
  quantum().trace_capacity = 0;
  std::vector<GraphTraceEvent> events(count);
  device_.Download(events.data(), trace, count * sizeof(GraphTraceEvent));
  return events;
}

std::vector<std::vector<uint32_t>> DeviceGraph::Predecessors() const {
  std::vector<std::vector<uint32_t>> predecessors(nodes());
  const auto* const records = ImagePart<GraphNode>(image(), image().nodes_at);
  const auto* const successors = ImagePart<u32>(image(), image().successors_at);
  for (uint32_t node = 0; node < nodes(); ++node) {
    const u32* const first = successors + records[node].first_successor;
    for (u32 i = 0; i < records[node].successors; ++i) {
      std::vector<uint32_t>& of_node = predecessors[first[i]];
      if (of_node.empty() || of_node.back() != node) of_node.push_back(node);
    }
  }
  return predecessors;
}

std::vector<NodeCall> DeviceGraph::Calls(uint32_t step, uint64_t record) const {
  std::vector<double> scalars = scalars_;
  for (uint32_t i = 0; i < step && graph().loop.has_value(); ++i) {
    std::vector<double> next = scalars;
    for (const graph::Loop::Update& update : graph().loop->updates) {
      next[update.scalar] = update.factor * scalars[update.scalar] + update.addend;
    }
    scalars = std::move(next);
  }
  const auto* const records = ImagePart<GraphNode>(image(), image().nodes_at);
  std::vector<std::vector<uint32_t>> predecessors = Predecessors();
  std::vector<NodeCall> calls(nodes());
  for (uint32_t node = 0; node < nodes(); ++node) {
    const GraphOperator& op = operators_[records[node].op];
    ArgumentBlock block;
    FillNodeArguments(image(), records[node], scalars.data(), record, &block);
    calls[node].operator_slot = op.slot;
    calls[node].chunks = CountChunksOf(block, op, workers_);
    calls[node].arguments.assign(block.arguments, block.arguments + records[node].arguments);
    calls[node].predecessors = std::move(predecessors[node]);
  }
  return calls;
}

}  // namespace resident::testing
