#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "server/workload/flux_programs.h"

namespace resident {
namespace {

TEST(RunOrderTest, RunsInOrderAreNotMoved) {
  EXPECT_TRUE(OrderByProgram({}, 0).empty());
  const std::vector<uint32_t> ascending = {0, 0, 1, 4, 4};
  EXPECT_TRUE(OrderByProgram(ascending, 5).empty());
}

TEST(RunOrderTest, RunsOfAProgramAreAdjacentAndKeepTheirOrder) {
  const std::vector<uint32_t> index = {2, 0, 2, 1, 0};
  EXPECT_EQ(OrderByProgram(index, 4), (std::vector<uint32_t>{1, 4, 3, 0, 2}));
}

TEST(RunOrderTest, ScatteredRowsAreInTheFormerOrder) {
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    const uint32_t programs = 1 + random() % 50;
    std::vector<uint32_t> index(random() % 1000);
    for (uint32_t& program : index) program = random() % programs;
    const std::vector<uint32_t> order = OrderByProgram(index, programs);
    if (order.empty()) continue;
    std::vector<uint32_t> ordered(index.size());
    GatherRows(order, index.data(), sizeof(uint32_t), ordered.data());
    EXPECT_TRUE(std::is_sorted(ordered.begin(), ordered.end()));
    std::vector<uint32_t> again(index.size());
    ScatterRows(order, ordered.data(), sizeof(uint32_t), again.data());
    EXPECT_EQ(again, index);
  }
}

}  // namespace
}  // namespace resident
