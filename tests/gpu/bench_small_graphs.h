// Part of bench_graphs: chains of small nodes, from the submission of a graph to its completion and
// to its record, and the time of a node on one block and across blocks.
#ifndef RESIDENT_TESTS_GPU_BENCH_SMALL_GRAPHS_H_
#define RESIDENT_TESTS_GPU_BENCH_SMALL_GRAPHS_H_

#include "tests/gpu/graph_bench.h"

namespace resident::testing {

// A graph of one node, with an input y.
v1::Graph OneNode();

// Parts `empty` and `chain`.
void BenchEmptyGraphs(GraphBench& bench);
void BenchChains(GraphBench& bench);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_BENCH_SMALL_GRAPHS_H_
