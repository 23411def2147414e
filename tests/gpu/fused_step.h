// FusedStep: what a decoding step costs that is written for one model alone, as a baseline of the
// benchmark of task graphs: a step of the shape of Llama-3.2-1B, with weights of bfloat16 and one
// text.
//
// Five launches a layer (norm and q, k, v; rotation, append and attention; o and residual; norm,
// gate, up and silu; down and residual), head and argmax, with activations of float32: as a CUDA
// graph, and as one kernel that executes all of them, with a block on each SM. That kernel's ninth
// warp brings weights to a ring of pages without waiting for dependencies; the other warps have the
// next pages in registers while they wait. It needs compute capability 9.0, and the whole GPU.
//
// The token of a step is used in the next one, and the cache grows. Weights are random.
//
// Thread safety: the thread that has made it. While another kernel is resident, nothing of it may
// be called. An error ends the benchmark.
//
//   FusedStep fused(/*ordinal=*/0, weights);   // Memory of kWeightBytes.
//   const double us = fused.MeasureGraph(/*keys=*/160, /*programmatic=*/true);
#ifndef RESIDENT_TESTS_GPU_FUSED_STEP_H_
#define RESIDENT_TESTS_GPU_FUSED_STEP_H_

#include <cstdint>
#include <memory>

namespace resident::testing {

class FusedStep {
 public:
  // Whether a GPU can run it; otherwise says so on the standard output.
  static bool IsSupported(int ordinal);

  // Writes its weights to the memory from `weights` on, which must outlive it.
  static constexpr uint64_t kWeightBytes = 2'471'493'632;
  FusedStep(int ordinal, uint64_t weights);
  ~FusedStep();
  FusedStep(const FusedStep&) = delete;
  FusedStep& operator=(const FusedStep&) = delete;

  // The time of a step that attends to `keys` keys and more, in us. At most kMaxKeys.
  static constexpr uint32_t kMaxKeys = 512;
  double MeasureGraph(uint32_t keys, bool programmatic);
  // The same for the kernel that executes whole steps. Fails if its logits or tokens are not those
  // of the graph. REQUIRES: MeasureGraph has been called with the same keys.
  double MeasureKernel(uint32_t keys);

 private:
  struct Objects;
  const std::unique_ptr<Objects> objects_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_FUSED_STEP_H_
