// Mutations of one realistic graph, as a wrong builder or a damaged file would make them: each is
// found by its code. Most have consequences with other codes; codes_test.cc triggers each code
// alone.
//
// The graph is two layers of a decode step with an explicit order: a product in tiles that signal
// one counter, the append to a cache, attention, and a residual.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/graph_maker.h"

namespace resident::testing {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

constexpr int kLayers = 2;
constexpr int64_t kWidth = 32;
constexpr int64_t kTiles = 4;
constexpr int64_t kTile = kWidth / kTiles;
constexpr int64_t kRows = 64;
// Nodes of a layer: four tiles, append, attention, residual.
constexpr int kLayerNodes = kTiles + 3;
constexpr int kAppend = kTiles;
constexpr int kAttention = kTiles + 1;
constexpr int kResidual = kTiles + 2;
// Counters of a layer: tiles, append, attention, residual.
constexpr uint32_t kLayerCounters = 4;

GraphMaker Decoder() {
  GraphMaker g;
  g.Scalar("pos", 0, kRows - 1);
  g.Input("x", {1, kWidth});
  g.Counters(kLayers * kLayerCounters);
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string l = std::to_string(layer);
    const uint32_t first = static_cast<uint32_t>(layer) * kLayerCounters;
    g.Weight("w" + l, {kWidth, kWidth});
    g.State("cache" + l, {1, 1, kRows, kWidth});
    // One memory for the activations of all layers, so that they overwrite each other.
    if (layer == 0) {
      g.Activation("qkv", {1, kWidth}).Activation("attended", {1, 1, 1, kWidth});
      g.Activation("h0", {1, kWidth});
    }
    const std::string in = layer == 0 ? "x" : "h0";
    const std::string out = layer + 1 == kLayers ? "y" : "h0";
    if (layer + 1 == kLayers) g.Output("y", {1, kWidth});
    for (int64_t t = 0; t < kTiles; ++t) {
      g.Call("gemv", {in, View("w" + l, {kTile, kWidth}, t * kTile * kWidth), None(),
                      View("qkv", {1, kTile}, t * kTile)});
      g.Signal(first);
      if (layer > 0) g.Wait(first - 1, 1);
    }
    const Arg heads = View("qkv", {1, 1, 1, kWidth});
    g.Call("kv_append", {heads, "cache" + l, S("pos")}).Wait(first, kTiles).Signal(first + 1);
    g.Call("attention",
           {heads, "cache" + l, "cache" + l, None(), "attended", F(1), I(0), S("pos", 1, 1)});
    g.Wait(first, kTiles).Wait(first + 1).Signal(first + 2);
    g.Call("add", {in, View("attended", {1, kWidth}), out}).Wait(first + 2).Signal(first + 3);
  }
  return g;
}

struct Mutation {
  const char* name;
  std::function<void(GraphMaker&)> change;
  int code;
};

GraphMaker& SetBlocks(GraphMaker& g, uint32_t blocks) {
  g.graph.set_blocks(blocks);
  for (int n = 0; n < g.graph.nodes_size(); ++n) {
    g.node(n).set_block(static_cast<uint32_t>(n) % blocks);
  }
  return g;
}

const std::vector<Mutation>& Mutations() {
  static const auto* const mutations = new std::vector<Mutation>{
      {"cycle",
       [](GraphMaker& g) {
         g.node(kAppend).add_waits()->set_counter(2);
         g.node(kAppend).mutable_waits(1)->set_threshold(1);
       },
       501},
      {"partial wait of a shared counter",
       [](GraphMaker& g) { g.node(kAppend).mutable_waits(0)->set_threshold(kTiles - 1); }, 504},
      {"dropped wait", [](GraphMaker& g) { g.node(kResidual).clear_waits(); }, 507},
      {"attention before the append",
       [](GraphMaker& g) { g.graph.mutable_nodes()->SwapElements(kAppend, kAttention); }, 407},
      {"wait for itself", [](GraphMaker& g) { g.node(kAppend).set_signals(0); }, 505},
      {"counter out of range", [](GraphMaker& g) { g.node(kAppend).set_signals(999); }, 104},
      {"tensor that does not exist",
       [](GraphMaker& g) { g.node(0).mutable_arguments(0)->mutable_tensor()->set_name("x9"); },
       104},
      {"cache too small for the position",
       [](GraphMaker& g) { g.tensor(2).mutable_shape(2)->set_size(kRows - 1); }, 203},
      {"position beyond the capacity",
       [](GraphMaker& g) { g.graph.mutable_scalars(0)->set_most(kRows); }, 203},
      {"argument computed out of range",
       [](GraphMaker& g) { g.node(kAppend).mutable_arguments(2)->mutable_scalar()->set_addend(1); },
       203},
      {"tile past the end",
       [](GraphMaker& g) {
         g.node(3).mutable_arguments(3)->mutable_tensor()->set_offset(kWidth - kTile + 1);
       },
       203},
      {"tile of weights past the end",
       [](GraphMaker& g) {
         g.node(3).mutable_arguments(1)->mutable_tensor()->set_offset(kWidth * kWidth);
       },
       203},
      {"K larger than the input",
       [](GraphMaker& g) {
         v1::GraphView& view = *g.node(0).mutable_arguments(1)->mutable_tensor();
         view.mutable_shape(1)->set_size(kWidth + 8);
         view.add_strides(kWidth + 8);
         view.add_strides(1);
       },
       207},
      {"negative shape", [](GraphMaker& g) { g.tensor(3).mutable_shape(1)->set_size(-32); }, 201},
      {"dtype exchanged", [](GraphMaker& g) { g.tensor(1).set_dtype(v1::DTYPE_I32); }, 205},
      {"missing tile",
       [](GraphMaker& g) {
         // Its counter keeps its number of signals.
         *g.node(2).mutable_arguments(1) = g.node(1).arguments(1);
         *g.node(2).mutable_arguments(3) = g.node(1).arguments(3);
         g.graph.clear_counters();
         for (v1::GraphNode& node : *g.graph.mutable_nodes()) {
           node.clear_waits();
           node.clear_signals();
         }
       },
       404},
      {"doubled tile",
       [](GraphMaker& g) {
         v1::GraphNode again = g.node(1);
         again.set_name("again");
         again.clear_signals();
         *g.graph.add_nodes() = again;
         // After all tiles of the first layer in the list, but ordered after none of them.
         for (int n = g.graph.nodes_size() - 1; n > kTiles; --n) {
           g.graph.mutable_nodes()->SwapElements(n, n - 1);
         }
         // What follows waits for it.
         g.graph.add_counters();
         const uint32_t counter = static_cast<uint32_t>(g.graph.counters_size() - 1);
         g.node(kTiles).set_signals(counter);
         for (int n = kTiles + 1; n < g.graph.nodes_size(); ++n) {
           v1::GraphWait& wait = *g.node(n).add_waits();
           wait.set_counter(counter);
           wait.set_threshold(1);
         }
       },
       509},
      {"write to a weight",
       [](GraphMaker& g) {
         v1::GraphArgument& out = *g.node(kResidual).mutable_arguments(2);
         out.mutable_tensor()->set_name("w0");
         out.mutable_tensor()->add_shape()->set_size(1);
         out.mutable_tensor()->add_shape()->set_size(kWidth);
       },
       402},
      {"counter that starts above 0",
       [](GraphMaker& g) { g.graph.mutable_counters(1)->set_initial(1); }, 506},
      {"queue order against the waits",
       [](GraphMaker& g) {
         SetBlocks(g, 2);
         // The append of the first layer waits for the last node of its own block.
         v1::GraphNode& append = g.node(kAppend);
         v1::GraphNode& last = g.node(g.graph.nodes_size() - 1);
         last.set_block(append.block());
         last.clear_waits();
         append.add_waits()->set_counter(last.signals());
         append.mutable_waits(1)->set_threshold(1);
       },
       510},
      {"removed order of an overwrite",
       [](GraphMaker& g) {
         // The tiles of the second layer overwrite what the first layer's attention reads. They
         // also read its result, so they get another input.
         for (int t = 0; t < kTiles; ++t) {
           v1::GraphNode& tile = g.node(kLayerNodes + t);
           tile.mutable_arguments(0)->mutable_tensor()->set_name("x");
           tile.clear_waits();
           v1::GraphWait& wait = *tile.add_waits();
           wait.set_counter(0);
           wait.set_threshold(kTiles);
         }
       },
       508},
      {"overlapping alias",
       [](GraphMaker& g) {
         // A second name for a part of the residual's memory, written without any order.
         g.Alias(v1::GraphTensor::KIND_ACTIVATION, "other", "h0", {1, kTile}, 0);
         g.Call("relu", {View("x", {1, kTile}), "other"});
       },
       508},
      {"more than 8,000 racing writers",
       [](GraphMaker& g) {
         g.State("s", {1, kWidth});
         for (int i = 0; i < 8200; ++i) g.Call("relu", {"x", "s"});
       },
       509},
      {"block out of range", [](GraphMaker& g) { SetBlocks(g, 3).node(5).set_block(3); }, 511},
      {"threshold above the producers",
       [](GraphMaker& g) { g.node(kAppend).mutable_waits(0)->set_threshold(kTiles + 1); }, 503},
      {"removed producer", [](GraphMaker& g) { g.node(kAppend).clear_signals(); }, 502},
      {"NaN",
       [](GraphMaker& g) {
         g.node(kAttention).mutable_arguments(5)->set_f64(std::numeric_limits<double>::quiet_NaN());
       },
       211},
      {"no nodes", [](GraphMaker& g) { g.graph.clear_nodes(); }, 107},
  };
  return *mutations;
}

TEST(GraphMutationsTest, GraphWithoutMutationIsAccepted) {
  const v1::GraphReport report = Decoder().Validate();
  EXPECT_TRUE(report.accepted());
  EXPECT_THAT(report.findings(), IsEmpty()) << FindingsText(report);
}

TEST(GraphMutationsTest, EachMutationIsFoundByItsCode) {
  for (const Mutation& mutation : Mutations()) {
    SCOPED_TRACE(mutation.name);
    GraphMaker g = Decoder();
    mutation.change(g);
    const v1::GraphReport report = g.Validate();
    EXPECT_THAT(ErrorCodes(report), Contains(mutation.code)) << FindingsText(report);
    EXPECT_FALSE(report.accepted());
  }
}

// Without its counters the same graph has a derived order, which is accepted too.
TEST(GraphMutationsTest, GraphWithoutCountersIsAccepted) {
  GraphMaker g = Decoder();
  g.graph.clear_counters();
  for (v1::GraphNode& node : *g.graph.mutable_nodes()) {
    node.clear_waits();
    node.clear_signals();
  }
  const v1::GraphReport report = g.Validate(/*dependencies=*/true);
  EXPECT_TRUE(report.accepted()) << FindingsText(report);
  EXPECT_EQ(report.longest_chain(), static_cast<uint64_t>(4 * kLayers));
}

}  // namespace
}  // namespace resident::testing
