// Measures what a node of a run costs, with steps that the engine executes itself beside nodes that
// the daemon submits one by one, in the same process and in turns.
//
//   RESIDENTD=$PWD/bazel-bin/server/residentd bazel-bin/tests/graph/graph_run_benchmark
//       [--out=FILE.json] [--rounds=7]
//
// "A node" is the median of the rounds of: the time of a run of several steps, minus that of a run
// of one step of the same graph, divided by the nodes that it executes more. So the cost of a call,
// of checking the graph, of setting tensors and of reading outputs is not included. "Whole call" is
// the median of runs of one step, with all of that.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/client.h"
#include "tests/daemon/daemon.h"
#include "tests/graph/graph_runs.h"
#include "tests/support/bench_report.h"

ABSL_FLAG(std::string, out, "", "file for the figures, as JSON");
ABSL_FLAG(int, rounds, 7, "measurements of each figure");

namespace resident::testing {
namespace {

using Kind = v1::GraphTensor;
using Clock = std::chrono::steady_clock;

// A daemon, and its client.
struct Target {
  explicit Target(bool in_engine)
      : daemon({absl::StrCat("--graphs_in_engine=", in_engine ? "true" : "false")}),
        client(daemon),
        stub(v1::Graphs::NewStub(daemon.Connect())) {}

  // Microseconds of a run.
  double Measure(const v1::RunGraphRequest& request) const {
    const auto begin = Clock::now();
    const GraphOutcome outcome = RunGraph(*stub, client, request);
    if (!outcome.status.ok()) Fail(outcome.status.error_message());
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }

  const Daemon daemon;
  const Client client;
  const std::unique_ptr<v1::Graphs::Stub> stub;
};

v1::RunGraphRequest Request(const GraphMaker& maker) {
  v1::RunGraphRequest request = RunOf(maker);
  for (const v1::GraphTensor& tensor : maker.graph.tensors()) {
    if (tensor.kind() != Kind::KIND_INPUT) continue;
    Bind(request, tensor.name()).set_data(std::string(64 * sizeof(float), '\0'));
  }
  return request;
}

void Repeat(GraphMaker& g) { g.graph.mutable_loop()->set_max_steps(1 << 16); }

// Nodes that wait for each other, of 64 elements.
v1::RunGraphRequest Chain(int nodes) {
  GraphMaker g;
  Repeat(g);
  g.Input("x", {64}).Output("y", {64}).Activation("a", {64}).Activation("b", {64});
  for (int i = 0; i < nodes; ++i) {
    const char* const from = i == 0 ? "x" : i % 2 == 0 ? "a" : "b";
    g.Call("relu", {from, i + 1 == nodes ? "y" : i % 2 == 0 ? "b" : "a"});
  }
  return Request(g);
}

// Nodes that wait for nothing.
v1::RunGraphRequest Independent(int nodes) {
  GraphMaker g;
  Repeat(g);
  g.Input("x", {64});
  g.Tensor(Kind::KIND_STATE, "all", {D(nodes), D(64)});
  for (int i = 0; i < nodes; ++i) g.Call("relu", {"x", View("all", {D(64)}, 64 * i)});
  return Request(g);
}

// Three nodes in each step, two of which wait for the one before.
v1::RunGraphRequest Loop() {
  GraphMaker g;
  g.Scalar("k", 0, 1e9, v1::DTYPE_F32);
  g.graph.mutable_scalars(0)->set_initial(0);
  g.Tensor(Kind::KIND_STATE, "sum", {D(64)}).Activation("a", {64}).Activation("b", {64});
  g.Call("fill", {"a", S("k")}).Call("add", {"sum", "a", "b"}).Call("copy", {"b", "sum"});
  v1::GraphLoop& loop = *g.graph.mutable_loop();
  loop.set_max_steps(1 << 16);
  loop.add_updates()->set_scalar("k");
  loop.mutable_updates(0)->set_addend(1);
  return Request(g);
}

constexpr uint64_t kMoreInEngine = 50;

// Microseconds of a run of so many steps.
double MeasureSteps(const Target& target, v1::RunGraphRequest request, uint64_t steps) {
  request.set_max_steps(steps);
  return target.Measure(request);
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  using namespace resident::testing;
  absl::ParseCommandLine(argc, argv);
  const int rounds = absl::GetFlag(FLAGS_rounds);
  const Target in_engine(true);
  const Target by_node(false);
  struct Case {
    std::string what;
    resident::v1::RunGraphRequest request;
    uint64_t nodes;  // Of a step.
    uint64_t steps;
  };
  const std::vector<Case> cases = {
      {"chain of 1,000 nodes", Chain(1000), 1000, 20},
      {"1,000 independent nodes", Independent(1000), 1000, 20},
      {"loop of 1,000 steps of 3 nodes", Loop(), 3, 1000},
  };
  BenchReport report;
  for (const Case& each : cases) {
    std::vector<double> node[2];
    std::vector<double> call[2];
    for (int round = 0; round < rounds; ++round) {
      for (const bool ours : {true, false}) {
        const Target& target = ours ? in_engine : by_node;
        const double one = MeasureSteps(target, each.request, 1);
        // Enough steps that they take longer than the rest.
        const uint64_t steps = ours ? kMoreInEngine * each.steps : each.steps;
        const double more = MeasureSteps(target, each.request, 1 + steps);
        call[ours].push_back(one);
        node[ours].push_back((more - one) / static_cast<double>(steps * each.nodes));
      }
    }
    report.Add(each.what + ", a node", Percentile(node[true], 0.5), "us", "node by node",
               Percentile(node[false], 0.5));
    report.Add(each.what + ", whole call of a step", Percentile(call[true], 0.5), "us",
               "node by node", Percentile(call[false], 0.5));
  }
  report.Write(absl::GetFlag(FLAGS_out), {{"engine", "cpu"}});
  return 0;
}
