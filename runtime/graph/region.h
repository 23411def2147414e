// The memory that a strided view covers, as contiguous pieces of bytes.
//
// A Region is a view in normal form: strides are positive, dimensions of one element and of stride
// 0 are removed, and dimensions that continue or overlap each other in steps of one stride are
// merged, so that a dense tensor is one piece and a tile of columns has one piece for each row. The
// order of the elements is lost, and how often the view names each.
//
// Thread safety: plain values and pure functions.
//
//   const std::optional<Region> region = MakeRegion(axes, view.offset, element_bytes);
//   ForEachPiece(*region, [&](int64_t begin, int64_t end) { ...; return true; });
#ifndef RESIDENT_RUNTIME_GRAPH_REGION_H_
#define RESIDENT_RUNTIME_GRAPH_REGION_H_

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "runtime/graph/check_budget.h"

namespace resident::graph {

// A dimension: elements, and the distance between adjacent ones in bytes.
struct Extent {
  int64_t size = 1;
  int64_t stride = 0;
};

struct Region {
  struct Repeat {
    int64_t count;
    int64_t stride;
  };
  // First byte, and bytes of each piece.
  int64_t begin = 0;
  int64_t piece = 0;
  // Outermost (largest stride) first.
  absl::InlinedVector<Repeat, 3> repeats;

  // Number of pieces.
  uint64_t pieces() const;
  // One after the last byte.
  int64_t end() const;
};

// The range of bytes from `offset` on: [low, high). Nullopt: it does not fit 62 bits.
struct ByteRange {
  int64_t low = 0;
  int64_t high = 0;
};
std::optional<ByteRange> FindHull(absl::Span<const Extent> extents, int64_t offset,
                                  int64_t element_bytes);

// REQUIRES: FindHull has a value; sizes are at least 1.
Region MakeRegion(absl::Span<const Extent> extents, int64_t offset, int64_t element_bytes);

// Whether two elements of the view may share memory: unless each stride steps over everything that
// smaller strides cover. Tasks are refused for the same strides (runtime/model/strided_view.h).
bool ElementsMayCoincide(absl::Span<const Extent> extents, int64_t element_bytes);

// Whether the two have a byte in common. Nullopt: they may; to know it would take more than
// kMaxOverlapSteps, or the check has ended.
std::optional<bool> RegionsOverlap(const Region& a, const Region& b, CheckBudget& budget);

// Whether the elements are adjacent, in row-major order.
bool IsDense(absl::Span<const Extent> extents, int64_t element_bytes);

// Calls `visit(begin, end)` for each piece, until it returns false. Pieces may overlap if the view
// overlaps itself. Returns whether all were visited.
template <typename Visit>
bool ForEachPiece(const Region& region, Visit visit) {
  if (region.repeats.empty()) return visit(region.begin, region.begin + region.piece);
  absl::InlinedVector<int64_t, 3> index(region.repeats.size(), 0);
  int64_t at = region.begin;
  while (true) {
    if (!visit(at, at + region.piece)) return false;
    size_t d = region.repeats.size();
    while (d > 0) {
      const Region::Repeat& repeat = region.repeats[d - 1];
      if (++index[d - 1] < repeat.count) {
        at += repeat.stride;
        break;
      }
      index[d - 1] = 0;
      at -= repeat.stride * (repeat.count - 1);
      --d;
    }
    if (d == 0) return true;
  }
}

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_REGION_H_
