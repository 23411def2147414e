// Measures the check of task graphs.
//
//   bazel-bin/tests/graph/graph_benchmark [--out=FILE.json]
//
// Measures processor time, which other programs on the machine hardly change, and the largest
// memory of the process so far. "Names" is the resolution of names, "check" everything else. Exit
// status 1 if a graph is refused. The million nodes are 32,768 layers of 32 products in tiles, each
// of which reads all of the layer before.
#include <sys/resource.h>
#include <time.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "runtime/graph/check.h"
#include "server/graphs/graph_messages.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/graph_maker.h"
#include "tests/support/bench_report.h"

ABSL_FLAG(std::string, out, "", "file for the figures, as JSON");

namespace resident::testing {
namespace {

// Processor time of this process.
double Now() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double SecondsSince(double begin) { return Now() - begin; }

double PeakMib() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void ExpectAccepted(bool accepted, const graph::Findings& findings) {
  if (accepted) return;
  Fail("refused: " + (findings.list().empty() ? "?" : findings.list()[0].message));
}

// A chain of `count` element-wise calls.
GraphMaker MakeChain(int count) {
  GraphMaker g;
  g.Input("x", {64}).Output("y", {64}).Activation("a", {64}).Activation("b", {64});
  for (int i = 0; i < count; ++i) {
    const char* const from = i == 0 ? "x" : i % 2 == 0 ? "a" : "b";
    g.Call("relu", {from, i + 1 == count ? "y" : i % 2 == 0 ? "b" : "a"});
  }
  return g;
}

void MeasureSmall(const graph::OperatorCatalog& catalog, const char* name, const GraphMaker& g,
                  BenchReport& report) {
  uint64_t count = 0;
  const double begin = Now();
  while (SecondsSince(begin) < 2) {
    graph::Findings findings;
    const graph::Graph graph = ReadGraph(g.graph, catalog, &findings);
    ExpectAccepted(CheckGraph(graph, &findings).accepted, findings);
    ++count;
  }
  const double seconds = SecondsSince(begin);
  report.Add(name, 1e6 * seconds / static_cast<double>(count), "us");
}

void MeasureMillion(const graph::OperatorCatalog& catalog, bool counters, BenchReport& report) {
  constexpr int kLayers = 32768;
  constexpr int kTiles = 32;
  GraphMaker g;
  for (int l = 0; l <= kLayers; ++l) {
    const std::string name = "a" + std::to_string(l);
    const std::vector<Dim> width = {D(1), D(kTiles)};
    if (l == 0) {
      g.Input(name, width);
    } else if (l == kLayers) {
      g.Output(name, width);
    } else {
      g.Activation(name, width);
    }
  }
  g.Weight("w", {D(kTiles), D(kTiles)});
  if (counters) g.Counters(kLayers - 1);
  for (int l = 0; l < kLayers; ++l) {
    for (int t = 0; t < kTiles; ++t) {
      g.Call("gemv", {"a" + std::to_string(l), View("w", {D(1), D(kTiles)}, t * kTiles), None(),
                      View("a" + std::to_string(l + 1), {D(1), D(1)}, t)});
      // Names of a million nodes would be most of what is measured.
      g.graph.mutable_nodes(g.graph.nodes_size() - 1)->clear_name();
      if (counters && l > 0) g.Wait(static_cast<uint32_t>(l - 1), kTiles);
      if (counters && l + 1 < kLayers) g.Signal(static_cast<uint32_t>(l));
    }
  }
  const double begin = Now();
  graph::Findings findings;
  const graph::Graph graph = ReadGraph(g.graph, catalog, &findings);
  const double form = SecondsSince(begin);
  const double check_begin = Now();
  const graph::GraphCheck check = CheckGraph(graph, &findings);
  const double seconds = SecondsSince(check_begin);
  ExpectAccepted(check.accepted, findings);
  const std::string what = std::to_string(graph.nodes.size()) + " nodes, " +
                           (counters ? "explicit" : "derived") + " order: ";
  const size_t dependencies = check.order.has_value() ? check.order->size() : 0;
  report.Add(what + "names", form, "s");
  report.Add(what + "check", seconds, "s");
  report.Add(what + "dependencies", static_cast<double>(dependencies), "dependencies");
  report.Add(what + "largest memory", PeakMib(), "MiB");
}

void Main() {
  BenchReport report;
  const BuiltinCatalog catalog;
  GraphMaker toy;
  toy.Input("x", {4}).Input("y", {4}).Activation("a", {4}).Output("z", {4});
  toy.Call("add", {"x", "y", "a"}).Call("relu", {"a", "z"});
  MeasureSmall(catalog, "toy graph (2 nodes), from its message", toy, report);
  MeasureSmall(catalog, "chain of 8,000 nodes, from its message", MakeChain(8000), report);
  report.Add("largest memory before the large graphs", PeakMib(), "MiB");
  MeasureMillion(catalog, /*counters=*/false, report);
  MeasureMillion(catalog, /*counters=*/true, report);
  report.Write(absl::GetFlag(FLAGS_out), nlohmann::ordered_json::object());
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  resident::testing::Main();
}
