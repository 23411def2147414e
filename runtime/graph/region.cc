#include "runtime/graph/region.h"

#include <algorithm>
#include <cstdlib>

namespace resident::graph {
namespace {

constexpr __int128 kLargest = __int128{1} << 62;

// Whether a piece of the region, of those whose repeats from `d` on begin at `at`, has a byte in
// [low, high).
bool Touches(const Region& region, size_t d, int64_t at, int64_t low, int64_t high) {
  if (d == region.repeats.size()) return at < high && at + region.piece > low;
  const Region::Repeat& repeat = region.repeats[d];
  // Bytes from the first to the last piece inside of one repeat.
  int64_t inside = region.piece;
  for (size_t k = d + 1; k < region.repeats.size(); ++k) {
    inside += region.repeats[k].stride * (region.repeats[k].count - 1);
  }
  // The repeats whose hull meets the range.
  const int64_t gap = low - at - inside;
  int64_t first = gap < 0 ? 0 : gap / repeat.stride + 1;
  for (; first < repeat.count; ++first) {
    const int64_t begin = at + first * repeat.stride;
    if (begin >= high) return false;
    if (begin >= low && begin + inside <= high) return true;
    if (Touches(region, d + 1, begin, low, high)) return true;
  }
  return false;
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
    if (outer.stride != inner.stride * inner.count) continue;
    outer = {outer.count * inner.count, inner.stride};
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

std::optional<bool> RegionsOverlap(const Region& a, const Region& b, int64_t* budget) {
  if (a.begin >= b.end() || b.begin >= a.end()) return false;
  const bool a_is_smaller = a.pieces() <= b.pieces();
  const Region& few = a_is_smaller ? a : b;
  const Region& many = a_is_smaller ? b : a;
  if (few.pieces() > static_cast<uint64_t>(*budget)) return std::nullopt;
  *budget -= static_cast<int64_t>(few.pieces());
  bool overlap = false;
  ForEachPiece(few, [&](int64_t begin, int64_t end) {
    overlap = overlap || Touches(many, 0, many.begin, begin, end);
  });
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
