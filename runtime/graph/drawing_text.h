// The texts of a picture of a graph.
//
// All functions return well-formed UTF-8 on one line, without control characters and without
// characters that change the direction of text.
//
// Thread safety: pure functions.
//
//   EscapeXml(Shorten(NodeTitle(graph, 7), 28));
#ifndef RESIDENT_RUNTIME_GRAPH_DRAWING_TEXT_H_
#define RESIDENT_RUNTIME_GRAPH_DRAWING_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/graph/graph.h"

namespace resident::graph {

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

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_DRAWING_TEXT_H_
