// Random graphs that can run, with their inputs: tensors of several dtypes that share memory, views
// of boxes and transposed views, memory that is written again and again, dimensions and rows that
// depend on scalars, loops with a stop token, and streams.
//
// Values are whole numbers of at most 64 between the steps of a computation, so that most results
// are exact whatever the order of the additions is; a tenth of the nodes computes softmax,
// attention and the like. One operator after another with random tensors would make numbers grow
// without limit: sums and products go to tensors of their own, and are then limited by `clamp`.
//
// Thread safety: pure functions.
//
//   const v1::RunGraphRequest request = MakeRunnableGraph(random, /*nodes=*/200);
#ifndef RESIDENT_TESTS_GRAPH_RUNNABLE_GRAPH_H_
#define RESIDENT_TESTS_GRAPH_RUNNABLE_GRAPH_H_

#include <random>

#include "resident/v1/graphs.pb.h"

namespace resident::testing {

// A graph of about `nodes` nodes and 20 more.
v1::RunGraphRequest MakeRunnableGraph(std::mt19937_64& random, int nodes);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_RUNNABLE_GRAPH_H_
