#include "runtime/graph/region.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <numeric>

namespace resident::graph {
namespace {

constexpr __int128 kLargest = __int128{1} << 62;

// Looks for a piece of a region in a range of bytes. Where strides interleave, the number of
// combinations of repeats has no bound but the steps.
class PieceSearch {
 public:
  PieceSearch(const Region& region, uint64_t steps) : region_(region), left_(steps) {}

  // Whether a piece has a byte in [low, high). True also once the steps have been used up.
  bool Touches(int64_t low, int64_t high) { return Touches(0, region_.begin, low, high); }
  bool ended() const { return left_ == 0; }
  uint64_t left() const { return left_; }

 private:
  // The same for the pieces whose repeats from `d` on begin at `at`.
  bool Touches(size_t d, int64_t at, int64_t low, int64_t high) {
    if (--left_ == 0) return true;
    if (d == region_.repeats.size()) return at < high && at + region_.piece > low;
    const Region::Repeat& repeat = region_.repeats[d];
    // Bytes from the first to the last piece inside of one repeat.
    int64_t inside = region_.piece;
    for (size_t k = d + 1; k < region_.repeats.size(); ++k) {
      inside += region_.repeats[k].stride * (region_.repeats[k].count - 1);
    }
    // The repeats whose hull meets the range.
    const int64_t gap = low - at - inside;
    int64_t first = gap < 0 ? 0 : gap / repeat.stride + 1;
    for (; first < repeat.count; ++first) {
      const int64_t begin = at + first * repeat.stride;
      if (begin >= high) return false;
      if (begin >= low && begin + inside <= high) return true;
      if (Touches(d + 1, begin, low, high)) return true;
    }
    return false;
  }

  const Region& region_;
  uint64_t left_;
};

// Whether the pieces are apart because all strides are multiples of one distance, as columns of one
// matrix are.
bool AreInDifferentColumns(const Region& a, const Region& b) {
  int64_t distance = 0;
  for (const Region* const region : {&a, &b}) {
    for (const Region::Repeat& repeat : region->repeats) {
      distance = std::gcd(distance, repeat.stride);
    }
  }
  if (distance == 0) return false;
  // From a piece of `a` to the next piece of `b`, modulo the distance.
  const int64_t gap = ((b.begin - a.begin) % distance + distance) % distance;
  return gap >= a.piece && gap + b.piece <= distance;
}

}  // namespace

uint64_t Region::pieces() const {
  uint64_t count = 1;
  for (const Repeat& repeat : repeats) {
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(repeat.count), &count)) {
      return ~uint64_t{0};
    }
  }
  return count;
}

int64_t Region::end() const {
  int64_t last = begin + piece;
  for (const Repeat& repeat : repeats) last += repeat.stride * (repeat.count - 1);
  return last;
}

std::optional<ByteRange> FindHull(absl::Span<const Extent> extents, int64_t offset,
                                  int64_t element_bytes) {
  __int128 low = offset;
  __int128 high = static_cast<__int128>(offset) + element_bytes;
  for (const Extent& extent : extents) {
    const __int128 span = static_cast<__int128>(extent.stride) * (extent.size - 1);
    (span < 0 ? low : high) += span;
    if (low < -kLargest || high > kLargest) return std::nullopt;
  }
  if (low < -kLargest || high > kLargest) return std::nullopt;
  return ByteRange{static_cast<int64_t>(low), static_cast<int64_t>(high)};
}

Region MakeRegion(absl::Span<const Extent> extents, int64_t offset, int64_t element_bytes) {
  Region region;
  region.begin = offset;
  region.piece = element_bytes;
  for (const Extent& extent : extents) {
    assert(extent.size >= 1);
    if (extent.size <= 1 || extent.stride == 0) continue;
    if (extent.stride < 0) region.begin += extent.stride * (extent.size - 1);
    region.repeats.push_back({extent.size, std::abs(extent.stride)});
  }
  std::sort(region.repeats.begin(), region.repeats.end(),
            [](const Region::Repeat& a, const Region::Repeat& b) { return a.stride > b.stride; });
  while (!region.repeats.empty() && region.repeats.back().stride <= region.piece) {
    region.piece += region.repeats.back().stride * (region.repeats.back().count - 1);
    region.repeats.pop_back();
  }
  for (size_t d = region.repeats.size(); d > 1; --d) {
    Region::Repeat& outer = region.repeats[d - 2];
    const Region::Repeat& inner = region.repeats[d - 1];
    // Each outer repeat begins within the inner ones before it, or directly after them.
    const int64_t ahead = outer.stride / inner.stride;
    if (outer.stride % inner.stride != 0 || ahead > inner.count) continue;
    outer = {(outer.count - 1) * ahead + inner.count, inner.stride};
    region.repeats.erase(region.repeats.begin() + static_cast<ptrdiff_t>(d) - 1);
  }
  return region;
}

bool ElementsMayCoincide(absl::Span<const Extent> extents, int64_t element_bytes) {
  absl::InlinedVector<Extent, 8> dims;
  for (const Extent& extent : extents) {
    if (extent.size > 1) dims.push_back({extent.size, std::abs(extent.stride)});
  }
  std::sort(dims.begin(), dims.end(),
            [](const Extent& a, const Extent& b) { return a.stride < b.stride; });
  int64_t inside = element_bytes;
  for (const Extent& dim : dims) {
    if (dim.stride < inside) return true;
    inside += dim.stride * (dim.size - 1);
  }
  return false;
}

std::optional<bool> RegionsOverlap(const Region& a, const Region& b, CheckBudget& budget) {
  if (a.begin >= b.end() || b.begin >= a.end()) return false;
  if (AreInDifferentColumns(a, b)) return false;
  const bool a_is_smaller = a.pieces() <= b.pieces();
  PieceSearch search(a_is_smaller ? b : a, kMaxOverlapSteps);
  const bool overlap = !ForEachPiece(a_is_smaller ? a : b, [&](int64_t begin, int64_t end) {
    return !search.Touches(begin, end);
  });
  if (!budget.Take(kMaxOverlapSteps - search.left()) || search.ended()) return std::nullopt;
  return overlap;
}

bool IsDense(absl::Span<const Extent> extents, int64_t element_bytes) {
  int64_t expected = element_bytes;
  for (size_t d = extents.size(); d > 0; --d) {
    const Extent& extent = extents[d - 1];
    if (extent.size == 1) continue;
    if (extent.stride != expected) return false;
    expected *= extent.size;
  }
  return true;
}

}  // namespace resident::graph
