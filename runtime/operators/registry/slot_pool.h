// SlotPool: which slots of the jump table are taken, and by which version.
//
// A version releases its slot when it is destroyed, that is, when the last batch that may
// name the slot has ended. So a free slot is not in use, and no polling is needed.
//
// Thread safety: all members may be called from any thread. The table of holders has weak
// pointers: the pointer that Holder returns keeps a version (and so its slot) alive, the
// pool does not.
//
//   SlotPool pool(/*first=*/24, /*end=*/kMaxOperatorSlots);
//   std::optional<uint32_t> slot = pool.Acquire(deadline);
//   pool.Release(*slot);
#ifndef RESIDENT_RUNTIME_OPERATORS_REGISTRY_SLOT_POOL_H_
#define RESIDENT_RUNTIME_OPERATORS_REGISTRY_SLOT_POOL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace resident {

class OperatorVersion;

class SlotPool {
 public:
  // Slots below `first` belong to the built-in operators.
  SlotPool(uint32_t first, uint32_t end);

  // The lowest free slot; waits for one until `deadline`. nullopt: all are in use.
  std::optional<uint32_t> Acquire(absl::Time deadline);
  // Acquires this slot, if it is free and not a built-in operator's.
  bool AcquireExactly(uint32_t slot);
  // Sets the holder of the slot. REQUIRES: it is acquired, or a built-in operator's.
  void SetHolder(uint32_t slot, const std::shared_ptr<const OperatorVersion>& holder);
  void Release(uint32_t slot);

  // The version that holds the slot; null if there is none, or it is being destroyed.
  std::shared_ptr<const OperatorVersion> Holder(uint32_t slot) const;
  // All holders, by slot.
  std::vector<std::shared_ptr<const OperatorVersion>> Holders() const;

  uint32_t taken() const;
  uint32_t capacity() const { return end_ - first_; }

 private:
  struct Slot {
    bool taken = false;
    std::weak_ptr<const OperatorVersion> holder;
  };

  const uint32_t first_;
  const uint32_t end_;
  mutable absl::Mutex mu_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  uint32_t taken_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_REGISTRY_SLOT_POOL_H_
