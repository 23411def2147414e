// CpuGeneration: a jump table of the CPU engine, with the shared objects that define its
// functions.
//
// Objects are opened from memory. An object with the same content as one of the previous generation
// is shared with it, so that a change of one operator opens one object. An object is closed with
// the last generation that uses it.
//
// Thread safety: immutable after it was loaded. The last reference must not be destroyed while a
// worker may call one of its functions.
#ifndef RESIDENT_RUNTIME_ENGINE_CPU_CPU_GENERATION_H_
#define RESIDENT_RUNTIME_ENGINE_CPU_CPU_GENERATION_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layout/ring_layout.h"
#include "kernels/sdk/operator.h"
#include "runtime/engine/generation.h"

namespace resident {

class CpuGeneration {
 public:
  // INVALID_ARGUMENT: an object cannot be opened, or lacks its symbol. Shares objects with
  // `former`, which may be null. `time_limit`: of operators without a limit of their own; 0: none.
  static absl::StatusOr<std::shared_ptr<const CpuGeneration>> Load(
      const Generation& generation, bool test_operators, std::chrono::nanoseconds time_limit,
      const CpuGeneration* former);

  uint64_t number() const { return number_; }

  struct Slot {
    OperatorFunction function = nullptr;  // Null: an empty slot.
    // See GenerationOperator.
    std::chrono::nanoseconds time_limit{0};
    bool stoppable = false;
  };
  const Slot& slot(u32 slot) const {
    return table_[slot < kMaxOperatorSlots ? slot : kMaxOperatorSlots];
  }
  // The shortest limit of an operator that can be stopped while it runs; 0: there is none.
  std::chrono::nanoseconds min_time_limit() const { return min_time_limit_; }

 private:
  class LoadedObject;

  absl::Status Add(const GenerationOperator& added, const CpuGeneration* former);

  uint64_t number_ = 0;
  std::array<Slot, kMaxOperatorSlots + 1> table_{};  // The last one is empty.
  std::chrono::nanoseconds min_time_limit_{0};
  std::vector<std::shared_ptr<const LoadedObject>> objects_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CPU_CPU_GENERATION_H_
