// Random small graphs for the comparison with the oracle, with and without an explicit order.
//
//   v1::Graph graph = MakeRandomGraph(random);
//   AddExplicitOrder(dependencies, random, &graph);
#ifndef RESIDENT_TESTS_GRAPH_RANDOM_GRAPH_H_
#define RESIDENT_TESTS_GRAPH_RANDOM_GRAPH_H_

#include <random>

#include "resident/v1/graphs.pb.h"
#include "runtime/graph/dataflow.h"

namespace resident::testing {

// Tensors of all kinds, aliases, views of boxes, reversed and transposed views, dynamic dimensions,
// operators that work in place, and rows at a position. Most graphs have no errors of form; the
// values of activations and outputs may be missing.
v1::Graph MakeRandomGraph(std::mt19937_64& random);

// Counters and perhaps blocks that imply the dependencies, which are those of the graph; then, in
// two of three cases, something is changed: a wait is removed or added, a threshold, a counter or a
// block is changed.
void AddExplicitOrder(const graph::Dependencies& dependencies, std::mt19937_64& random,
                      v1::Graph* graph);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_RANDOM_GRAPH_H_
