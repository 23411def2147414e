// ModelPlans: the plans of a version of a model (model_plan.h), each with its instances.
//
// A version without bounds of dimensions has one plan, from its load to its end. Otherwise:
//
//   Find ──▶ a plan that is not there yet ──TryTake──▶ Admit ──▶ made ──▶ serves requests
//                                             │                             │
//               (later, again) ◀── all are in use                           │
//                         dropped ◀── the one that was used last long ago, of those no request uses
//
// At most kMaxPlans are there at the same time, and those that no request uses are dropped while
// all together have more than a part of the device's memory. One that is dropped is made again for
// the next request of its sizes.
//
// AllModelPlans: the plans of all versions. If a device is short of memory for a plan that has
// none, the plan that was used longest ago gives way, whichever version it is of; of a version with
// one plan, its instances. With its last plan a version also gives up the copy of its weights.
//
// Thread safety: all members may be called from any thread, and do not wait, except for DropOther,
// which frees memory.
//
//   const auto plans = ModelPlans::Make(graphs, parts);
//   const std::shared_ptr<ModelInstances> plan = plans->Find(sizes);
//   while (!Allocate() && table.DropOldest(device, *plan)) {}
#ifndef RESIDENT_SERVER_MODELS_MODEL_PLANS_H_
#define RESIDENT_SERVER_MODELS_MODEL_PLANS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/graphs/graphs.h"
#include "server/models/model_instances.h"
#include "server/models/model_plan.h"
#include "server/models/model_rows.h"

namespace resident {

class ModelPlans;

class AllModelPlans {
 public:
  void Add(const std::shared_ptr<ModelPlans>& plans) ABSL_LOCKS_EXCLUDED(mu_);
  // The number of a use: later ones are larger.
  uint64_t NextUse() { return uses_.fetch_add(1) + 1; }
  // Drops the plan of the device that was used longest ago, of those that no request uses or waits
  // for, and that are not `except`. False: there is none. It frees memory.
  bool DropOldest(uint32_t device, const ModelInstances& except) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::vector<std::weak_ptr<ModelPlans>> versions_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> uses_{0};
};

class ModelPlans final : public PlanKeeper, public std::enable_shared_from_this<ModelPlans> {
 public:
  static constexpr size_t kMaxPlans = 32;
  // Of the device's memory for buffers, one part.
  static constexpr uint64_t kMemoryShare = 4;

  // `graphs` must outlive it.
  static std::shared_ptr<ModelPlans> Make(Graphs& graphs, ModelParts parts);

  const ModelParts& parts() const { return *parts_; }
  // Of the graph of the largest sizes.
  const ModelInterface& interface() const { return parts_->interface(); }
  const ModelRows& rows() const { return rows_; }
  // Rows of a batch of several requests at most; 0: requests are not combined.
  uint64_t max_batch() const;

  // The plan of these sizes, which may have to be made. REQUIRES: one size for each dimension, not
  // above its bound.
  std::shared_ptr<ModelInstances> Find(const PlanSizes& sizes) ABSL_LOCKS_EXCLUDED(mu_);
  // Those that are there, the one that was used last first.
  std::vector<std::shared_ptr<ModelInstances>> List() const ABSL_LOCKS_EXCLUDED(mu_);
  // Instances of all plans.
  uint32_t count() const;
  // Requests that have waited for their plan.
  std::atomic<uint64_t> misses{0};

  // The plans that may have memory, with the numbers of their last uses.
  void ListUses(std::vector<std::pair<uint64_t, std::shared_ptr<ModelInstances>>>* uses) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Drops the plan, which may have been used meanwhile. False: a request uses it, or waits for it.
  bool Drop(ModelInstances& plan) ABSL_LOCKS_EXCLUDED(mu_);

  void Admit(ModelInstances& plan, DroppedInstances* dropped) override ABSL_LOCKS_EXCLUDED(mu_);
  bool DropOther(const ModelInstances& plan, bool of_device) override ABSL_LOCKS_EXCLUDED(mu_);
  void Enter(std::function<void()> make) override ABSL_LOCKS_EXCLUDED(mu_);
  void Leave() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::shared_ptr<ModelInstances> plan;
    uint64_t used = 0;  // Number of the last use.
  };

  ModelPlans(Graphs& graphs, ModelParts parts);
  // Drops the plan that was used longest ago, of those that no request uses. False: there is none.
  bool DropOldest(const ModelInstances* except, DroppedInstances* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Bytes of device memory that the instances of all plans use.
  uint64_t MemoryBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Graphs& graphs_;
  const std::shared_ptr<const ModelParts> parts_;
  const ModelRows rows_;

  mutable absl::Mutex mu_;  // Taken before the mutexes of plans.
  std::map<PlanSizes, Entry> plans_ ABSL_GUARDED_BY(mu_);
  // Whether somebody allocates, and those who wait for that.
  bool entered_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_PLANS_H_
