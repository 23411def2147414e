// Part of bench_graphs: a graph that decodes, with weights of several types, for one text and for
// several, and small tasks beside it.
#ifndef RESIDENT_TESTS_GPU_BENCH_DECODE_H_
#define RESIDENT_TESTS_GPU_BENCH_DECODE_H_

#include <string>

#include "tests/gpu/graph_bench.h"

namespace resident::testing {

// Those of the parts `decode`, `quantized`, `texts` and `beside` that are selected. Returns what
// was wrong; empty: nothing.
std::string BenchDecode(GraphBench& bench);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_BENCH_DECODE_H_
