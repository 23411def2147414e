// Compares task graphs that the resident kernel executes with CUDA graphs of the same operators, in
// one run.
//
// Our figures are measured with one host thread that uses the ring, without gRPC and without the
// queue. For the baselines the kernel is parked: a CUDA graph of one launch for each node, with the
// same operators, arguments and chunks, is measured in the same process and on the same memory. The
// decode is that of the Llama-3.2-1B shape with random weights, of bfloat16 and of 8 and 4 bits,
// for one text and for several; its nodes are those of `residentctl graph llama`. Beside it are
// kernels that are written for this model alone (fused_step.h): launches of our operators read
// descriptions of their arguments, which is not what somebody would launch who has one model only.
#ifndef RESIDENT_TESTS_GPU_BENCH_GRAPHS_H_
#define RESIDENT_TESTS_GPU_BENCH_GRAPHS_H_

#include <string>

namespace resident::testing {

struct GraphBenchOptions {
  // File for the figures, as JSON; empty: none.
  std::string out;
  // Parts to run: empty, chain, decode, quantized, texts, beside; empty: all.
  std::string only;
  // Fewer rounds.
  bool quick = false;
  // The CPU engine and a small model, without baselines, for a trial.
  bool cpu = false;
};

// Prints a table of our figure, the baseline's and their ratio, then where the time of a step goes,
// and writes all of it. Ends the program, with status 1 if a result is wrong or a part takes longer
// than 100 seconds, never because of speed.
[[noreturn]] void BenchGraphs(const GraphBenchOptions& options);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_BENCH_GRAPHS_H_
