#include "runtime/graph/history.h"

namespace resident::graph {

History::Map::iterator History::SplitAt(int64_t at) {
  Map::iterator found = segments_.upper_bound(at);
  if (found == segments_.begin()) return segments_.end();
  --found;
  if (found->first == at) return found;
  if (found->second.end <= at) return segments_.end();
  Segment right = found->second;
  found->second.end = at;
  return segments_.emplace_hint(std::next(found), at, right);
}

void History::Overwrite(int64_t begin, int64_t end, uint32_t writer) {
  SplitAt(begin);
  SplitAt(end);
  Map::iterator found = segments_.lower_bound(begin);
  if (found != segments_.end() && found->first == begin && found->second.end <= end) {
    // The usual case: the same memory again.
    found->second = {end, writer, kNone, true};
    Map::iterator last = std::next(found);
    Map::iterator next = last;
    while (next != segments_.end() && next->first < end) ++next;
    if (next != last) segments_.erase(last, next);
    return;
  }
  Map::iterator next = found;
  while (next != segments_.end() && next->first < end) ++next;
  if (next != found) found = segments_.erase(found, next);
  segments_.emplace_hint(found, begin, Segment{end, writer, kNone, true});
}

}  // namespace resident::graph
