#include "runtime/graph/history.h"

namespace resident::graph {

History::Map::iterator History::SplitAt(int64_t at) {
  budget_.Take(kSearchSteps);
  Map::iterator found = segments_.upper_bound(at);
  if (found == segments_.begin()) return segments_.end();
  --found;
  if (found->first == at) return found;
  if (found->second.end <= at) return segments_.end();
  HoldSegment();
  Segment right = found->second;
  found->second.end = at;
  return segments_.emplace_hint(std::next(found), at, right);
}

History::Map::iterator History::Erase(Map::iterator first, Map::iterator last) {
  const uint64_t before = segments_.size();
  const Map::iterator next = segments_.erase(first, last);
  held_.Release(kSegmentBytes * (before - segments_.size()));
  return next;
}

bool History::Overwrite(int64_t begin, int64_t end, uint32_t writer) {
  SplitAt(begin);
  SplitAt(end);
  Map::iterator found = segments_.lower_bound(begin);
  Map::iterator next = found;
  while (next != segments_.end() && next->first < end && budget_.Take()) ++next;
  if (found != segments_.end() && found->first == begin && found->second.end <= end) {
    // The usual case: the same memory again.
    found->second = {end, writer, kNone, true};
    Map::iterator last = std::next(found);
    if (next != last && next != found) Erase(last, next);
    return !budget_.ended();
  }
  if (next != found) found = Erase(found, next);
  if (!HoldSegment()) return false;
  segments_.emplace_hint(found, begin, Segment{end, writer, kNone, true});
  return true;
}

}  // namespace resident::graph
