#include "tests/gpu/bench_small_graphs.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/graph/graph_maker.h"

namespace resident::testing {
namespace {

using Kind = v1::GraphTensor;
using Edges = CudaGraphs::Edges;

// Elements of the vectors.
constexpr int64_t kVector = 16;
// Nodes of a chain whose nodes are measured, and steps of its quanta.
constexpr int kChainNodes = 100;
constexpr uint32_t kChainSteps = 50;
// Graphs that run at once, and the blocks that each of them has.
constexpr int kGraphsAtOnce = 8;
constexpr int64_t kBlocksOfEach = 16;
// Steps of the quanta that send records.
constexpr uint32_t kRecordSteps = 8;

// The tensors that a node of a chain reads and writes: add and gemv do not work in place.
struct Link {
  const char* from;
  const char* to;
};
Link LinkOf(int node) { return node % 2 == 0 ? Link{"x", "between"} : Link{"between", "x"}; }

// `nodes` additions of y to x, one after the other; a single one leaves x as it is. With `record`,
// x is sent after each step.
v1::Graph AddChain(int nodes, bool record) {
  GraphMaker maker;
  maker.graph.set_name(absl::StrCat("chain of ", nodes));
  maker.State("x", {D(kVector)}).Input("y", {D(kVector)}).Activation("between", {D(kVector)});
  if (record) maker.Tensor(Kind::KIND_STREAM, "record", {D(kRecordSteps), D(kVector)});
  for (int i = 0; i < nodes; ++i) maker.Call("add", {LinkOf(i).from, "y", LinkOf(i).to, F(1)});
  if (record) maker.Call("copy", {"x", "record"});
  maker.graph.mutable_loop()->set_max_steps(record ? kRecordSteps : kChainSteps);
  return std::move(maker.graph);
}

// A chain of products of `chunks` chunks: each takes the first elements of the one before it, and
// adds y to them.
v1::Graph WideChain(int64_t chunks) {
  constexpr int64_t kChunk = 8;  // Outputs of gemv in a chunk.
  const int64_t outputs = chunks * kChunk;
  GraphMaker maker;
  maker.graph.set_name(absl::StrCat("chain of ", chunks, " chunks"));
  maker.State("x", {D(1), D(outputs)}).Activation("between", {D(1), D(outputs)});
  maker.Input("w", {D(outputs), D(kVector)}).Input("y", {D(outputs)});
  static_assert(kChainNodes % 2 == 0, "the last node writes x");
  for (int i = 0; i < kChainNodes; ++i) {
    maker.Call("gemv", {View(LinkOf(i).from, {D(1), D(kVector)}), "w", "y", LinkOf(i).to});
  }
  maker.graph.mutable_loop()->set_max_steps(kChainSteps);
  return std::move(maker.graph);
}

class SmallGraphs : public GraphBenchPart {
 public:
  explicit SmallGraphs(GraphBench& bench) : GraphBenchPart(bench) {}

  void EmptyGraphs() {
    for (const int nodes : {1, 10, 100}) {
      watchdog_.Begin("small graphs");
      DeviceGraph graph(harness_, device_, AddChain(nodes, /*record=*/false), kChainSteps);
      const uint64_t x = graph.MemoryOf("x").address;
      const uint64_t last = graph.MemoryOf(LinkOf(nodes - 1).to).address;
      Write(graph.MemoryOf("y").address, std::vector<float>(kVector, 1));
      Clear(graph.MemoryOf("x"));
      const int rounds = Rounds(3000);
      const std::vector<double> ours = MeasureQuanta(graph, 1, rounds);
      // Whole numbers are exact.
      const double sum = nodes == 1 ? 1 : (rounds + rounds / 10 + 1) * nodes;
      const std::string what =
          absl::StrCat("graph of ", nodes, nodes == 1 ? " node" : " nodes in a chain");
      CheckVector(last, sum, what);
      if (nodes == 1) {
        std::vector<double> after_a_pause;
        for (int i = 0; i < Rounds(30); ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          const auto start = Clock::now();
          graph.Run(*ring_);
          after_a_pause.push_back(Micros(Clock::now() - start).count());
        }
        report_.Add(absl::StrCat(what, ", after 30 ms without graphs, p50"),
                    Percentile(after_a_pause, 0.5), "us");
      }
      const std::string figure = absl::StrCat(what, ", submit to completion");
      if (cuda_ == nullptr) {
        report_.AddPercentiles(figure, ours);
        continue;
      }
      std::vector<double> launches;
      bench_.WhileParked([&] {
        cuda_->Clear(x, graph.MemoryOf("x").bytes);
        cuda_->Clear(last, graph.MemoryOf("x").bytes);
        launches = MeasureLaunches({cuda_->Add(graph.Calls(0, 0), Edges::kChain).value()}, rounds);
      });
      CheckVector(last, sum, "CUDA graph of additions");
      for (const auto& [name, p] : {std::pair{"p50", 0.5}, std::pair{"p99", 0.99}}) {
        report_.Add(absl::StrCat(figure, ", ", name), Percentile(ours, p), "us",
                    "CUDA graph, launch + synchronize", Percentile(launches, p));
      }
    }
    FirstRecord();
  }

  void Chains() {
    watchdog_.Begin("chains");
    {
      DeviceGraph graph(harness_, device_, AddChain(kChainNodes, /*record=*/false), kChainSteps);
      Write(graph.MemoryOf("y").address, std::vector<float>(kVector, 1));
      Chain(graph, "a node of a chain on one block");
    }
    // The second is as many as the schedule of a GPU has members at most.
    const auto wide = static_cast<int64_t>(std::max(harness_.info().workers / 2, 3u));
    for (const int64_t chunks : {int64_t{2}, wide}) {
      watchdog_.Begin("chains across blocks");
      DeviceGraph graph(harness_, device_, WideChain(chunks), kChainSteps);
      WriteInputs(graph);
      Chain(graph, absl::StrCat("a node of a chain across ",
                                graph.gang() == 0 ? chunks : graph.gang(), " blocks"));
    }
    AtOnce();
  }

 private:
  void CheckVector(uint64_t address, double expected, const std::string& what) {
    std::vector<float> got(kVector);
    device_.Download(got.data(), address, got.size() * sizeof(float));
    for (const float value : got) {
      if (value != expected) Fail(absl::StrCat(what, ": ", value, " and not ", expected));
    }
  }

  // The inputs of a WideChain: its products leave the first elements of x as they are.
  void WriteInputs(const DeviceGraph& graph) {
    std::vector<float> identity(graph.MemoryOf("w").bytes / sizeof(float));
    for (size_t i = 0; i < identity.size(); ++i) {
      identity[i] = i / kVector % kVector == i % kVector ? 1.0f : 0.0f;
    }
    Write(graph.MemoryOf("w").address, identity);
    Write(graph.MemoryOf("y").address,
          std::vector<float>(graph.MemoryOf("y").bytes / sizeof(float), 1));
  }

  // Graphs with gangs that are a part of the device, which run at the same time.
  void AtOnce() {
    watchdog_.Begin("graphs at once");
    std::vector<std::unique_ptr<DeviceGraph>> graphs;
    for (int i = 0; i < kGraphsAtOnce; ++i) {
      graphs.push_back(
          std::make_unique<DeviceGraph>(harness_, device_, WideChain(kBlocksOfEach), kChainSteps));
      WriteInputs(*graphs.back());
      Clear(graphs.back()->MemoryOf("x"));
    }
    const int rounds = Rounds(100);
    const double alone = Percentile(MeasureQuanta(*graphs[0], kChainSteps, rounds), 0.5);
    Clear(graphs[0]->MemoryOf("x"));
    std::vector<double> together;
    for (int round = 0; round <= rounds; ++round) {
      for (const std::unique_ptr<DeviceGraph>& graph : graphs) graph->Prepare(kChainSteps);
      std::map<uint64_t, const DeviceGraph*> in_flight;
      const auto start = Clock::now();
      for (const std::unique_ptr<DeviceGraph>& graph : graphs) {
        in_flight.emplace(graph->Submit(*ring_), graph.get());
      }
      while (!in_flight.empty()) {
        ring_->Consume(
            [&](uint64_t sequence, const TaskCompletion& completion) {
              const auto found = in_flight.find(sequence);
              found->second->Check(completion);
              in_flight.erase(found);
            },
            kGraphsAtOnce, kGraphsAtOnce);
      }
      if (round > 0) together.push_back(Micros(Clock::now() - start).count());
    }
    for (const std::unique_ptr<DeviceGraph>& graph : graphs) {
      CheckVector(graph->MemoryOf("x").address, (rounds + 1.0) * kChainNodes * kChainSteps,
                  "graphs at once");
    }
    report_.Add(absl::StrCat(kGraphsAtOnce, " chains across ", kBlocksOfEach,
                             " blocks at once, until all have ended, p50"),
                Percentile(together, 0.5), "us", "one of them alone", alone);
  }

  // From the submission of a quantum of one step until its record can be read, beyond the time of
  // the step itself.
  void FirstRecord() {
    constexpr int kNodes = 2;
    DeviceGraph graph(harness_, device_, AddChain(kNodes, /*record=*/true), kRecordSteps);
    Write(graph.MemoryOf("y").address, std::vector<float>(kVector, 1));
    Clear(graph.MemoryOf("x"));
    const int rounds = Rounds(3000);
    const double many = Percentile(MeasureQuanta(graph, kRecordSteps, rounds), 0.5);
    Clear(graph.MemoryOf("x"));
    const double one = Percentile(MeasureQuanta(graph, 1, rounds), 0.5);
    float got = 0;
    std::memcpy(&got, graph.records(0), sizeof(got));
    if (got != kNodes * (rounds + rounds / 10 + 1)) Fail(absl::StrCat("the record has ", got));
    report_.Add("submit to the record of a small graph, beyond its step, p50",
                one - (many - one) / (kRecordSteps - 1), "us");
  }

  // How much of a node's time is that of its operator.
  void AddParts(const std::vector<GraphTraceEvent>& events) {
    std::map<std::pair<uint32_t, uint32_t>, std::pair<uint64_t, uint64_t>> nodes;
    for (const GraphTraceEvent& event : events) {
      const auto [node, is_new] =
          nodes.try_emplace({event.step, event.node}, event.begin_ns, event.end_ns);
      node->second.first = std::min<uint64_t>(node->second.first, event.begin_ns);
      node->second.second = std::max<uint64_t>(node->second.second, event.end_ns);
    }
    double inside = 0;
    double between = 0;
    uint64_t previous_end = 0;
    for (const auto& [node, times] : nodes) {
      inside += static_cast<double>(times.second - times.first);
      // The clocks of two SMs may differ by some nanoseconds.
      if (previous_end != 0) {
        between += static_cast<double>(static_cast<int64_t>(times.first - previous_end));
      }
      previous_end = times.second;
    }
    const auto count = static_cast<double>(std::max<size_t>(nodes.size(), 1));
    report_.Add("  from the begin of its first chunk to the end of its last", inside / count / 1e3,
                "us");
    report_.Add("  from there to the begin of the next node", between / count / 1e3, "us");
  }

  void Chain(DeviceGraph& graph, const std::string& what) {
    constexpr double kNodes = kChainNodes;
    const DeviceGraph::Memory x = graph.MemoryOf("x");
    Clear(x);
    const int rounds = Rounds(100);
    const double ours = Percentile(MeasureQuanta(graph, kChainSteps, rounds), 0.5);
    const double all = (rounds + rounds / 10 + 1) * kNodes * kChainSteps;
    CheckVector(x.address, all, what);
    AddParts(graph.Trace(*ring_));
    std::optional<double> chain, programmatic;
    if (cuda_ != nullptr) {
      bench_.WhileParked([&] {
        const auto measure = [&](Edges edges) -> std::optional<double> {
          const std::optional<size_t> launch = cuda_->Add(graph.Calls(0, 0), edges);
          if (!launch.has_value()) return std::nullopt;
          cuda_->Clear(x.address, x.bytes);
          const double us =
              Percentile(MeasureLaunches(std::vector<size_t>(kChainSteps, *launch), rounds), 0.5);
          float got = 0;
          cuda_->Download(&got, x.address, sizeof(got));
          if (got != all) Fail(absl::StrCat(what, ", as a CUDA graph: ", got, " and not ", all));
          return us;
        };
        chain = measure(Edges::kChain);
        programmatic = measure(Edges::kProgrammatic);
      });
    }
    const double nodes = kNodes * kChainSteps;
    if (!chain.has_value()) report_.Add(what, ours / nodes, "us");
    if (chain.has_value()) report_.Add(what, ours / nodes, "us", "CUDA graph", *chain / nodes);
    if (programmatic.has_value()) {
      report_.Add(what, ours / nodes, "us", "the same, programmatic launch", *programmatic / nodes);
    }
  }
};

}  // namespace

v1::Graph OneNode() { return AddChain(1, /*record=*/false); }

void BenchEmptyGraphs(GraphBench& bench) { SmallGraphs(bench).EmptyGraphs(); }

void BenchChains(GraphBench& bench) { SmallGraphs(bench).Chains(); }

}  // namespace resident::testing
