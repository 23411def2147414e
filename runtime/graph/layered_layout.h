// A layered picture of nodes and edges: positions of the nodes, and curves for the edges, all of
// which lead downwards.
//
//   1. Each node gets the first layer after the last one from which an edge comes (longest path)
//      that is not full, and moves down if that shortens its edges.
//   2. The edges of one node with one group share a route: a chain of bends, one in each layer
//      between, from which the edges branch off.
//   3. The order in each layer is improved by barycentres and by exchanges of neighbours, and the
//      order with the fewest crossings is kept.
//   4. Each layer is placed so that the sum of the squared horizontal distances to the neighbouring
//      layer is the smallest that keeps the order and the gaps.
//
// The result depends only on the arguments.
//
// Thread safety: pure functions.
//
//   std::optional<Layout> layout = LayOut(widths, edges, options);
//   for (const Layout::Segment& segment : layout->segments) ...
#ifndef RESIDENT_RUNTIME_GRAPH_LAYERED_LAYOUT_H_
#define RESIDENT_RUNTIME_GRAPH_LAYERED_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace resident::graph {

struct LayoutEdge {
  // REQUIRES: from < to.
  uint32_t from = 0;
  uint32_t to = 0;
  // Edges of a node share a route only within a group.
  uint32_t group = 0;
};

// In the picture's units.
struct LayoutOptions {
  double node_height = 60;
  // Between layers, between nodes of a layer, and beside a bend.
  double layer_gap = 50;
  double node_gap = 24;
  double bend_gap = 12;
};

struct Layout {
  struct Point {
    double x = 0;
    double y = 0;
  };
  // From a node or a bend to one in the next layer, or straight down through a layer.
  struct Segment {
    Point from;
    Point to;
    uint32_t group = 0;
    // Whether it ends at a node.
    bool arrow = false;
  };

  double width = 0;
  double height = 0;
  // By node: the middle of its upper edge.
  std::vector<Point> nodes;
  std::vector<Segment> segments;
};

// Nodes and bends of one layout.
inline constexpr uint32_t kMaxLayoutItems = 50'000;

// `widths`: of the nodes. Nullopt: more than kMaxLayoutItems.
std::optional<Layout> LayOut(absl::Span<const double> widths, absl::Span<const LayoutEdge> edges,
                             const LayoutOptions& options);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_LAYERED_LAYOUT_H_
