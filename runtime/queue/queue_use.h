// QueueUse: how much of a device's queue a client's batches use. A task counts from admission
// until it is in the ring or skipped, the bytes of a batch until it has ended: an in-order
// batch of which some tasks have run still uses all of its memory.
//
// Thread safety: all members may be called from any thread.
//
// Memory ordering: none is needed. DeviceQueue adds under its mu_; concurrent removals only
// make the values smaller.
//
//   batch->use = client.use;
//   batch->use->Add(tasks, bytes);
#ifndef RESIDENT_RUNTIME_QUEUE_QUEUE_USE_H_
#define RESIDENT_RUNTIME_QUEUE_QUEUE_USE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace resident {

class QueueUse {
 public:
  // Whatever is counted here is also counted in `all`, unless it is null.
  explicit QueueUse(std::shared_ptr<QueueUse> all) : all_(std::move(all)) {}

  uint64_t tasks() const { return tasks_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // A batch is admitted.
  void Add(uint64_t tasks, uint64_t bytes) {
    tasks_.fetch_add(tasks, std::memory_order_relaxed);
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    if (all_ != nullptr) all_->Add(tasks, bytes);
  }
  // Tasks are in the ring, or skipped.
  void RemoveTasks(uint64_t tasks) {
    tasks_.fetch_sub(tasks, std::memory_order_relaxed);
    if (all_ != nullptr) all_->RemoveTasks(tasks);
  }
  // A batch has ended.
  void RemoveBytes(uint64_t bytes) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    if (all_ != nullptr) all_->RemoveBytes(bytes);
  }

 private:
  const std::shared_ptr<QueueUse> all_;
  std::atomic<uint64_t> tasks_{0};
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_QUEUE_USE_H_
