
#include "runtime/graph/drawing.h"

#include <cassert>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/errors.h"
#include "runtime/graph/limits.h"

namespace resident::graph {
namespace {

// Characters of a line in a box of DOT.
constexpr size_t kMaxDotLine = 120;

const char* FormatName(DrawingFormat format) {
  return format == DrawingFormat::kDot ? "DOT" : "SVG";
}

std::string DrawDot(const Graph& graph, const Dependencies& order) {
  std::string dot = absl::StrCat("digraph ", QuoteDot(Printable(graph.name)),
                                 " {\n  rankdir=TB;\n  node [shape=box, fontname=monospace];\n");
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    absl::StrAppend(&dot, "  n", n, " [label=",
                    QuoteDot(absl::StrCat(Shorten(NodeTitle(graph, n), kMaxDotLine), "\n",
                                          Shorten(CallText(graph, graph.nodes[n]), kMaxDotLine))),
                    "];\n");
  }
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    for (const Dependency& dependency : order.Of(n)) {
      absl::StrAppend(&dot, "  n", dependency.after, " -> n", n,
                      dependency.kind == DependencyKind::kReadAfterWrite ? "" : " [style=dashed]",
                      ";\n");
    }
  }
  return dot + "}\n";
}

}  // namespace

absl::Status CheckDrawable(uint64_t nodes, DrawingFormat format) {
  const uint64_t limit = format == DrawingFormat::kDot ? kMaxDotNodes : kMaxSvgNodes;
  if (nodes <= limit) return absl::OkStatus();
  return errors::TooLargeToDraw("nodes", nodes, limit, FormatName(format));
}

absl::StatusOr<std::string> DrawGraph(const Graph& graph, const Dependencies& order,
                                      DrawingFormat format) {
  assert(order.nodes() == graph.nodes.size());
  RETURN_IF_ERROR(CheckDrawable(graph.nodes.size(), format));
  const uint64_t limit = format == DrawingFormat::kDot ? kMaxDotDependencies : kMaxSvgDependencies;
  if (order.size() > limit) {
    return errors::TooLargeToDraw("dependencies", order.size(), limit, FormatName(format));
  }
  if (format == DrawingFormat::kDot) return DrawDot(graph, order);
  return DrawSvg(graph, order);
}

}  // namespace resident::graph
