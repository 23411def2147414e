// Measures a run of a loaded graph beside the same run with the graph sent.
//
//   bazel-bin/tests/graph/loaded_benchmark [--nodes=2000] [--rounds=40] [--out=FILE.json]
//
// The graph is a chain of small element-wise calls, and one of as many independent calls. Each
// round runs both ways in alternating order, on one daemon; the figures are medians. Exit status 1
// if a run fails.
#include <chrono>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "tests/graph/loaded_graphs.h"
#include "tests/support/bench_report.h"

ABSL_FLAG(int, nodes, 2000, "nodes of the graphs");
ABSL_FLAG(int, rounds, 40, "runs of each kind");
ABSL_FLAG(std::string, out, "", "file for the figures, as JSON");

namespace resident::testing {
namespace {

double MeasureMs(const GraphCalls& calls, const v1::RunGraphRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  const GraphOutcome outcome = calls.Run(request);
  if (!outcome.status.ok()) Fail(outcome.status.error_message());
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

void Compare(const GraphCalls& calls, const std::string& name, const GraphMaker& maker,
             BenchReport& report) {
  v1::RunGraphRequest sent;
  *sent.mutable_graph() = maker.graph;
  v1::GraphBinding& binding = *sent.add_bindings();
  binding.set_tensor("x");
  binding.set_data(std::string(64 * sizeof(float), '\0'));
  v1::RunGraphRequest loaded = sent;
  loaded.set_graph_id(calls.MustLoad(maker));
  std::vector<double> sent_ms, loaded_ms, checked_ms;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    if (round % 2 == 0) sent_ms.push_back(MeasureMs(calls, sent));
    loaded_ms.push_back(MeasureMs(calls, loaded));
    if (round % 2 == 1) sent_ms.push_back(MeasureMs(calls, sent));
    v1::LoadGraphResponse response;
    const auto begin = std::chrono::steady_clock::now();
    if (!calls.Load(maker.graph, &response).ok()) Fail("load failed");
    checked_ms.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  report.Add(absl::StrCat(name, ": run of the loaded graph"), Percentile(loaded_ms, 0.5), "ms",
             "run with the graph sent", Percentile(sent_ms, 0.5));
  report.Add(absl::StrCat(name, ": load again (send and check)"), Percentile(checked_ms, 0.5),
             "ms");
  report.Add(absl::StrCat(name, ": size of the message"),
             static_cast<double>(maker.graph.ByteSizeLong()) / 1024, "KiB");
}

void Main() {
  BenchReport report;
  const Daemon daemon;
  const Client client(daemon);
  const GraphCalls calls(daemon, client);
  const int nodes = absl::GetFlag(FLAGS_nodes);
  GraphMaker chain;
  chain.Input("x", {64}).Output("y", {64}).Activation("a", {64}).Activation("b", {64});
  for (int i = 0; i < nodes; ++i) {
    const char* const from = i == 0 ? "x" : i % 2 == 0 ? "a" : "b";
    chain.Call("relu", {from, i + 1 == nodes ? "y" : i % 2 == 0 ? "b" : "a"});
  }
  Compare(calls, absl::StrCat("chain of ", nodes), chain, report);
  GraphMaker wide;
  wide.Input("x", {64}).Output("y", {nodes, 64});
  for (int i = 0; i < nodes; ++i) wide.Call("relu", {"x", View("y", {D(64)}, 64 * i)});
  Compare(calls, absl::StrCat(nodes, " independent"), wide, report);
  report.Write(absl::GetFlag(FLAGS_out), nlohmann::ordered_json::object());
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  resident::testing::Main();
}
