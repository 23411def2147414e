#include "kernels/sdk/index_map.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace resident {
namespace {

// The part of Tensor's interface that IndexMap uses.
struct View {
  std::vector<i64> dims;
  std::vector<i64> steps;
  u32 rank() const { return static_cast<u32>(dims.size()); }
  i64 shape(u32 d) const { return dims[d]; }
  i64 stride(u32 d) const { return steps[d]; }
};

View Dense(std::vector<i64> dims) {
  std::vector<i64> steps(dims.size());
  i64 step = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    steps[d] = step;
    step *= dims[d];
  }
  return {std::move(dims), std::move(steps)};
}

IndexMap<2> MakeMap(const View& out, const View& x) {
  IndexMap<2> map;
  map.Start(out);
  map.Add(0, x);
  map.Add(1, out);
  map.Finish();
  return map;
}

i64 FindOffset(const IndexMap<2>& map, i64 i) {
  i64 offsets[2];
  map.Offsets(i, offsets);
  return offsets[0];
}

// Offset of element i of `out` in an operand that broadcasts to it, computed from the definition.
i64 Expected(const View& out, const View& operand, i64 i) {
  i64 offset = 0;
  for (u32 d = out.rank(); d-- > 0;) {
    const i64 index = i % out.dims[d];
    i /= out.dims[d];
    const i64 at = static_cast<i64>(d) - (out.rank() - operand.rank());
    if (at >= 0 && operand.dims[at] != 1) offset += index * operand.steps[at];
  }
  return offset;
}

TEST(IndexMapTest, TheInnerDimensionBroadcasts) {
  const IndexMap<2> map = MakeMap(Dense({3, 4}), Dense({3, 1}));
  EXPECT_FALSE(map.dense());
  for (i64 i = 0; i < 12; ++i) EXPECT_EQ(FindOffset(map, i), i / 4);
}

TEST(IndexMapTest, DenseOperandsAreMergedIntoOneDimension) {
  const IndexMap<2> map = MakeMap(Dense({2, 1, 3, 4}), Dense({2, 1, 3, 4}));
  EXPECT_TRUE(map.dense());
  EXPECT_EQ(map.rank(), 1u);
  EXPECT_TRUE(MakeMap(Dense({1, 3, 4}), Dense({3, 4})).dense());
  EXPECT_TRUE(MakeMap(Dense({}), Dense({})).dense());
  EXPECT_TRUE(MakeMap(Dense({1, 1}), {{1}, {77}}).dense());
  EXPECT_FALSE(MakeMap(Dense({4}), {{4}, {2}}).dense());
  EXPECT_EQ(MakeMap(Dense({2, 3, 4}), Dense({1})).rank(), 1u);
}

TEST(IndexMapTest, RandomShapesStridesAndBroadcasts) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    View out;
    for (u32 d = random() % (kMaxRank + 1); d > 0; --d) out.dims.push_back(1 + random() % 3);
    out = Dense(out.dims);
    if (random() % 2 == 0) {
      for (i64& step : out.steps) step = static_cast<i64>(random() % 100);
    }
    View x;
    const size_t missing = out.dims.empty() ? 0 : random() % out.dims.size();
    for (size_t d = missing; d < out.dims.size(); ++d) {
      x.dims.push_back(random() % 3 == 0 ? 1 : out.dims[d]);
      x.steps.push_back(static_cast<i64>(random() % 41) - 20);
    }
    if (random() % 2 == 0) x = Dense(x.dims);
    const IndexMap<2> map = MakeMap(out, x);
    for (i64 i = 0; i < map.size(); ++i) {
      i64 offsets[2];
      map.Offsets(i, offsets);
      ASSERT_EQ(offsets[0], Expected(out, x, i));
      ASSERT_EQ(offsets[1], Expected(out, out, i));
    }
  }
}

// Only index arithmetic: no memory of this size is allocated.
TEST(IndexMapTest, MoreThanFourBillionElements) {
  const i64 kRows = (i64{1} << 32) + 5;
  const View out = Dense({kRows, 3});
  EXPECT_TRUE(MakeMap(out, out).dense());
  EXPECT_EQ(FindOffset(MakeMap(out, out), 3 * kRows - 1), 3 * kRows - 1);
  const IndexMap<2> column = MakeMap(out, Dense({kRows, 1}));
  for (const i64 i : {i64{0}, (i64{1} << 32) - 1, i64{1} << 32, 3 * kRows - 1}) {
    EXPECT_EQ(FindOffset(column, i), i / 3);
  }
  // Transposed: both the index and the strides need 64 bits.
  const IndexMap<2> transposed = MakeMap(out, {{kRows, 3}, {1, kRows}});
  EXPECT_EQ(FindOffset(transposed, 3 * kRows - 1), 3 * kRows - 1);
  EXPECT_EQ(FindOffset(transposed, 4), 1 + kRows);
  // Few elements, far apart.
  EXPECT_EQ(FindOffset(MakeMap(Dense({2, 2}), {{2, 2}, {i64{1} << 40, -(i64{1} << 35)}}), 3),
            (i64{1} << 40) - (i64{1} << 35));
  // At the border of 32-bit divisions.
  for (const i64 rows : {i64{0xffffffff} / 3, (i64{1} << 32) / 3 + 1}) {
    EXPECT_EQ(FindOffset(MakeMap(Dense({rows, 3}), Dense({rows, 1})), 3 * rows - 1), rows - 1);
  }
}

}  // namespace
}  // namespace resident
