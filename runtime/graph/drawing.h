// Pictures of graphs: the nodes and the order that is derived from the memory that they access.
//
// DOT is the language of Graphviz, and lists every dependency. SVG is drawn here
// (runtime/graph/layered_layout.h): a box for each node with its name, its operator, what it writes
// and what it reads from outside, coloured by the operator's family; lines by the kind of the
// dependency. A dependency because memory is written again is left out of the SVG if it follows
// from others. The same graph has the same picture.
//
// Names are shortened, escaped, and characters that change the direction of text or control a
// terminal are replaced, so that a picture of a hostile graph is well-formed.
//
// Thread safety: pure functions.
//
//   ASSIGN_OR_RETURN(std::string svg, DrawGraph(graph, *check.order, DrawingFormat::kSvg));
#ifndef RESIDENT_RUNTIME_GRAPH_DRAWING_H_
#define RESIDENT_RUNTIME_GRAPH_DRAWING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/graph/dataflow.h"
#include "runtime/graph/graph.h"

namespace resident::graph {

// The texts of a picture of a graph.
//
// All functions return well-formed UTF-8 on one line, without control characters and without
// characters that change the direction of text.
//
//   EscapeXml(Shorten(NodeTitle(graph, 7), 28));

// Replaces what a picture cannot show.
std::string Printable(std::string_view text);
// At most `characters`, of which the last one is then an ellipsis.
std::string Shorten(const std::string& text, size_t characters);
// Its width in a monospaced font, in characters: those of East Asia count twice.
size_t CountColumns(std::string_view text);

// The node's name, or "#7".
std::string NodeTitle(const Graph& graph, uint32_t node);
// "attention", "attention version 3" if the graph demands the version.
std::string OperatorText(const Graph& graph, const Node& node);
// What the node writes: "f32[2, 64]", or "f32[2, 64] in output y"; "..." for each other result.
std::string ResultText(const Graph& graph, const Node& node);
// What it reads that no node of the step has to write: "reads weight w, state cache"; empty: none.
std::string OutsideText(const Graph& graph, const Node& node);
// "attention(q, cache[1, 4, pos, 64], kv_len = pos + 1)".
std::string CallText(const Graph& graph, const Node& node);
// "up to 128 steps; after each, pos = pos + 1; ends when token is 2 or 5". Empty: no loop.
std::string LoopText(const Graph& graph);

// For text and attributes of XML.
std::string EscapeXml(std::string_view text);
// A text between double quotes in the language of Graphviz; "\n" is a new line.
std::string QuoteDot(std::string_view text);

// The values are those of resident.v1.RenderGraphRequest.Format.
enum class DrawingFormat : uint8_t { kDot = 1, kSvg = 2 };

// Whether a graph with so many nodes can be drawn. INVALID_ARGUMENT: more than the format's limit
// (runtime/graph/limits.h).
absl::Status CheckDrawable(uint64_t nodes, DrawingFormat format);

// INVALID_ARGUMENT: more nodes or dependencies, or longer dependencies, than a picture may have.
// REQUIRES: the graph was accepted, and `order` is its derived order.
absl::StatusOr<std::string> DrawGraph(const Graph& graph, const Dependencies& order,
                                      DrawingFormat format);

// The SVG of a graph.
//
// Colours are readable on a light and on a dark page: boxes have a background of their own, and
// lines and captions a medium brightness. The picture has no background and contains no script.

// INVALID_ARGUMENT: dependencies go past more layers than a picture may have bends. REQUIRES: those
// of DrawGraph, and its limits are kept.
absl::StatusOr<std::string> DrawSvg(const Graph& graph, const Dependencies& order);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_DRAWING_H_
