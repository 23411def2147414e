// History: who wrote and who reads each byte of the graph's memory, while the nodes are visited in
// their order.
//
// Memory is a line of bytes that contains all roots one after the other. Segments with equal
// history are kept in a tree, so that a visit costs the logarithm of their number, whatever the
// sizes are. The readers of a segment are a list that only grows at its head: segments with the
// same readers share it, also after the next reader, so that a node which reads many of them adds
// few entries.
//
// Thread safety: none.
//
//   History history(budget);
//   if (!history.Visit(begin, end, defined, [&](Segment& segment) { ...; return true; })) ...
#ifndef RESIDENT_RUNTIME_GRAPH_HISTORY_H_
#define RESIDENT_RUNTIME_GRAPH_HISTORY_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/container/btree_map.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/graph.h"

namespace resident::graph {

class History {
 public:
  struct Segment {
    int64_t end = 0;
    // The last node that wrote or updated it; kNone: none.
    uint32_t writer = kNone;
    // Index in readers(); kNone: no node has read it since.
    uint32_t readers = kNone;
    // Whether every byte has a value.
    bool defined = false;
  };
  struct Reader {
    uint32_t node;
    uint32_t next;
  };

  // The steps of all visits are taken from `budget`, which holds the history's memory.
  explicit History(CheckBudget& budget) : budget_(budget), held_(budget) {}

  // Adds a reader to the segment. It may be the newest one already. False: the check has ended.
  bool AddReader(Segment& segment, uint32_t node) {
    if (segment.readers != kNone && readers_[segment.readers].node == node) return true;
    Added& added = added_[segment.readers % kRemembered];
    if (added.before != segment.readers || added.after == kNone ||
        readers_[added.after].node != node) {
      if (!held_.Hold(kReaderBytes)) return false;
      readers_.push_back({node, segment.readers});
      added = {segment.readers, static_cast<uint32_t>(readers_.size() - 1)};
    }
    segment.readers = added.after;
    return true;
  }
  const Reader& reader(uint32_t index) const { return readers_[index]; }

  // Calls `visit(segment)` for the segments of [begin, end), which it may change, until it returns
  // false. `defined`: of bytes that were never visited. False: the check has ended.
  template <typename Visitor>
  bool Visit(int64_t begin, int64_t end, bool defined, Visitor visit);

  // Replaces the segments of [begin, end) by one. False: the check has ended.
  bool Overwrite(int64_t begin, int64_t end, uint32_t writer);

 private:
  using Map = absl::btree_map<int64_t, Segment>;
  // A list of readers, and the same with the reader that was added last.
  struct Added {
    uint32_t before = kNone;
    uint32_t after = kNone;
  };
  // Lists that are remembered: a node often reads segments of several others in turn.
  static constexpr uint32_t kRemembered = 64;
  // The memory of a segment in the tree, and of a reader in a vector that grows.
  static constexpr uint64_t kSegmentBytes = 56;
  static constexpr uint64_t kReaderBytes = 24;
  // The steps of a search in the tree.
  static constexpr uint64_t kSearchSteps = 2;

  // One more segment. False: the check has ended.
  bool HoldSegment() { return held_.Hold(kSegmentBytes); }

  // The segment that begins at `at`, after one that contains it was split. end() if none does.
  // The caller looks whether the check has ended.
  Map::iterator SplitAt(int64_t at);
  Map::iterator Erase(Map::iterator first, Map::iterator last);

  CheckBudget& budget_;
  HeldBytes held_;
  Map segments_;
  std::vector<Reader> readers_;
  Added added_[kRemembered];
};

// Implementation details follow.

template <typename Visitor>
bool History::Visit(int64_t begin, int64_t end, bool defined, Visitor visit) {
  Map::iterator found = SplitAt(begin);
  if (found == segments_.end()) found = segments_.lower_bound(begin);
  int64_t at = begin;
  while (at < end) {
    if (!budget_.Take()) return false;
    if (found == segments_.end() || found->first > at) {
      // Never visited.
      if (!HoldSegment()) return false;
      const int64_t until = found == segments_.end() ? end : std::min(end, found->first);
      found = segments_.emplace_hint(found, at, Segment{until, kNone, kNone, defined});
    } else if (found->second.end > end) {
      SplitAt(end);
      found = segments_.find(at);
    }
    if (!visit(found->second)) return false;
    at = found->second.end;
    ++found;
  }
  return !budget_.ended();
}

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_HISTORY_H_
