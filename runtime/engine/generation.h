// Generation: the operators that one launch of the resident kernel can call.
//
// The kernel with the built-in operators is always part of it; `operators` lists the
// others and their slots. Built-in operator i always has slot 2 * i.
//
// Invariants:
//   1. Numbers rise by one with each generation of a device. 1 is the first: the
//      built-in operators alone, linked at build time.
//   2. Each slot appears once, is below kMaxOperatorSlots and above the slots of the
//      built-in and the test operators.
//   3. `object` defines `symbol` and can be loaded by itself. CUDA: a module that
//      LinkOperatorModule() made (runtime/image). CPU: a shared object.
//
// Thread safety: immutable after construction; shared by pointer to const.
//
//   auto next = std::make_shared<Generation>();
//   next->number = current->number + 1;
//   next->operators.push_back({slot, "resident_op_0123456789abcdef", object});
//   absl::Status loaded = device.LoadGeneration(next, park_deadline);
#ifndef RESIDENT_RUNTIME_ENGINE_GENERATION_H_
#define RESIDENT_RUNTIME_ENGINE_GENERATION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace resident {

struct GenerationOperator {
  uint32_t slot = 0;
  // The function's name, as the unit exports it (C linkage).
  std::string symbol;
  // Operators of one unit may share it.
  std::shared_ptr<const std::string> object;
  // How long a task may run; 0: EngineOptions::task_time_limit.
  std::chrono::milliseconds time_limit{0};
  // Whether it can be stopped while it runs, and not only between its chunks, tasks or nodes: on a
  // GPU its code looks whether it has to return.
  bool stoppable = false;
};

struct Generation {
  uint64_t number = 1;
  std::vector<GenerationOperator> operators;
};

// INVALID_ARGUMENT: invariant 2 does not hold, or a symbol is not an identifier; the message says
// which.
absl::Status CheckGeneration(const Generation& generation);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_GENERATION_H_
