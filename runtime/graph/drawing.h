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

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/graph/dataflow.h"
#include "runtime/graph/graph.h"

namespace resident::graph {

// The values are those of resident.v1.RenderGraphRequest.Format.
enum class DrawingFormat : uint8_t { kDot = 1, kSvg = 2 };

// Whether a graph with so many nodes can be drawn. INVALID_ARGUMENT: more than the format's limit
// (runtime/graph/limits.h).
absl::Status CheckDrawable(uint64_t nodes, DrawingFormat format);

// INVALID_ARGUMENT: more nodes or dependencies, or longer dependencies, than a picture may have.
// REQUIRES: the graph was accepted, and `order` is its derived order.
absl::StatusOr<std::string> DrawGraph(const Graph& graph, const Dependencies& order,
                                      DrawingFormat format);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_DRAWING_H_
