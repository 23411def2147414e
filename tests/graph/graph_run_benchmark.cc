// Measures what a node of a run costs, with steps that the engine executes itself beside nodes that
// the daemon submits one by one, in the same process and in turns.
//
//   RESIDENTD=$PWD/bazel-bin/server/residentd bazel-bin/tests/graph/graph_run_benchmark
//       [--out=FILE.json] [--rounds=7]
//
// A figure is the median of the rounds: the time of a run that is long enough, minus that of the
// shortest run of the same kind, divided by the nodes that it has more. So the cost of a call, of
// setting tensors and of reading outputs is not included.
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
#include "tests/graph/graph_maker.h"
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
    const auto context = client.Context();
    const auto begin = Clock::now();
    const auto stream = stub->Run(context.get(), request);
    v1::RunGraphResponse response;
    while (stream->Read(&response)) {
    }
    const grpc::Status status = stream->Finish();
    if (!status.ok()) Fail(status.error_message());
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }

  const Daemon daemon;
  const Client client;
  const std::unique_ptr<v1::Graphs::Stub> stub;
};

v1::RunGraphRequest Request(const GraphMaker& maker) {
  v1::RunGraphRequest request;
  *request.mutable_graph() = maker.graph;
  for (const v1::GraphTensor& tensor : maker.graph.tensors()) {
    if (tensor.kind() != Kind::KIND_INPUT) continue;
    v1::GraphBinding& binding = *request.add_bindings();
    binding.set_tensor(tensor.name());
    binding.set_data(std::string(64 * sizeof(float), '\0'));
  }
  return request;
}

// Nodes that wait for each other, of 64 elements.
v1::RunGraphRequest Chain(int nodes) {
  GraphMaker g;
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
  g.Input("x", {64});
  g.Tensor(Kind::KIND_STATE, "all", {D(nodes), D(64)});
  for (int i = 0; i < nodes; ++i) g.Call("relu", {"x", View("all", {D(64)}, 64 * i)});
  return Request(g);
}

// Three nodes in each step, two of which wait for the one before.
v1::RunGraphRequest Loop(uint64_t steps) {
  GraphMaker g;
  g.Scalar("k", 0, 1e9, v1::DTYPE_F32);
  g.graph.mutable_scalars(0)->set_initial(0);
  g.Tensor(Kind::KIND_STATE, "sum", {D(64)}).Activation("a", {64}).Activation("b", {64});
  g.Call("fill", {"a", S("k")}).Call("add", {"sum", "a", "b"}).Call("copy", {"b", "sum"});
  v1::GraphLoop& loop = *g.graph.mutable_loop();
  loop.set_max_steps(steps);
  loop.add_updates()->set_scalar("k");
  loop.mutable_updates(0)->set_addend(1);
  return Request(g);
}

double MicrosOfNode(const Target& target, const v1::RunGraphRequest& request, double nodes,
                    const v1::RunGraphRequest& shortest) {
  return (target.Measure(request) - target.Measure(shortest)) / nodes;
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  using namespace resident::testing;
  absl::ParseCommandLine(argc, argv);
  const Target in_engine(true);
  const Target by_node(false);
  struct Case {
    std::string what;
    resident::v1::RunGraphRequest request;
    double nodes;
    resident::v1::RunGraphRequest shortest;
  };
  const std::vector<Case> cases = {
      {"chain of 1,000 nodes, a node", Chain(1001), 1000, Chain(1)},
      {"1,000 independent nodes, a node", Independent(1001), 1000, Independent(1)},
      {"loop of 1,000 steps of 3 nodes, a node", Loop(1001), 3000, Loop(1)},
      {"loop of 100,000 steps of 3 nodes, a node", Loop(100'001), 300'000, Loop(1)},
  };
  BenchReport report;
  for (const Case& each : cases) {
    const bool long_case = each.nodes > 10'000;
    std::vector<double> ours, theirs;
    for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
      ours.push_back(MicrosOfNode(in_engine, each.request, each.nodes, each.shortest));
      if (long_case) continue;  // Node by node it takes seconds, and is the same for each step.
      theirs.push_back(MicrosOfNode(by_node, each.request, each.nodes, each.shortest));
    }
    if (long_case) {
      report.Add(each.what, Percentile(ours, 0.5), "us");
    } else {
      report.Add(each.what, Percentile(ours, 0.5), "us", "node by node", Percentile(theirs, 0.5));
    }
  }
  std::vector<double> whole;
  std::vector<double> whole_by_node;
  for (int round = 0; round < 20 * absl::GetFlag(FLAGS_rounds); ++round) {
    whole.push_back(in_engine.Measure(Chain(1)));
    whole_by_node.push_back(by_node.Measure(Chain(1)));
  }
  report.Add("run of one node, whole call, p50", Percentile(whole, 0.5), "us", "node by node",
             Percentile(whole_by_node, 0.5));
  report.Write(absl::GetFlag(FLAGS_out), {{"engine", "cpu"}});
  return 0;
}
