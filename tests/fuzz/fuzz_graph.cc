// Fuzz target: a graph as bytes, as JSON, or a random graph with changed bytes. The check must end,
// stay within its limits, and accept nothing whose views lie outside of their memory.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "google/protobuf/util/json_util.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check.h"
#include "runtime/graph/values.h"
#include "server/rpc/graph_messages.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/random_graph.h"

namespace {

using resident::graph::Argument;

void Check(const resident::v1::Graph& message) {
  static const auto* const catalog = new resident::testing::BuiltinCatalog;
  resident::graph::Findings findings;
  const resident::graph::Graph graph = resident::ReadGraph(message, *catalog, &findings);
  const resident::graph::GraphCheck check = resident::graph::CheckGraph(graph, &findings);
  if (check.accepted != (findings.errors() == 0)) std::abort();
  for (const resident::graph::Finding& finding : findings.list()) {
    if (finding.message.find("Fix: ") == std::string::npos) std::abort();
  }
  if (!check.accepted) return;
  for (const Argument& argument : graph.arguments) {
    if (argument.kind != Argument::Kind::kTensor) continue;
    const auto hull =
        resident::graph::FindHull(ExtentsOf(graph, argument.view), argument.view.offset,
                                  resident::SizeOf(argument.view.dtype));
    const uint32_t root = graph.tensors[argument.tensor].root;
    if (!hull.has_value() || hull->low < 0 || hull->high > graph.root_bytes[root]) std::abort();
  }
  resident::v1::GraphReport report;
  resident::FillGraphReport(graph, check, findings, /*dependencies=*/true, &report);
  for (const auto& dependency : report.dependencies()) {
    if (dependency.after() >= dependency.node()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  resident::v1::Graph message;
  if (data[0] % 3 == 0) {
    if (!message.ParseFromString(text)) return 0;
  } else if (data[0] % 3 == 1) {
    // The first bytes choose the graph; each further three replace a byte of it.
    std::mt19937_64 random(text.empty() ? 0 : static_cast<unsigned char>(text[0]));
    std::string bytes = resident::testing::MakeRandomGraph(random).SerializeAsString();
    for (size_t i = 1; i + 2 < text.size(); i += 3) {
      const size_t at = static_cast<unsigned char>(text[i]) * size_t{256} +
                        static_cast<unsigned char>(text[i + 1]);
      bytes[at % bytes.size()] = text[i + 2];
    }
    if (!message.ParseFromString(bytes)) return 0;
  } else if (!google::protobuf::util::JsonStringToMessage(text, &message).ok()) {
    return 0;
  }
  Check(message);
  return 0;
}
