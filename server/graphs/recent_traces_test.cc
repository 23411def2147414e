#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/graphs/graphs.h"

namespace resident {
namespace {

GraphTraceEvent Event(uint32_t node, uint64_t begin_ns) {
  GraphTraceEvent event{};
  event.node = node;
  event.begin_ns = begin_ns;
  event.end_ns = begin_ns + 5;
  return event;
}

graph::Graph TwoNodes() {
  graph::Graph graph;
  graph.name = std::string(100, 'g');
  graph.nodes.resize(2);
  graph.nodes[0].name = "first";
  graph.nodes[1].name = "second";
  graph.nodes[0].op = graph.nodes[1].op = 0;
  graph.operators.resize(1);
  graph.operators[0].name = "add";
  return graph;
}

TEST(RecentTracesTest, PartsOfARunAreOneTraceWithTheNodesThatRan) {
  RecentTraces traces(/*keep=*/true);
  const graph::Graph graph = TwoNodes();
  uint64_t first = 0, second = 0;
  traces.Add(graph, {Event(1, 10)}, &first);
  traces.Add(graph, {Event(0, 10)}, &second);
  traces.Add(graph, {Event(2, 20), Event(1, 30)}, &first);
  EXPECT_NE(first, second);
  const auto list = traces.List();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].number, second);
  EXPECT_EQ(list[1].number, first);
  EXPECT_EQ(list[1].events.size(), 3u);
  ASSERT_EQ(list[1].nodes.size(), 2u);
  EXPECT_EQ(list[1].nodes.at(1).name, "second");
  EXPECT_EQ(list[1].nodes.at(1).operator_name, "add");
  EXPECT_EQ(list[1].nodes.at(2).operator_name, "copy");  // The record of a stream.
  EXPECT_EQ(list[1].graph.size(), RecentTraces::kMaxNameBytes);
}

TEST(RecentTracesTest, RunsAndEventsAreLimited) {
  RecentTraces traces(/*keep=*/true);
  const graph::Graph graph = TwoNodes();
  uint64_t oldest = 0;
  traces.Add(graph, {Event(0, 1)}, &oldest);
  for (size_t i = 0; i < RecentTraces::kMaxTraces; ++i) {
    uint64_t number = 0;
    const std::vector<GraphTraceEvent> many(RecentTraces::kMaxEvents - 1, Event(0, 1));
    traces.Add(graph, many, &number);
    traces.Add(graph, many, &number);
  }
  traces.Add(graph, {Event(0, 1)}, &oldest);  // It was replaced by newer ones.
  const auto list = traces.List();
  ASSERT_EQ(list.size(), RecentTraces::kMaxTraces);
  EXPECT_EQ(list.back().number, oldest + 1);
  for (const RecentTraces::Trace& trace : list) {
    EXPECT_EQ(trace.events.size(), RecentTraces::kMaxEvents);
    EXPECT_EQ(trace.dropped, RecentTraces::kMaxEvents - 2);
  }
}

TEST(RecentTracesTest, NothingIsKeptUnlessItIsAskedFor) {
  RecentTraces traces(/*keep=*/false);
  uint64_t number = 0;
  traces.Add(TwoNodes(), {Event(0, 1)}, &number);
  EXPECT_TRUE(traces.List().empty());
}

}  // namespace
}  // namespace resident
