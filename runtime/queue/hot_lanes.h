// HotLanes: the lanes of a device (lane_source.h), and those of them that the dispatch loop polls.
//
// A lane is hot after it was added or woken up, until nothing was taken from it for `spin`. A lane
// that waits, for instance for an earlier task of its own, falls asleep too: whoever ends what it
// waits for wakes it up. While all `max_hot` places are taken, lanes that were woken up wait in the
// order of arrival, and each iteration gives the place of the lane that has had its turn to the
// next of them.
//
// Thread safety: one thread at a time (DeviceQueue's dispatch_mu_).
//
// Invariants:
//   1. A lane of `lanes_` is in `hot_`, in `due_`, or in neither (asleep).
//   2. At most `max_hot` lanes are in `hot_`; fewer only if `due_` is empty.
//
//   const HotLanes::Round round = lanes.Visit(max_tasks, epoch, Clock::now);
#ifndef RESIDENT_RUNTIME_QUEUE_HOT_LANES_H_
#define RESIDENT_RUNTIME_QUEUE_HOT_LANES_H_

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "runtime/queue/device_queue.h"
#include "runtime/queue/lane_source.h"

namespace resident {

class HotLanes {
 public:
  struct Taken {
    ClientId client;
    std::shared_ptr<LaneSource> lane;
    std::shared_ptr<Batch> batch;  // Null: what was read has ended already.
  };
  // What one look at all hot lanes found.
  struct Round {
    absl::InlinedVector<Taken, 2> taken;
    bool waiting = false;    // A lane has something to take, and nothing may be taken now.
    bool cancelled = false;  // LaneSource::Visit::cancelled.
    Clock::time_point now;   // Set unless `taken` is empty.

    bool empty() const { return taken.empty() && !cancelled; }
  };

  HotLanes(uint32_t max_hot, Clock::duration spin) : max_hot_(max_hot), spin_(spin) {}

  bool empty() const { return lanes_.empty(); }
  uint32_t hot() const { return static_cast<uint32_t>(hot_.size()); }

  void Add(ClientId client, std::shared_ptr<LaneSource> lane) {
    assert(!lanes_.contains(lane.get()));
    const LaneSource* const key = lane.get();
    lanes_[key] = std::make_unique<Lane>(Lane{client, std::move(lane), Clock::now()});
    Queue(*lanes_[key]);
  }

  void Remove(const LaneSource* lane) {
    const auto found = lanes_.find(lane);
    if (found == lanes_.end()) return;
    std::erase(hot_, found->second.get());
    std::erase(due_, found->second.get());
    lanes_.erase(found);
    FillPlaces();
  }

  // Wakes up those of the lanes that are asleep; returns how many.
  uint64_t WakeUp(const absl::flat_hash_set<const LaneSource*>& lanes) {
    uint64_t woken = 0;
    for (const LaneSource* lane : lanes) {
      const auto found = lanes_.find(lane);
      if (found == lanes_.end() || found->second->awake) continue;
      Queue(*found->second);
      ++woken;
    }
    return woken;
  }
  void WakeAll() {
    for (const auto& [key, lane] : lanes_) {
      if (!lane->awake) Queue(*lane);
    }
  }
  void AllFallAsleep() {
    // Lanes that have something to take stay: their polling is not in vain.
    std::erase_if(hot_, [](Lane* lane) { return Sleep(*lane, /*anyway=*/false); });
    FillPlaces();
  }

  // Takes at most `max_tasks` submissions of all hot lanes together; 0: nothing may be taken now.
  template <typename Now>
  Round Visit(uint32_t max_tasks, uint64_t epoch, Now now) {
    Round round;
    const size_t lanes = hot_.size();
    bool blocked = false;
    uint32_t left = max_tasks;
    for (size_t i = 0; i < lanes; ++i) {
      Lane& lane = *hot_[(cursor_ + i) % lanes];
      if (!lane.source->Ready()) continue;
      if (max_tasks == 0) {
        round.waiting = true;
        continue;
      }
      if (left == 0) {
        cursor_ = (cursor_ + i) % lanes;  // It is the first one next time.
        break;
      }
      LaneSource::Visit visit = lane.source->Take(left, epoch);
      round.cancelled |= visit.cancelled;
      if (visit.consumed == 0) {
        blocked = true;
        continue;
      }
      if (round.taken.empty()) round.now = now();
      lane.last_work = round.now;
      left -= std::min(left, visit.consumed);
      round.taken.push_back({lane.client, lane.source, std::move(visit.batch)});
    }
    if (!due_.empty()) {
      Rotate();
    } else if (round.taken.empty() && lanes > 0 && (blocked || ++visits_in_vain_ % kVisits == 0)) {
      Cool(now(), /*anyway=*/max_tasks == 0);
    }
    return round;
  }

 private:
  struct Lane {
    ClientId client;
    std::shared_ptr<LaneSource> source;
    Clock::time_point last_work;
    bool awake = false;  // In `hot_` or `due_`.
  };
  // The clock is read once in so many visits that found nothing.
  static constexpr uint32_t kVisits = 8;

  void Queue(Lane& lane) {
    lane.awake = true;
    due_.push_back(&lane);
    FillPlaces();
  }
  void FillPlaces() {
    while (!due_.empty() && hot_.size() < max_hot_) {
      Lane& lane = *due_.front();
      due_.pop_front();
      lane.last_work = Clock::now();
      lane.source->WakeUp();
      hot_.push_back(&lane);
    }
    if (cursor_ >= hot_.size()) cursor_ = 0;
  }
  // `anyway`: also if it has something to take. Returns whether it is asleep.
  static bool Sleep(Lane& lane, bool anyway) {
    if (!lane.source->FallAsleep() && !anyway) {
      lane.source->WakeUp();
      return false;
    }
    lane.awake = false;
    return true;
  }
  void Cool(Clock::time_point now, bool anyway) {
    std::erase_if(
        hot_, [&](Lane* lane) { return now - lane->last_work >= spin_ && Sleep(*lane, anyway); });
    FillPlaces();
  }
  // The lane that has had its turn last gives its place to the next one that is due, and is due
  // after the others if it has something left.
  void Rotate() {
    const size_t last = cursor_ == 0 ? hot_.size() - 1 : cursor_ - 1;
    Lane& lane = *hot_[last];
    hot_.erase(hot_.begin() + static_cast<std::ptrdiff_t>(last));
    if (last < cursor_) --cursor_;
    if (!Sleep(lane, /*anyway=*/false)) due_.push_back(&lane);
    FillPlaces();
  }

  const uint32_t max_hot_;
  const Clock::duration spin_;
  absl::flat_hash_map<const LaneSource*, std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> hot_;
  std::deque<Lane*> due_;  // Woken up, and waiting for a place in `hot_`.
  size_t cursor_ = 0;      // The lane in `hot_` that is looked at first.
  uint32_t visits_in_vain_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_HOT_LANES_H_
