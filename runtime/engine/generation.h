// Generation: what one launch of the resident kernel can call.
//
// The kernel with the built-in operators is always part of it; `operators` says what
// else stands in the operator slots. Built-in operator i keeps slot 2 * i for good.
//
// Invariants:
//   1. Numbers rise by one with each generation of a device. 1 is the first: the
//      built-in operators alone, linked at build time.
//   2. Each slot appears once, is below kMaxOperatorSlots and above the slots of the
//      built-in and the test operators.
//   3. CUDA: `image` is linked from the objects of FirstGenerationObjects()
//      (runtime/engine/image), a table by JumpTablePtx() and the units of `operators`,
//      whose `object` is null. No image: the built-in operators alone.
//      CPU: no image; `object` is a shared object that defines `symbol`.
//
// Thread safety: immutable once made; shared by pointer to const.
//
//   auto next = std::make_shared<Generation>();
//   next->number = current->number + 1;
//   next->operators.push_back({slot, "resident_op_0123456789abcdef", object});
//   absl::Status loaded = device.LoadGeneration(next, park_deadline);
#ifndef RESIDENT_RUNTIME_ENGINE_GENERATION_H_
#define RESIDENT_RUNTIME_ENGINE_GENERATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace resident {

struct GenerationOperator {
  uint32_t slot = 0;
  // The function, as the unit exports it (C linkage).
  std::string symbol;
  // The unit as a shared object; null for a GPU, where it is linked into the image.
  std::shared_ptr<const std::string> object;
};

struct Generation {
  uint64_t number = 1;
  // The linked cubin; null for the CPU.
  std::shared_ptr<const std::string> image;
  std::vector<GenerationOperator> operators;
};

// INVALID_ARGUMENT: invariant 2 does not hold, or a symbol is no identifier; which.
absl::Status CheckGeneration(const Generation& generation);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_GENERATION_H_
