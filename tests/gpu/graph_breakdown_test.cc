#include "tests/gpu/graph_breakdown.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace resident::testing {
namespace {

using ::testing::ElementsAre;

// Nodes: a on two members, b after a on the first one, c on the second one, d after b and c.
constexpr const char* kOperators[] = {"add", "mul", "mul", "sum"};
const std::vector<std::vector<uint32_t>> kPredecessors = {{}, {0}, {}, {1, 2}};

GraphTraceEvent Event(uint32_t node, uint32_t step, uint32_t worker, uint64_t wait_us,
                      uint64_t begin_us, uint64_t end_us) {
  return {node, step, 0, worker, 1000 * wait_us, 1000 * begin_us, 1000 * end_us};
}

// Step 0 ends at 100. In step 1 the second member had waited since 90.
std::vector<GraphTraceEvent> Events() {
  return {
      Event(3, 0, 0, 80, 81, 100),     Event(0, 1, 0, 100, 102, 110), Event(0, 1, 1, 90, 102, 114),
      Event(1, 1, 0, 110, 115, 120),   Event(2, 1, 1, 114, 114, 117), Event(3, 1, 0, 120, 120, 130),
      Event(0, 2, 0, 130, 1000, 2000),
  };
}

TEST(GraphBreakdownTest, ThePathAddsUpToTheStep) {
  const GraphBreakdown breakdown =
      BreakDown({kOperators[0], kOperators[1], kOperators[2], kOperators[3]}, kPredecessors,
                Events(), /*step=*/1);
  EXPECT_EQ(breakdown.step_us, 30);
  EXPECT_EQ(breakdown.members, 2u);
  EXPECT_EQ(breakdown.work_us, 8 + 12 + 5 + 3 + 10);
  // What the second member waited before the step does not count.
  EXPECT_EQ(breakdown.wait_us, 2 + 2 + 5);
  ASSERT_EQ(breakdown.rows.size(), 3u);
  std::vector<std::string> names;
  double path_us = 0;
  for (const GraphBreakdown::Row& row : breakdown.rows) {
    names.push_back(row.op);
    path_us += row.path_us;
  }
  EXPECT_EQ(path_us, breakdown.step_us);
  EXPECT_THAT(names, ElementsAre("add", "sum", "mul"));
  const GraphBreakdown::Row& add = breakdown.rows[0];
  EXPECT_EQ(add.path_us, 14);
  EXPECT_EQ(add.longest_us, 12);
  // c waits for nothing: its critical time begins with the step.
  const GraphBreakdown::Row& mul = breakdown.rows[2];
  EXPECT_EQ(mul.nodes, 2u);
  EXPECT_EQ(mul.path_nodes, 1u);
  EXPECT_EQ(mul.path_us, 6);
  EXPECT_EQ(mul.critical_us, 6 + 17);
}

TEST(GraphBreakdownDeathTest, ANodeWithoutEvents) {
  EXPECT_EXIT(BreakDown({"add", "mul", "mul", "sum"}, kPredecessors, Events(), /*step=*/2),
              ::testing::ExitedWithCode(1), "no event of node 1 \\(mul\\) in step 2");
}

}  // namespace
}  // namespace resident::testing
