// CudaGraphs: the baseline of task graphs: the same operators with the same arguments as CUDA
// graphs, in which each node is one launch (kernels/resident/operator_launch.h).
//
// It uses the context and the memory of the engine. While a kernel is resident, nothing of it may
// be called: loading waits for that kernel, and so does each launch, because the kernel occupies
// the GPU. An error ends the benchmark.
//
// Thread safety: the thread that has made it.
//
//   CudaGraphs cuda(/*ordinal=*/0);
//   const size_t step = cuda.Add(graph.Calls(0, record), CudaGraphs::Edges::kChain).value();
//   cuda.Launch(step);
//   cuda.Synchronize();
#ifndef RESIDENT_TESTS_GPU_CUDA_GRAPHS_H_
#define RESIDENT_TESTS_GPU_CUDA_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "tests/gpu/device_graph.h"

namespace resident::testing {

class CudaGraphs {
 public:
  enum class Edges {
    // Each node waits for the one before it, as if captured from one stream.
    kChain,
    // The same with programmatic dependent launch: the blocks of a node start while the node before
    // it ends, and wait for its end before they run the operator.
    kProgrammatic,
    // Each node waits for its predecessors.
    kDependencies,
  };

  explicit CudaGraphs(int ordinal);
  ~CudaGraphs();
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;

  // Makes a graph and returns its number. Nullopt, with a message on the standard output: the GPU
  // or its driver has no programmatic dependent launch in graphs. The operators must not need
  // scratch memory: nodes of a graph share it.
  std::optional<size_t> Add(absl::Span<const NodeCall> calls, Edges edges);
  void Launch(size_t graph);
  // Waits for all launches, and fails if an operator of them has failed.
  void Synchronize();

  // Reads the memory with 16-byte loads, and returns the best rate of several launches.
  double MeasureReadBytesPerSecond(uint64_t address, uint64_t bytes);

  void Clear(uint64_t address, uint64_t bytes);
  void Download(void* to, uint64_t address, uint64_t bytes);

 private:
  struct Objects;
  const std::unique_ptr<Objects> objects_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_CUDA_GRAPHS_H_
