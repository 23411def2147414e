#include "server/models/model_plans.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "server/graphs/graph_memory.h"

namespace resident {

void AllModelPlans::Add(const std::shared_ptr<ModelPlans>& plans) {
  absl::MutexLock lock(&mu_);
  std::erase_if(versions_, [](const auto& version) { return version.expired(); });
  versions_.push_back(plans);
}

bool AllModelPlans::DropOldest(uint32_t device, const ModelInstances& except) {
  std::vector<std::shared_ptr<ModelPlans>> versions;  // Destroyed without the lock.
  {
    absl::MutexLock lock(&mu_);
    for (const auto& each : versions_) {
      auto version = each.lock();
      if (version != nullptr && version->parts().device == device) {
        versions.push_back(std::move(version));
      }
    }
  }
  struct Candidate {
    uint64_t used;
    ModelPlans* version;
    std::shared_ptr<ModelInstances> plan;
  };
  std::vector<Candidate> candidates;
  for (const auto& version : versions) {
    std::vector<std::pair<uint64_t, std::shared_ptr<ModelInstances>>> uses;
    version->ListUses(&uses);
    for (auto& [used, plan] : uses) {
      if (plan.get() != &except) candidates.push_back({used, version.get(), std::move(plan)});
    }
  }
  std::ranges::sort(candidates, {}, &Candidate::used);
  return std::ranges::any_of(candidates, [](const Candidate& candidate) {
    return candidate.version->Drop(*candidate.plan);
  });
}

ModelPlans::ModelPlans(Graphs& graphs, ModelParts parts)
    : graphs_(graphs),
      parts_(std::make_shared<const ModelParts>(std::move(parts))),
      rows_(FindRows(*parts_->checked, parts_->interface())) {}

std::shared_ptr<ModelPlans> ModelPlans::Make(Graphs& graphs, ModelParts parts) {
  std::shared_ptr<ModelPlans> plans(new ModelPlans(graphs, std::move(parts)));
  if (plans->parts_->source == nullptr) {
    absl::MutexLock lock(&plans->mu_);
    plans->plans_[{}].plan = std::make_shared<ModelInstances>(graphs, plans->parts_, PlanSizes(),
                                                              plans->parts_->largest, plans);
  }
  plans->parts_->plans->Add(plans);
  return plans;
}

uint64_t ModelPlans::max_batch() const {
  if (!rows_.independent()) return 0;
  const uint64_t max = parts_->max_combined_rows == 0
                           ? rows_.max
                           : std::min<uint64_t>(rows_.max, parts_->max_combined_rows);
  return max > 1 ? max : 0;
}

std::shared_ptr<ModelInstances> ModelPlans::Find(const PlanSizes& sizes) {
  assert(std::ranges::equal(sizes, interface().dimensions, [](int64_t size, const auto& dimension) {
    return size <= dimension.max;
  }));
  std::vector<std::shared_ptr<ModelInstances>> unused;  // Destroyed without the lock.
  absl::MutexLock lock(&mu_);
  Entry& entry = plans_[sizes];
  entry.used = parts_->plans->NextUse();
  if (entry.plan == nullptr) {
    entry.plan =
        std::make_shared<ModelInstances>(graphs_, parts_, sizes, nullptr, weak_from_this());
  }
  const std::shared_ptr<ModelInstances> found = entry.plan;
  // Plans that are not there, and that no request waits for.
  for (auto it = plans_.begin(); plans_.size() > kMaxPlans && it != plans_.end();) {
    const bool keeps = it->second.plan.use_count() > 1 || it->second.plan->present();
    if (!keeps) unused.push_back(std::move(it->second.plan));
    it = keeps ? std::next(it) : plans_.erase(it);
  }
  return found;
}

std::vector<std::shared_ptr<ModelInstances>> ModelPlans::List() const {
  std::vector<Entry> found;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [sizes, entry] : plans_) {
      if (entry.plan->ready()) found.push_back(entry);
    }
  }
  std::ranges::sort(found, std::ranges::greater(), &Entry::used);
  std::vector<std::shared_ptr<ModelInstances>> plans;
  plans.reserve(found.size());
  for (Entry& entry : found) plans.push_back(std::move(entry.plan));
  return plans;
}

uint32_t ModelPlans::count() const {
  uint32_t count = 0;
  for (const auto& plan : List()) count += plan->count();
  return count;
}

void ModelPlans::ListUses(
    std::vector<std::pair<uint64_t, std::shared_ptr<ModelInstances>>>* uses) const {
  absl::MutexLock lock(&mu_);
  for (const auto& [sizes, entry] : plans_) {
    if (entry.plan->present()) uses->emplace_back(entry.used, entry.plan);
  }
}

bool ModelPlans::Drop(ModelInstances& plan) {
  DroppedInstances dropped;  // Destroyed without the lock.
  std::shared_ptr<const void> weights;
  absl::MutexLock lock(&mu_);
  if (!plan.Drop(/*gives_way=*/true, &dropped)) return false;
  const bool others =
      std::ranges::any_of(plans_, [](const auto& entry) { return entry.second.plan->present(); });
  // Nobody allocates, so that nobody else reads what keeps the copy of the weights.
  if (!others && !entered_) weights = std::move(parts_->weights->kept);
  return true;
}

bool ModelPlans::DropOldest(const ModelInstances* except, DroppedInstances* dropped) {
  std::vector<const Entry*> entries;
  for (const auto& [sizes, entry] : plans_) {
    if (entry.plan.get() != except && entry.plan->present()) entries.push_back(&entry);
  }
  std::ranges::sort(entries, {}, &Entry::used);
  return std::ranges::any_of(
      entries, [&](const Entry* entry) { return entry->plan->Drop(/*gives_way=*/false, dropped); });
}

void ModelPlans::Admit(ModelInstances& plan, DroppedInstances* dropped) {
  absl::MutexLock lock(&mu_);
  const auto present =
      std::ranges::count_if(plans_, [](const auto& entry) { return entry.second.plan->present(); });
  const bool may_be = plan.present() || static_cast<size_t>(present) < kMaxPlans;
  if (may_be || DropOldest(&plan, dropped)) plan.MakeAnother();
}

uint64_t ModelPlans::MemoryBytes() const {
  uint64_t sum = 0;
  for (const auto& [sizes, entry] : plans_) sum += entry.plan->memory_bytes();
  return sum;
}

bool ModelPlans::DropOther(const ModelInstances& plan, bool of_device) {
  DroppedInstances dropped;  // Destroyed without the lock.
  {
    absl::MutexLock lock(&mu_);
    if (DropOldest(&plan, &dropped)) return true;
  }
  return of_device && parts_->plans->DropOldest(parts_->device, plan);
}

void ModelPlans::Enter(std::function<void()> make) {
  {
    absl::MutexLock lock(&mu_);
    if (entered_) {
      waiting_.push_back(std::move(make));
      return;
    }
    entered_ = true;
  }
  make();
}

void ModelPlans::Leave() {
  const uint64_t limit = FindDeviceLimit(graphs_.buffers).bytes / kMemoryShare;
  DroppedInstances dropped;  // Destroyed without the lock.
  std::function<void()> next;
  {
    absl::MutexLock lock(&mu_);
    while (MemoryBytes() > limit && DropOldest(nullptr, &dropped)) {
    }
    entered_ = !waiting_.empty();
    if (entered_) {
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
  }
  dropped.clear();
  if (next != nullptr) graphs_.core.runner.Post(std::move(next));
}

}  // namespace resident
