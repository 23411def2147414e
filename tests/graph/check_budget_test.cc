// What a check of a hostile graph costs: its steps and bytes, which do not depend on the machine.
// The bytes of the budget are compared with what the check really allocates.
#include "runtime/graph/check_budget.h"

#include <malloc.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/graph/check.h"
#include "server/graphs/graph_messages.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/graph_maker.h"

namespace {

std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> peak_live_bytes{0};

void* Allocate(size_t bytes) {
  void* const memory = malloc(bytes);
  if (memory == nullptr) abort();
  const int64_t live = live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  if (live > peak_live_bytes.load()) peak_live_bytes = live;
  return memory;
}
void Free(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }

namespace resident::testing {
namespace {

using graph::CheckBudget;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What one more call of Take or Hold can exceed a limit by.
constexpr uint64_t kStepSlack = graph::kMaxOverlapSteps + CheckBudget::kPollSteps;
constexpr uint64_t kByteSlack = 8 * CheckBudget::kReservedBytes;

struct Cost {
  v1::GraphReport report;
  uint64_t steps = 0;
  uint64_t bytes = 0;
  CheckBudget::End end = CheckBudget::End::kNone;
};

// Checks the graph, and expects that it stays within its budget, and its budget within what the
// check allocates.
Cost Check(const v1::Graph& message, CheckBudget::Options options = {}) {
  static const BuiltinCatalog* const catalog = new BuiltinCatalog;
  CheckBudget budget(std::move(options));
  Cost cost;
  const int64_t before = live_bytes;
  peak_live_bytes = before;
  timespec begin = {};
  timespec end = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  cost.report = ValidateGraph(message, *catalog, /*dependencies=*/false, {}, &budget);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  cost.steps = budget.steps();
  cost.bytes = budget.peak_bytes();
  cost.end = budget.end();
  const auto allocated = static_cast<uint64_t>(peak_live_bytes - before);
  std::printf("%zu bytes: %.1f of %.1f million steps, %.1f of %.1f MiB, %.1f allocated, %.3f s\n",
              message.ByteSizeLong(), 1e-6 * static_cast<double>(cost.steps),
              1e-6 * static_cast<double>(budget.step_limit()),
              static_cast<double>(cost.bytes) / (1 << 20),
              static_cast<double>(budget.byte_limit()) / (1 << 20),
              static_cast<double>(allocated) / (1 << 20),
              static_cast<double>(end.tv_sec - begin.tv_sec) +
                  1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec));
  EXPECT_LE(cost.steps, budget.step_limit() + kStepSlack);
  EXPECT_LE(cost.bytes, budget.byte_limit() + kByteSlack);
  EXPECT_LE(allocated, cost.bytes + kByteSlack);
  return cost;
}

// `sum` over all dimensions.
void Sum(GraphMaker& g, Arg x, Arg out) { g.Call("sum", {x, out, I(255)}); }

// Two messages like this one once took all threads for ever: the repeats of a view with equal
// strides have 100^8 combinations, and the byte that the search looks for lies between them.
TEST(CheckBudgetTest, EqualStridesAreOneDimension) {
  GraphMaker g;
  g.State("s", {D(3000)});
  Sum(g, View("s", std::vector<Dim>(8, D(100)), 0, std::vector<int64_t>(8, 2)), View("s", {}, 793));
  const Cost cost = Check(g.graph);
  EXPECT_TRUE(cost.report.accepted()) << FindingsText(cost.report);
  EXPECT_LT(cost.steps, 10'000u);
  // The same with an element that the view has.
  g.node(0).mutable_arguments(1)->mutable_tensor()->set_offset(794);
  EXPECT_THAT(ErrorCodes(Check(g.graph).report), ElementsAre(406));
}

// Of 16^8 combinations no two share a stride, and there is no distance that divides all strides.
TEST(CheckBudgetTest, ViewsWhoseOverlapIsTooExpensiveMayOverlap) {
  GraphMaker g;
  g.State("s", {D(130'000)});
  Sum(g, View("s", std::vector<Dim>(8, D(16)), 0, {1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007}),
      View("s", {}, 60'500));
  const Cost cost = Check(g.graph);
  EXPECT_THAT(ErrorCodes(cost.report), ElementsAre(106)) << FindingsText(cost.report);
  EXPECT_THAT(FindingsText(cost.report), HasSubstr("may overlap 'x'"));
  EXPECT_LT(cost.steps, 2 * graph::kMaxOverlapSteps);
}

// Every second element is written, then all are read 120 times: 2^23 parts of the state with their
// own history, each with 120 readers.
TEST(CheckBudgetTest, ReadersOfManyPartsAreBounded) {
  for (const int bits : {14, 18, 22, 23, 26}) {
    GraphMaker g;
    g.State("s", {D(int64_t{1} << bits)}).Output("y", {D(120)});
    g.Call("zero", {View("s", {D(int64_t{1} << (bits - 1))}, 0, {2})});
    for (int i = 0; i < 120; ++i) Sum(g, "s", View("y", {}, i));
    const Cost cost = Check(g.graph);
    if (bits == 14) {
      EXPECT_TRUE(cost.report.accepted()) << FindingsText(cost.report);
      // All parts share one list of readers.
      EXPECT_LT(cost.bytes, uint64_t{4} << 20);
    } else {
      EXPECT_THAT(ErrorCodes(cost.report), ElementsAre(106)) << FindingsText(cost.report);
      EXPECT_THAT(FindingsText(cost.report), HasSubstr("the check takes more than"));
    }
  }
}

// Each node reads the elements whose index has one bit, so that each element has other readers.
TEST(CheckBudgetTest, ReadersOfPartsThatShareNoneAreBounded) {
  for (const int bits : {10, 20}) {
    GraphMaker g;
    g.State("s", {D(int64_t{1} << bits)}).Output("y", {D(bits + 40)});
    for (int i = 0; i < bits; ++i) {
      Sum(g,
          View("s", {D(int64_t{1} << (bits - 1 - i)), D(int64_t{1} << i)}, 0, {int64_t{2} << i, 1}),
          View("y", {}, i));
    }
    for (int i = 0; i < 40; ++i) Sum(g, "s", View("y", {}, bits + i));
    EXPECT_EQ(Check(g.graph).report.accepted(), bits == 10);
  }
}

// Columns that are written again and again, in another order each time.
TEST(CheckBudgetTest, WritesOfManyPartsAreBounded) {
  for (const int bits : {8, 14, 20}) {
    GraphMaker g;
    g.State("s", {D(int64_t{256} << bits)});
    for (int i = 0; i < 60; ++i) {
      g.Call("zero", {View("s", {D(int64_t{1} << bits)}, i * 37 % 199, {200})});
    }
    EXPECT_EQ(Check(g.graph).report.accepted(), bits == 8);
  }
}

// The search for a cycle once looked at all producers of a counter from each node on its path.
TEST(CheckBudgetTest, TheWitnessOfACycleTakesLinearTime) {
  constexpr uint32_t kNodes = 120'000;
  constexpr uint32_t kHalf = kNodes / 2;
  GraphMaker g;
  g.State("s", {D(kNodes)}).Counters(kHalf + 1);
  g.graph.set_blocks(1);
  for (uint32_t i = 0; i < kHalf; ++i) {
    g.Call("zero", {View("s", {}, i)}).Signal(i).Block(0);
    g.Wait(kHalf, kHalf).Wait((i + 1) % kHalf);
  }
  for (uint32_t i = 0; i < kHalf; ++i) {
    g.Call("zero", {View("s", {}, kHalf + i)}).Signal(kHalf).Block(0).Wait(0);
  }
  const Cost cost = Check(g.graph);
  EXPECT_THAT(ErrorCodes(cost.report), ElementsAre(501)) << FindingsText(cost.report);
  EXPECT_LT(cost.steps, 64 * kNodes);
}

// Rows of bits and vector clocks are far larger than the graph.
TEST(CheckBudgetTest, ProofsOfExplicitOrdersAreBounded) {
  for (const uint32_t nodes : {64u, 4'000u}) {
    GraphMaker g;
    g.State("s", {D(nodes)}).Counters(static_cast<int>(nodes));
    for (uint32_t i = 0; i < nodes; ++i) {
      g.Call("zero", {View("s", {}, i)}).Signal(i);
      for (uint32_t w = 1; w <= 8 && w <= i; ++w) g.Wait(i - w);
    }
    EXPECT_TRUE(Check(g.graph).report.accepted());
    g.graph.set_blocks(graph::kMaxBlocks);
    for (uint32_t i = 0; i < nodes; ++i) g.node(static_cast<int>(i)).set_block(i);
    EXPECT_EQ(Check(g.graph).report.accepted(), nodes == 64);
  }
}

TEST(CheckBudgetTest, UpdatesOfManyScalarsAreBounded) {
  GraphMaker g;
  for (int i = 0; i < 64; ++i) {
    g.Scalar("n" + std::to_string(i), -1e300, 1e300, v1::DTYPE_F32);
    v1::GraphUpdate& update = *g.graph.mutable_loop()->add_updates();
    update.set_scalar("n" + std::to_string(i));
    update.set_addend(1);
  }
  g.graph.mutable_loop()->set_max_steps(graph::kMaxSteps);
  g.State("s", {D(4)}).Call("zero", {"s"});
  const Cost cost = Check(g.graph);
  EXPECT_TRUE(cost.report.accepted()) << FindingsText(cost.report);
  EXPECT_GT(cost.steps, graph::kMaxSteps);
}

// Each unknown name is compared with all others for a suggestion.
TEST(CheckBudgetTest, SuggestionsForUnknownNamesAreBounded) {
  GraphMaker g;
  for (int i = 0; i < 4096; ++i) {
    std::string name = std::to_string(i);
    name.resize(128, 'x');
    g.State(name, {D(4)});
  }
  for (int i = 0; i < 200; ++i) {
    std::string name = std::to_string(i);
    name.resize(128, 'y');
    g.Call("zero", {name.c_str()});
  }
  const Cost cost = Check(g.graph);
  EXPECT_EQ(cost.report.errors(), 200u);
  // An operator whose name has a megabyte.
  g.graph.clear_nodes();
  g.Call(std::string(1 << 20, 'o'), {});
  EXPECT_THAT(ErrorCodes(Check(g.graph).report), ::testing::Contains(104));
}

// The form for the builder is larger than the message.
TEST(CheckBudgetTest, ManyArgumentsAndDimensionsOfOneNodeAreBounded) {
  GraphMaker g;
  g.State("s", {D(4)}).Call("zero", {"s"});
  for (int i = 0; i < 2'000'000; ++i) g.node(0).add_arguments();
  EXPECT_FALSE(Check(g.graph).report.accepted());
  g.node(0).clear_arguments();
  v1::GraphView& view = *g.node(0).add_arguments()->mutable_tensor();
  view.set_name("s");
  for (int i = 0; i < 2'000'000; ++i) view.add_shape();
  EXPECT_FALSE(Check(g.graph).report.accepted());
  g.graph.clear_nodes();
  for (int i = 0; i < 2'000'000; ++i) g.graph.mutable_tensors(0)->add_shape();
  EXPECT_FALSE(Check(g.graph).report.accepted());
}

// Dimensions of 64 scalars: the nodes are visited for each end of each range.
TEST(CheckBudgetTest, VisitsForManyScalarsAreBounded) {
  GraphMaker g;
  for (int i = 0; i < 64; ++i) {
    const std::string name = "n" + std::to_string(i);
    g.Scalar(name, 1, 1000);
    g.State("s" + std::to_string(i), {name, D(1000)});
  }
  for (int i = 0; i < 20'000; ++i) {
    g.Call("zero", {View("s" + std::to_string(i % 64), {"n" + std::to_string(i % 64), D(1)},
                         i % 1000, {1000, 1})});
  }
  EXPECT_THAT(ErrorCodes(Check(g.graph).report), ElementsAre(106));
}

TEST(CheckBudgetTest, ACheckThatIsCancelledEndsSoonAndSaysNothingAboutTheGraph) {
  GraphMaker g;
  g.State("s", {D(1 << 20)}).Output("y", {D(120)});
  g.Call("zero", {View("s", {D(1 << 18)}, 0, {2})});
  for (int i = 0; i < 120; ++i) Sum(g, "s", View("y", {}, i));
  uint64_t polls = 0;
  const Cost cost = Check(g.graph, {.cancelled = [&] { return ++polls == 100; }});
  EXPECT_EQ(cost.end, CheckBudget::End::kCancelled);
  EXPECT_FALSE(cost.report.accepted());
  EXPECT_THAT(cost.report.findings(), IsEmpty());
  EXPECT_EQ(polls, 100u);
  EXPECT_LT(cost.steps, 101 * CheckBudget::kPollSteps);
}

TEST(CheckBudgetTest, ACheckWhoseMemoryIsRefusedEndsAndSaysNothingAboutTheGraph) {
  GraphMaker g;
  g.State("s", {D(1 << 20)}).Call("zero", {View("s", {D(1 << 18)}, 0, {2})});
  uint64_t reserved = 0;
  const Cost cost = Check(g.graph, {.reserve = [&](uint64_t bytes) {
                            if (reserved + bytes > (uint64_t{4} << 20)) return false;
                            reserved += bytes;
                            return true;
                          }});
  EXPECT_EQ(cost.end, CheckBudget::End::kMemory);
  EXPECT_FALSE(cost.report.accepted());
  EXPECT_THAT(cost.report.findings(), IsEmpty());
  EXPECT_EQ(reserved, cost.bytes);
}

// By hand: messages of about 64 MiB, each of one kind of element. Prints what they cost:
//   check_budget_test --gtest_also_run_disabled_tests --gtest_filter='*LargestMessages'
TEST(CheckBudgetTest, DISABLED_LargestMessages) {
  constexpr int kNodes = 1 << 20;
  {
    GraphMaker g;  // Views of many parts, in as many nodes as there may be.
    g.State("s", {D(int64_t{1} << 32)});
    for (int i = 0; i < kNodes; ++i) {
      g.Call("zero", {View("s", {D(1 << 10), D(1 << 10)}, i % 1000, {1 << 21, 1 << 10})});
    }
    Check(g.graph);
  }
  {
    GraphMaker g;  // Overlaps that are too expensive, in each node.
    g.State("s", {D(130'000)});
    for (int i = 0; i < kNodes; ++i) {
      Sum(g,
          View("s", std::vector<Dim>(8, D(16)), 0,
               {1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007}),
          View("s", {}, 60'500));
    }
    Check(g.graph);
  }
  {
    GraphMaker g;  // Every node depends on all nodes before it.
    g.State("s", {D(kNodes)}).Output("y", {D(1)});
    for (int i = 0; i < kNodes / 2; ++i) {
      g.Call("zero", {View("s", {}, i)});
      Sum(g, "s", "y");
    }
    Check(g.graph);
  }
  {
    GraphMaker g;  // Arguments only.
    g.State("s", {D(4)}).Call("zero", {"s"});
    for (int i = 0; i < (32 << 20); ++i) g.node(0).add_arguments();
    Check(g.graph);
  }
}

}  // namespace
}  // namespace resident::testing
