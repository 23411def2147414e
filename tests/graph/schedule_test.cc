// Schedules of random graphs and of graphs whose best schedule is known.
#include "runtime/graph/schedule.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace resident::graph {
namespace {

// The nodes that one node waits for are those of the last Add.
struct Nodes {
  std::vector<NodeEstimate> estimates;
  std::vector<uint32_t> predecessors;

  // Returns its index.
  uint32_t Add(const std::vector<uint32_t>& waits, uint64_t chunks = 1, double bytes = 0,
               double operations = 0) {
    estimates.push_back({.bytes = bytes,
                         .operations = operations,
                         .chunks = chunks,
                         .predecessors = static_cast<uint32_t>(waits.size())});
    predecessors.insert(predecessors.end(), waits.begin(), waits.end());
    return static_cast<uint32_t>(estimates.size()) - 1;
  }
  Schedule Compute(uint32_t workers) const {
    return ComputeSchedule(estimates, predecessors, workers);
  }
};

std::vector<uint32_t> ListOf(const Schedule& schedule, uint32_t rank) {
  return {schedule.lists.begin() + schedule.list_begins[rank],
          schedule.lists.begin() + schedule.list_begins[rank + 1]};
}

std::vector<uint32_t> RanksOf(const Schedule& schedule, const GangNode& node) {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 0; i < node.ranks; ++i) ranks.push_back((node.first + i) % schedule.gang);
  return ranks;
}

// What a gang relies on.
void ExpectExecutable(const Nodes& nodes, const Schedule& schedule, uint32_t workers) {
  const auto count = static_cast<uint32_t>(nodes.estimates.size());
  ASSERT_GE(schedule.gang, 1u);
  ASSERT_LE(schedule.gang, std::min(workers, kMaxGang));
  ASSERT_EQ(schedule.nodes.size(), count);
  ASSERT_EQ(schedule.waits.size(), nodes.predecessors.size());
  ASSERT_EQ(schedule.list_begins.size(), schedule.gang + 1);
  EXPECT_EQ(schedule.list_begins.front(), 0u);
  EXPECT_EQ(schedule.list_begins.back(), schedule.lists.size());

  std::vector<std::vector<uint32_t>> lists(schedule.gang);
  std::vector<bool> signals(count);
  uint32_t first = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const GangNode& node = schedule.nodes[i];
    ASSERT_GE(node.ranks, 1u);
    ASSERT_LE(node.ranks, schedule.gang);
    ASSERT_LE(node.ranks, nodes.estimates[i].chunks);
    ASSERT_LT(node.first, schedule.gang);
    const std::vector<uint32_t> ranks = RanksOf(schedule, node);
    for (const uint32_t rank : ranks) lists[rank].push_back(i);
    ASSERT_EQ(node.first_wait, first);
    for (uint32_t w = 0; w < nodes.estimates[i].predecessors; ++w) {
      const uint32_t before = nodes.predecessors[first + w];
      const GangWait& wait = schedule.waits[first + w];
      const GangNode& other = schedule.nodes[before];
      EXPECT_EQ(wait.node, before);
      EXPECT_EQ(wait.first, other.first);
      EXPECT_EQ(wait.ranks, other.ranks);
      // Each member waits unless it has executed all of the predecessor itself.
      for (const uint32_t rank : ranks) {
        if (RanksOf(schedule, other) != std::vector<uint32_t>{rank}) signals[before] = true;
      }
    }
    first += nodes.estimates[i].predecessors;
  }
  for (uint32_t rank = 0; rank < schedule.gang; ++rank) {
    EXPECT_EQ(ListOf(schedule, rank), lists[rank]) << rank;
    EXPECT_FALSE(lists[rank].empty()) << "member " << rank << " of " << schedule.gang;
  }
  for (uint32_t i = 0; i < count; ++i) {
    EXPECT_EQ(schedule.nodes[i].signals, signals[i] ? 1u : 0u) << i;
  }
}

Nodes MakeRandom(std::mt19937_64& random, uint32_t count) {
  const auto below = [&](uint64_t n) { return random() % n; };
  const uint64_t max_waits = below(5);
  const uint64_t wide_of_16 = below(17);
  const uint64_t near = 1 + below(count);
  Nodes nodes;
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<uint32_t> waits;
    for (uint64_t w = i == 0 ? 0 : below(max_waits + 1); w > 0; --w) {
      waits.push_back(i - 1 - static_cast<uint32_t>(below(std::min<uint64_t>(i, near))));
    }
    std::sort(waits.begin(), waits.end());
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    const uint64_t chunks = below(16) < wide_of_16 ? 1 + below(300) : 1;
    nodes.Add(waits, chunks, static_cast<double>(below(1u << 24)),
              static_cast<double>(below(1u << 25)));
  }
  return nodes;
}

// What a node computes takes time as well as what it reads: the short ones share a member.
TEST(ScheduleTest, OperationsTakeTime) {
  Nodes nodes;
  const uint32_t begin = nodes.Add({});
  const uint32_t computes = nodes.Add({begin}, 1, /*bytes=*/1000, /*operations=*/1e7);
  std::vector<uint32_t> others;
  for (int i = 0; i < 4; ++i) others.push_back(nodes.Add({begin}, 1, /*bytes=*/1000));
  const Schedule schedule = nodes.Compute(2);
  ExpectExecutable(nodes, schedule, 2);
  ASSERT_EQ(schedule.gang, 2u);
  for (const uint32_t other : others) {
    EXPECT_NE(schedule.nodes[other].first, schedule.nodes[computes].first) << other;
  }
}

TEST(ScheduleTest, RandomGraphs) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Nodes nodes = MakeRandom(random, 1 + static_cast<uint32_t>(random() % 200));
    const auto workers = static_cast<uint32_t>(1 + random() % 150);
    ExpectExecutable(nodes, nodes.Compute(workers), workers);
    if (HasFailure()) FAIL() << "graph " << i << " with " << workers << " workers";
  }
}

// The projections of a layer: queries, keys and values.
TEST(ScheduleTest, ShortWideNodesThatWaitForTheSameDivideTheGang) {
  Nodes nodes;
  const uint32_t earlier = nodes.Add({}, 132, 1e6);
  const uint32_t before = nodes.Add({earlier}, 132, 1e6);
  nodes.Add({before}, 256, 8e6);
  nodes.Add({earlier, before}, 64, 2e6);
  const uint32_t last = nodes.Add({before}, 64, 2e6);
  nodes.Add({last}, 64, 2e6);  // Waits for another one.
  const Schedule schedule = nodes.Compute(132);
  ExpectExecutable(nodes, schedule, 132);
  EXPECT_EQ(schedule.nodes[2].ranks, 88u);
  EXPECT_EQ(schedule.nodes[3].ranks, 22u);
  EXPECT_EQ(schedule.nodes[4].ranks, 22u);
  std::vector<int> uses(132);
  for (uint32_t i = 2; i <= 4; ++i) {
    for (const uint32_t rank : RanksOf(schedule, schedule.nodes[i])) ++uses[rank];
  }
  EXPECT_EQ(uses, std::vector<int>(132, 1));
  EXPECT_EQ(schedule.nodes[5].ranks, 64u);
}

TEST(ScheduleTest, WideNodesDoNotDivideTheGangWithoutNeed) {
  Nodes nodes;
  // They have room beside each other.
  for (int i = 0; i < 2; ++i) nodes.Add({}, 66, 1e6);
  // They take long.
  const uint32_t before = nodes.Add({0, 1}, 132, 1e6);
  for (int i = 0; i < 2; ++i) nodes.Add({before}, 300, 1e9);
  const Schedule schedule = nodes.Compute(132);
  ExpectExecutable(nodes, schedule, 132);
  EXPECT_EQ(schedule.nodes[0].ranks, 66u);
  EXPECT_EQ(schedule.nodes[1].ranks, 66u);
  EXPECT_EQ(schedule.nodes[3].ranks, 132u);
  EXPECT_EQ(schedule.nodes[4].ranks, 132u);
}

TEST(ScheduleTest, MoreNodesThanMembersDoNotDivideThem) {
  Nodes nodes;
  for (int i = 0; i < 200; ++i) nodes.Add({}, 8, 1e3);
  const Schedule schedule = nodes.Compute(132);
  ExpectExecutable(nodes, schedule, 132);
  for (const GangNode& node : schedule.nodes) EXPECT_EQ(node.ranks, 8u);
}

TEST(ScheduleTest, AChainHasOneMember) {
  Nodes nodes;
  for (uint32_t i = 0; i < 1000; ++i) {
    nodes.Add(i == 0 ? std::vector<uint32_t>() : std::vector{i - 1}, 1, 100.0 * i);
  }
  const Schedule schedule = nodes.Compute(132);
  ExpectExecutable(nodes, schedule, 132);
  EXPECT_EQ(schedule.gang, 1u);
}

TEST(ScheduleTest, ABranchThatIsShorterThanASignalStaysOnItsMember) {
  Nodes nodes;
  uint32_t last = nodes.Add({});
  for (int i = 0; i < 100; ++i) {
    const uint32_t a = nodes.Add({last});
    const uint32_t b = nodes.Add({last});
    last = nodes.Add({a, b});
  }
  const Schedule schedule = nodes.Compute(132);
  ExpectExecutable(nodes, schedule, 132);
  EXPECT_EQ(schedule.gang, 1u);
}

TEST(ScheduleTest, EachOfSeveralChainsHasAMember) {
  Nodes nodes;
  for (uint32_t i = 0; i < 8 * 100; ++i) {
    nodes.Add(i < 8 ? std::vector<uint32_t>() : std::vector{i - 8});
  }
  const Schedule schedule = nodes.Compute(132);
  ExpectExecutable(nodes, schedule, 132);
  EXPECT_EQ(schedule.gang, 8u);
  for (const GangNode& node : schedule.nodes) EXPECT_EQ(node.signals, 0u);
}

TEST(ScheduleTest, IndependentNodesAreSpreadEvenly) {
  for (const uint32_t workers : {1u, 7u, 132u, 1000u, 5000u}) {
    Nodes nodes;
    for (int i = 0; i < 1000; ++i) nodes.Add({});
    const Schedule schedule = nodes.Compute(workers);
    ExpectExecutable(nodes, schedule, workers);
    ASSERT_EQ(schedule.gang, std::min(workers, 1000u));
    size_t min = 1000, max = 0;
    for (uint32_t rank = 0; rank < schedule.gang; ++rank) {
      min = std::min(min, ListOf(schedule, rank).size());
      max = std::max(max, ListOf(schedule, rank).size());
    }
    EXPECT_LE(max - min, 1u) << workers;
  }
}

TEST(ScheduleTest, AWideNodeHasAllMembers) {
  Nodes nodes;
  const uint32_t first = nodes.Add({});
  const uint32_t wide = nodes.Add({first}, 500, 1 << 20);
  nodes.Add({wide});
  const Schedule schedule = nodes.Compute(132);
  ExpectExecutable(nodes, schedule, 132);
  EXPECT_EQ(schedule.gang, 132u);
  EXPECT_EQ(schedule.nodes[wide].ranks, 132u);
  EXPECT_EQ(nodes.Compute(4).nodes[wide].ranks, 4u);
}

// A chain of nodes of four chunks needs four members; of three such chains, each needs its own.
TEST(ScheduleTest, TheGangIsAsLargeAsTheGraphIsWide) {
  for (const uint32_t chains : {1u, 3u}) {
    Nodes nodes;
    for (uint32_t i = 0; i < chains * 100; ++i) {
      nodes.Add(i < chains ? std::vector<uint32_t>() : std::vector{i - chains}, 4);
    }
    const Schedule schedule = nodes.Compute(132);
    ExpectExecutable(nodes, schedule, 132);
    EXPECT_EQ(schedule.gang, 4 * chains);
    for (uint32_t rank = 0; rank < schedule.gang; ++rank) {
      EXPECT_EQ(ListOf(schedule, rank).size(), 100u);
    }
  }
}

TEST(ScheduleTest, NoMoreMembersThanTheLayoutHasRoomFor) {
  Nodes nodes;
  nodes.Add({}, 1 << 20);
  EXPECT_EQ(nodes.Compute(100'000).gang, kMaxGang);
}

// Prints how long the largest image takes.
TEST(ScheduleTest, LargestGraphs) {
  std::mt19937_64 random(1);
  Nodes chain, independent, wide;
  for (uint32_t i = 0; i < kMaxImageNodes; ++i) {
    const std::vector<uint32_t> before =
        i == 0 ? std::vector<uint32_t>() : std::vector<uint32_t>{i - 1};
    chain.Add(before);
    wide.Add(before, 132);
    independent.Add({});
  }
  Nodes mixed = MakeRandom(random, kMaxImageNodes);
  for (const auto& [name, nodes] : {std::pair{"chain", &chain},
                                    {"independent", &independent},
                                    {"wide", &wide},
                                    {"random", &mixed}}) {
    for (const uint32_t workers : {132u, 2048u}) {
      const auto begin = std::chrono::steady_clock::now();
      const Schedule schedule = nodes->Compute(workers);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      std::printf("%u nodes, %s, %u workers: %.1f ms, %u members\n", kMaxImageNodes, name, workers,
                  took.count(), schedule.gang);
      EXPECT_EQ(schedule.nodes.size(), kMaxImageNodes);
    }
  }
}

}  // namespace
}  // namespace resident::graph
