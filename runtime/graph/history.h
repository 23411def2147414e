// History: who wrote and who reads each byte of the graph's memory, while the nodes are visited in
// their order.
//
// Memory is a line of bytes that contains all roots one after the other. Segments with equal
// history are kept in a tree, so that a visit costs the logarithm of their number, whatever the
// sizes are. The readers of a segment are a list that only grows at its head: two halves of a
// segment share it.
//
// Thread safety: none.
//
//   History history(...);
//   history.Visit(begin, end, defined, [&](Segment& segment) { ... });
#ifndef RESIDENT_RUNTIME_GRAPH_HISTORY_H_
#define RESIDENT_RUNTIME_GRAPH_HISTORY_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/container/btree_map.h"
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

  // Adds a reader to the segment. It may be the newest one already.
  void AddReader(Segment& segment, uint32_t node) {
    if (segment.readers != kNone && readers_[segment.readers].node == node) return;
    readers_.push_back({node, segment.readers});
    segment.readers = static_cast<uint32_t>(readers_.size() - 1);
  }
  const Reader& reader(uint32_t index) const { return readers_[index]; }

  // Calls `visit(segment)` for the segments of [begin, end), which it may change. `defined`: of
  // bytes that were never visited.
  template <typename Visitor>
  void Visit(int64_t begin, int64_t end, bool defined, Visitor visit);

  // Replaces the segments of [begin, end) by one.
  void Overwrite(int64_t begin, int64_t end, uint32_t writer);

  uint64_t segments() const { return segments_.size(); }
  uint64_t readers() const { return readers_.size(); }

 private:
  using Map = absl::btree_map<int64_t, Segment>;

  // The segment that begins at `at`, after one that contains it was split. end() if none does.
  Map::iterator SplitAt(int64_t at);

  Map segments_;
  std::vector<Reader> readers_;
};

// Implementation details follow.

template <typename Visitor>
void History::Visit(int64_t begin, int64_t end, bool defined, Visitor visit) {
  Map::iterator found = SplitAt(begin);
  if (found == segments_.end()) found = segments_.lower_bound(begin);
  int64_t at = begin;
  while (at < end) {
    if (found == segments_.end() || found->first > at) {
      // Never visited.
      const int64_t until = found == segments_.end() ? end : std::min(end, found->first);
      found = segments_.emplace_hint(found, at, Segment{until, kNone, kNone, defined});
    } else if (found->second.end > end) {
      SplitAt(end);
      found = segments_.find(at);
    }
    visit(found->second);
    at = found->second.end;
    ++found;
  }
}

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_HISTORY_H_
