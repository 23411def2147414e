// SlotPool: which slots of the jump table are taken, and by which version.
//
// A version gives its slot back when it is destroyed, which is when the last batch that
// may still name the slot is gone. So a slot that can be taken is in nobody's use, and
// nobody has to poll for that moment.
//
// Thread safety: all members may be called from any thread. The table of holders is weak:
// what Holder returns keeps a version (and so its slot) alive, what the pool has does not.
//
//   SlotPool pool(/*first=*/24, /*end=*/kMaxOperatorSlots);
//   std::optional<uint32_t> slot = pool.Take(deadline);
//   pool.Give(*slot);
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
  // Slots below `first` are the built-in operators'.
  SlotPool(uint32_t first, uint32_t end);

  // The lowest free slot; waits for one until `deadline`. None: all are taken.
  std::optional<uint32_t> Take(absl::Time deadline);
  // A certain slot, if it is free and not a built-in operator's.
  bool TakeExactly(uint32_t slot);
  // Says whose the slot is. REQUIRES: it is taken, or a built-in operator's.
  void SetHolder(uint32_t slot, const std::shared_ptr<const OperatorVersion>& holder);
  void Give(uint32_t slot);

  // The version that has the slot; null: none, or one that is just being destroyed.
  std::shared_ptr<const OperatorVersion> Holder(uint32_t slot) const;
  // All of them, by slot.
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
