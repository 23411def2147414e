#include "runtime/operators/registry/slot_pool.h"

#include <cassert>
#include <utility>

namespace resident {

SlotPool::SlotPool(uint32_t first, uint32_t end) : first_(first), end_(end), slots_(end) {}

std::optional<uint32_t> SlotPool::Acquire(absl::Time deadline) {
  const auto any_free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return taken_ < capacity(); };
  absl::MutexLock lock(&mu_);
  if (!mu_.AwaitWithDeadline(absl::Condition(&any_free), deadline)) return std::nullopt;
  for (uint32_t slot = first_; slot < end_; ++slot) {
    if (slots_[slot].taken) continue;
    slots_[slot].taken = true;
    ++taken_;
    return slot;
  }
  return std::nullopt;
}

bool SlotPool::AcquireExactly(uint32_t slot) {
  absl::MutexLock lock(&mu_);
  if (slot < first_ || slot >= end_ || slots_[slot].taken) return false;
  slots_[slot].taken = true;
  ++taken_;
  return true;
}

void SlotPool::SetHolder(uint32_t slot, const std::shared_ptr<const OperatorVersion>& holder) {
  absl::MutexLock lock(&mu_);
  assert(slot < end_ && (slot < first_ || slots_[slot].taken));
  slots_[slot].holder = holder;
}

void SlotPool::Release(uint32_t slot) {
  absl::MutexLock lock(&mu_);
  if (slot < first_ || !slots_[slot].taken) return;
  slots_[slot] = Slot();
  --taken_;
}

std::shared_ptr<const OperatorVersion> SlotPool::Holder(uint32_t slot) const {
  absl::MutexLock lock(&mu_);
  return slot < slots_.size() ? slots_[slot].holder.lock() : nullptr;
}

std::vector<std::shared_ptr<const OperatorVersion>> SlotPool::Holders() const {
  std::vector<std::shared_ptr<const OperatorVersion>> holders;
  {
    absl::MutexLock lock(&mu_);
    for (const Slot& slot : slots_) {
      if (auto holder = slot.holder.lock()) holders.push_back(std::move(holder));
    }
  }
  return holders;
}

uint32_t SlotPool::taken() const {
  absl::MutexLock lock(&mu_);
  return taken_;
}

}  // namespace resident
