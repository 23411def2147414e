// The SVG of drawing.h.
//
// Colours are readable on a light and on a dark page: boxes have a background of their own, and
// lines and captions a medium brightness. The picture has no background and contains no script.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_GRAPH_DRAWING_SVG_H_
#define RESIDENT_RUNTIME_GRAPH_DRAWING_SVG_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/graph/dataflow.h"
#include "runtime/graph/graph.h"

namespace resident::graph {

// INVALID_ARGUMENT: dependencies go past more layers than a picture may have bends. REQUIRES: those
// of DrawGraph, and its limits are kept.
absl::StatusOr<std::string> DrawSvg(const Graph& graph, const Dependencies& order);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_DRAWING_SVG_H_
