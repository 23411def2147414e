// Fuzz target: a graph as bytes, as JSON as residentctl reads it, or a random graph with changed
// bytes. The check must end, stay within its limits, and accept nothing whose views lie outside of
// their memory. An accepted graph is drawn, and its pictures are well-formed.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "client/cli/graph_file.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check.h"
#include "runtime/graph/drawing.h"
#include "runtime/graph/values.h"
#include "server/rpc/graph_messages.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/random_graph.h"

namespace {

using resident::graph::Argument;

// Whether each tag and quote of an SVG is closed, and nothing else has their characters.
bool IsWellFormed(const std::string& svg) {
  bool tag = false, quoted = false;
  int depth = 0;
  for (size_t i = 0; i < svg.size(); ++i) {
    const char c = svg[i];
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') return false;
    if (c == '<') {
      if (tag) return false;
      tag = true;
      depth += svg[i + 1] == '/' ? -1 : 1;
    } else if (c == '"' && tag) {
      quoted = !quoted;
    } else if (c == '>') {
      if (!tag || quoted) return false;
      tag = false;
      if (svg[i - 1] == '/') --depth;
    }
  }
  return !tag && depth == 0;
}

// Whether a text in the language of Graphviz has as many opening as closing quotes on each line.
bool HasClosedQuotes(const std::string& dot) {
  bool quoted = false;
  for (size_t i = 0; i < dot.size(); ++i) {
    if (quoted && dot[i] == '\\') {
      ++i;
    } else if (dot[i] == '"') {
      quoted = !quoted;
    } else if (dot[i] == '\n' && quoted) {
      return false;
    }
  }
  return !quoted;
}

void Draw(const resident::graph::Graph& graph, const resident::graph::Dependencies& order) {
  using resident::graph::DrawingFormat;
  const auto svg = DrawGraph(graph, order, DrawingFormat::kSvg);
  if (svg.ok() && !IsWellFormed(*svg)) std::abort();
  const auto dot = DrawGraph(graph, order, DrawingFormat::kDot);
  if (dot.ok() && !HasClosedQuotes(*dot)) std::abort();
}

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
  Draw(graph, *check.order);
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
  } else {
    const auto parsed = resident::cli::ParseGraph("input", text);
    if (!parsed.ok()) return 0;
    message = *parsed;
  }
  Check(message);
  return 0;
}
