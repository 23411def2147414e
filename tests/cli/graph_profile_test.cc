// GraphProfile with traces made by hand: sums by operator, the critical path, the file for
// Perfetto.
#include "client/cli/graph_profile.h"

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/proto_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace resident::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Nodes 0 "load" (copy) to 1 "left" (silu) and 2 "right" (relu), and both to 3 (add), which writes
// the stream "sums": node 4 is the copy of its record.
class GraphProfileTest : public ::testing::Test {
 protected:
  GraphProfileTest() {
    graph_.set_name("diamond \"1\"");
    AddTensor("a", v1::GraphTensor::KIND_ACTIVATION);
    AddTensor("sums", v1::GraphTensor::KIND_STREAM);
    AddTensor("row", v1::GraphTensor::KIND_ACTIVATION)->set_alias_of("sums");
    AddNode("load", "copy", "a");
    AddNode("left", "silu", "a");
    AddNode("right", "relu", "a");
    AddNode("", "add", "row");
    for (const auto& [node, after] : {std::pair(1, 0), {2, 0}, {3, 1}, {3, 2}}) {
      v1::GraphDependency& each = *report_.add_dependencies();
      each.set_node(static_cast<uint32_t>(node));
      each.set_after(static_cast<uint32_t>(after));
    }
  }

  v1::GraphTensor* AddTensor(const std::string& name, v1::GraphTensor::Kind kind) {
    v1::GraphTensor* const tensor = graph_.add_tensors();
    tensor->set_name(name);
    tensor->set_kind(kind);
    return tensor;
  }
  void AddNode(const std::string& name, const std::string& op, const std::string& tensor) {
    v1::GraphNode& node = *graph_.add_nodes();
    node.set_name(name);
    node.set_operator_(op);
    node.add_arguments()->mutable_tensor()->set_name(tensor);
  }
  void Event(uint32_t node, uint32_t worker, uint64_t wait, uint64_t begin, uint64_t end,
             uint64_t step = 0, uint32_t chunk = 0) {
    v1::GraphTraceEvent& event = *trace_.add_events();
    event.set_node(node);
    event.set_worker(worker);
    event.set_wait_ns(wait);
    event.set_begin_ns(begin);
    event.set_end_ns(end);
    event.set_step(step);
    event.set_chunk(chunk);
    event.set_version(2);
  }
  GraphProfile Profile() const {
    GraphProfile profile(graph_, report_);
    profile.Add(trace_);
    return profile;
  }
  // "node: gap + work" of each part.
  static std::vector<std::string> Path(const GraphProfile& profile) {
    std::vector<std::string> parts;
    for (const GraphProfile::PathPart& part : profile.CriticalPath()) {
      parts.push_back(std::to_string(profile.events()[part.event].node()) + ": " +
                      std::to_string(part.gap_ns) + " + " + std::to_string(part.work_ns));
    }
    return parts;
  }

  v1::Graph graph_;
  v1::GraphReport report_;
  v1::GraphTrace trace_;
};

TEST_F(GraphProfileTest, ThePathFollowsTheSlowBranch) {
  Event(3, 0, 1200, 1650, 1700);  // The order of the events has no meaning.
  Event(0, 0, 1000, 1010, 1100);
  Event(1, 0, 1100, 1110, 1200);
  Event(2, 1, 1000, 1150, 1600);
  Event(4, 0, 1700, 1700, 1730);
  // right begins 50 ns after load has ended, and the sum 50 ns after right; left is not on it.
  EXPECT_THAT(Path(Profile()), ElementsAre("0: 0 + 90", "2: 50 + 450", "3: 50 + 50", "4: 0 + 30"));
}

TEST_F(GraphProfileTest, ThePathFollowsAWorkerThatIsBusy) {
  Event(0, 0, 1000, 1000, 1100);
  Event(1, 0, 1100, 1100, 1500);
  Event(2, 0, 1500, 1510, 1600);  // One worker: right waits for left, of which it is independent.
  Event(3, 0, 1600, 1600, 1700);
  EXPECT_THAT(Path(Profile()), ElementsAre("0: 0 + 100", "1: 0 + 400", "2: 10 + 90", "3: 0 + 100"));
}

TEST_F(GraphProfileTest, TheLastChunkOfANodeCounts) {
  Event(0, 0, 1000, 1000, 1100, 0, 0);
  Event(0, 1, 1000, 1000, 1300, 0, 1);
  Event(0, 2, 1000, 1000, 1200, 0, 2);
  Event(1, 0, 1100, 1300, 1400);
  EXPECT_THAT(Path(Profile()), ElementsAre("0: 0 + 300", "1: 0 + 100"));
}

TEST_F(GraphProfileTest, EachStepHasItsPath) {
  Event(0, 0, 1000, 1000, 1100, 7);
  Event(0, 0, 1900, 2000, 2200, 8);
  Event(1, 0, 1100, 1100, 1150, 7);
  EXPECT_THAT(Path(Profile()), ElementsAre("0: 0 + 100", "1: 0 + 50", "0: 0 + 200"));
}

// Clocks of workers that differ: the path still ends, and has the step's time.
TEST_F(GraphProfileTest, ChunksThatSeemToOverlapTheirPredecessors) {
  Event(0, 0, 1000, 1000, 1100);
  Event(1, 1, 1000, 1090, 1300);
  Event(2, 2, 1000, 1000, 1000);
  Event(3, 2, 1000, 1290, 1290);
  Event(4, 0, 1100, 1310, 1400);
  EXPECT_THAT(Path(Profile()), ElementsAre("2: 0 + 0", "3: 290 + 0", "4: 20 + 90"));
  trace_.mutable_events(3)->set_end_ns(1305);
  EXPECT_THAT(Path(Profile()), ElementsAre("0: 0 + 100", "1: 0 + 200", "3: 0 + 5", "4: 5 + 90"));
}

TEST_F(GraphProfileTest, SumsByOperator) {
  Event(0, 0, 1000, 1010, 1100);
  Event(1, 0, 1100, 1110, 1200);
  Event(2, 1, 1000, 1150, 1600);
  Event(3, 0, 1200, 1650, 1700);
  Event(4, 0, 1700, 1700, 1730);
  const GraphProfile profile = Profile();
  std::vector<std::string> lines;
  for (const GraphProfile::Operator& op : profile.Operators(profile.CriticalPath())) {
    lines.push_back(op.name + " " + std::to_string(op.chunks) + " " + std::to_string(op.work_ns) +
                    " " + std::to_string(op.wait_ns) + " " + std::to_string(op.critical_ns));
  }
  // The record is copied by `copy`, too.
  EXPECT_THAT(lines, ElementsAre("relu 1 450 150 450", "copy 2 120 10 120", "silu 1 90 10 0",
                                 "add 1 50 450 50"));
  EXPECT_EQ(profile.CountWorkers(), 2u);
}

// load and left are executed as one, and so are load and right.
TEST_F(GraphProfileTest, NodesThatAreExecutedTogether) {
  for (const auto& [op, last] : {std::pair("load_silu", 1), {"load_relu", 2}}) {
    v1::GraphFusion& fusion = *report_.add_fusions();
    fusion.set_operator_(op);
    fusion.add_nodes(0);
    fusion.add_nodes(static_cast<uint32_t>(last));
  }
  Event(1, 0, 1000, 1010, 1200);
  Event(2, 1, 1000, 1010, 1600);
  Event(3, 0, 1200, 1650, 1700);
  const GraphProfile profile = Profile();
  EXPECT_THAT(Path(profile), ElementsAre("2: 0 + 590", "3: 50 + 50"));
  std::vector<std::string> names;
  for (const GraphProfile::Operator& op : profile.Operators({})) names.push_back(op.name);
  EXPECT_THAT(names, ElementsAre("load_relu", "load_silu", "add"));
}

// A node that waits for one that was fused away waits for the nodes that execute it.
TEST_F(GraphProfileTest, WaitingForNodesThatAreExecutedTogether) {
  v1::GraphFusion& fusion = *report_.add_fusions();
  fusion.set_operator_("silu_relu");
  fusion.add_nodes(1);
  fusion.add_nodes(2);
  report_.mutable_dependencies()->RemoveLast();  // add waits for left only.
  Event(0, 0, 1000, 1000, 1100);
  Event(2, 1, 1000, 1100, 1600);
  Event(3, 0, 1100, 1600, 1700);
  EXPECT_THAT(Path(Profile()), ElementsAre("0: 0 + 100", "2: 0 + 500", "3: 0 + 100"));
}

TEST_F(GraphProfileTest, FileForPerfetto) {
  Event(0, 3, 5'000'000'000, 5'000'000'123, 5'000'001'124);
  Event(3, 3, 5'000'001'124, 5'000'002'000, 5'000'002'000, 4, 9);
  Event(4, 5, 5'000'002'000, 5'000'002'000, 5'000'002'999, 4);
  const GraphProfile profile = Profile();
  const Json json = Json::parse(profile.PerfettoJson(profile.CriticalPath()));
  std::vector<std::string> lines;
  for (const Json& event : json["traceEvents"]) lines.push_back(event.dump());
  EXPECT_THAT(
      lines,
      ElementsAre(
          R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"graph diamond \"1\""}})",
          R"({"ph":"M","pid":1,"tid":3,"name":"thread_name","args":{"name":"worker 3"}})",
          R"({"ph":"M","pid":1,"tid":5,"name":"thread_name","args":{"name":"worker 5"}})",
          R"({"ph":"X","pid":1,"tid":3,"ts":0.0,"dur":1.001,"name":"load","cat":"copy","args":)"
          R"({"node":0,"operator":"copy","version":2,"step":0,"chunk":0,"waiting_ns":123,)"
          R"("critical_path":true}})",
          R"({"ph":"X","pid":1,"tid":3,"ts":1.877,"dur":0.0,"name":"#3","cat":"add","args":)"
          R"({"node":3,"operator":"add","version":2,"step":4,"chunk":9,"waiting_ns":876,)"
          R"("critical_path":true}})",
          R"({"ph":"X","pid":1,"tid":5,"ts":1.877,"dur":0.999,"name":"record of sums",)"
          R"("cat":"copy","args":{"node":4,"operator":"copy","version":2,"step":4,"chunk":0,)"
          R"("waiting_ns":0,"critical_path":true}})"));
}

TEST_F(GraphProfileTest, NothingAndNodesThatTheGraphDoesNotHave) {
  EXPECT_THAT(Path(Profile()), IsEmpty());
  EXPECT_TRUE(Json::accept(Profile().PerfettoJson({})));
  Event(5, 0, 1, 2, 3);
  EXPECT_THAT(Profile().events(), IsEmpty());
}

}  // namespace
}  // namespace resident::cli
