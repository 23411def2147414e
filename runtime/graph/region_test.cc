#include "runtime/graph/region.h"

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/graph/check_budget.h"

namespace resident::graph {
namespace {

// Every byte of a view, one by one.
std::set<int64_t> ListBytes(const std::vector<Extent>& extents, int64_t offset, int64_t element) {
  std::set<int64_t> first = {offset};
  for (const Extent& extent : extents) {
    std::set<int64_t> all;
    for (const int64_t at : first) {
      for (int64_t i = 0; i < extent.size; ++i) all.insert(at + i * extent.stride);
    }
    first = std::move(all);
  }
  std::set<int64_t> bytes;
  for (const int64_t at : first) {
    for (int64_t i = 0; i < element; ++i) bytes.insert(at + i);
  }
  return bytes;
}

std::set<int64_t> ListBytes(const Region& region) {
  std::set<int64_t> bytes;
  ForEachPiece(region, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) bytes.insert(i);
    return true;
  });
  return bytes;
}

TEST(RegionTest, HasTheBytesOfItsViewAndOverlapsWhatSharesOne) {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
  };
  int overlaps = 0;
  int gaps = 0;
  for (int round = 0; round < 5000; ++round) {
    constexpr int64_t kElements[] = {1, 2, 4};
    // Often a common factor of all strides, as of columns.
    const int64_t factor = below(2) == 0 ? 1 : 3;
    std::optional<Region> regions[2];
    std::set<int64_t> bytes[2];
    for (int i = 0; i < 2; ++i) {
      const int64_t element = kElements[below(3)];
      std::vector<Extent> extents(static_cast<size_t>(below(4)));
      for (Extent& extent : extents) {
        extent = {1 + below(5), element * factor * (below(13) - 2)};
      }
      const int64_t offset = 500 + element * below(40);
      regions[i] = MakeRegion(extents, offset, element);
      bytes[i] = ListBytes(extents, offset, element);
      ASSERT_EQ(ListBytes(*regions[i]), bytes[i]) << "round " << round;
    }
    bool common = false;
    for (const int64_t byte : bytes[0]) common = common || bytes[1].contains(byte);
    CheckBudget budget;
    ASSERT_EQ(RegionsOverlap(*regions[0], *regions[1], budget), common) << "round " << round;
    ++(common ? overlaps : gaps);
  }
  EXPECT_GT(overlaps, 500);
  EXPECT_GT(gaps, 500);
}

TEST(RegionTest, EqualAndOverlappingStridesAreOneRepeat) {
  const std::vector<Extent> equal(8, {100, 8});
  const Region region = MakeRegion(equal, 0, 4);
  ASSERT_EQ(region.repeats.size(), 1u);
  EXPECT_EQ(region.repeats[0].count, 8 * 99 + 1);
  // 0, 8, 16 and the same 16 further: 0, 8, ..., 32.
  EXPECT_EQ(MakeRegion(std::vector<Extent>{{2, 16}, {3, 8}}, 0, 4).pieces(), 5u);
  // 0, 8 and the same 24 further.
  EXPECT_EQ(MakeRegion(std::vector<Extent>{{2, 24}, {2, 8}}, 0, 4).pieces(), 4u);
}

}  // namespace
}  // namespace resident::graph
