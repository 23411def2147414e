// Which nodes of a graph are fused, and which must not be. What fused graphs compute is compared in
// fused_runs_test.cc.
#include "runtime/graph/fuse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/graph/builtin_catalog.h"
#include "tests/graph/checked_graph.h"
#include "tests/graph/graph_maker.h"

namespace resident::testing {
namespace {

using ::testing::ElementsAre;
using Kind = v1::GraphTensor;

// The built-in operators, some of which have another version that is active or on trial.
class ChangedCatalog final : public graph::OperatorCatalog {
 public:
  explicit ChangedCatalog(std::set<std::string> changed = {}) : changed_(std::move(changed)) {}
  absl::StatusOr<graph::OperatorInfo> Find(const std::string& name,
                                           uint32_t version) const override {
    absl::StatusOr<graph::OperatorInfo> info = builtin_.Find(name, version);
    if (info.ok()) info->builtin_serves = !changed_.contains(name);
    return info;
  }

 private:
  const BuiltinCatalog builtin_;
  const std::set<std::string> changed_;
};

// Activations of float32 with K = 64 columns, and weights of bfloat16 with N = 32 rows.
constexpr int64_t kColumns = 64;
constexpr int64_t kRows = 32;

class FuseTest : public ::testing::Test {
 protected:
  FuseTest() {
    g_.Tensor(Kind::KIND_INPUT, "x", {D(1), D(kColumns)});
    AddWeight("norm", {D(kColumns)});
    for (const char* const name : {"w", "v"}) AddWeight(name, {D(kRows), D(kColumns)});
    // States need not be written.
    g_.Activation("normed", {1, kColumns}).State("y", {1, kRows}).State("z", {1, kRows});
  }

  void AddWeight(const std::string& name, std::vector<Dim> shape,
                 v1::DType dtype = v1::DTYPE_BF16) {
    g_.Tensor(Kind::KIND_WEIGHT, name, std::move(shape), dtype);
  }
  // normed = rmsnorm(x), y = normed * w, and often z from the same.
  void AddNormAndProduct(const Arg& out = "y") {
    g_.Call("rmsnorm", {"x", "norm", "normed"}).Call("gemv", {"normed", "w", None(), out});
  }

  graph::CheckedGraph Fused(const ChangedCatalog& catalog = ChangedCatalog()) {
    std::optional<graph::CheckedGraph> checked = CheckBuiltinGraph(g_.graph);
    EXPECT_TRUE(checked.has_value()) << FindingsText(g_.Validate());
    if (!checked.has_value()) return {};
    graph::Fuse(catalog, &*checked);
    return *std::move(checked);
  }
  // The operators of the nodes that are executed, in their order.
  static std::vector<std::string> Operators(const graph::CheckedGraph& checked) {
    std::vector<std::string> names;
    for (const graph::Node& node : checked.graph.nodes) {
      names.push_back(checked.graph.operators[node.op].name);
    }
    return names;
  }
  std::vector<std::string> Executed(const ChangedCatalog& catalog = ChangedCatalog()) {
    return Operators(Fused(catalog));
  }
  static std::vector<uint32_t> Written(const graph::Fusion::Fused& fused) {
    std::vector<uint32_t> indices;
    for (const graph::Fusion::Written& each : fused.written) indices.push_back(each.index);
    return indices;
  }

  GraphMaker g_;
};

// --- A norm and products ---------------------------------------------------------

TEST_F(FuseTest, ANormAndAProduct) {
  AddNormAndProduct();
  g_.Call("relu", {"y", "z"});
  const graph::CheckedGraph checked = Fused();
  EXPECT_THAT(Operators(checked), ElementsAre("rmsnorm_gemv", "relu"));
  ASSERT_EQ(checked.fusion.fused.size(), 1u);
  EXPECT_EQ(checked.fusion.fused[0].node, 0u);
  EXPECT_THAT(Written(checked.fusion.fused[0]), ElementsAre(0, 1));
  // The arguments: x, norm, w, no bias, y; eps has its default.
  const auto arguments = checked.graph.ArgumentsOf(checked.graph.nodes[0]);
  ASSERT_EQ(arguments.size(), 5u);
  const auto name = [&](size_t i) { return checked.graph.TensorName(arguments[i].tensor); };
  EXPECT_EQ(name(0) + " " + name(1) + " " + name(2) + " " + name(4), "x norm w y");
  EXPECT_EQ(arguments[3].kind, graph::Argument::Kind::kNoTensor);
  // Reports are about the graph as it was written.
  EXPECT_EQ(checked.WrittenIndex(0), 1u);
  EXPECT_EQ(checked.WrittenIndex(1), 2u);
  EXPECT_EQ(checked.WrittenIndex(2), 3u);  // The copy of the first record.
  EXPECT_EQ(checked.WrittenName(0), "gemv1");
  EXPECT_EQ(checked.OtherNames(0), "rmsnorm0");
  EXPECT_EQ(checked.OtherNames(1), "");
  std::vector<std::string> operators;
  for (const graph::OperatorInfo& op : checked.written_operators()) operators.push_back(op.name);
  EXPECT_THAT(operators, ElementsAre("rmsnorm", "gemv", "relu"));
}

TEST_F(FuseTest, NodesWithoutNamesAreCalledByTheirIndices) {
  AddNormAndProduct();
  for (v1::GraphNode& node : *g_.graph.mutable_nodes()) node.clear_name();
  const graph::CheckedGraph checked = Fused();
  EXPECT_EQ(checked.WrittenName(0), "#1");
  EXPECT_EQ(checked.OtherNames(0), "#0");
}

TEST_F(FuseTest, EachProductComputesTheNorm) {
  g_.Call("rmsnorm", {"x", "norm", "normed", F(1e-5)});
  g_.Call("gemv", {"normed", "w", None(), "y"}).Call("gemv", {"normed", "v", None(), "z"});
  const graph::CheckedGraph checked = Fused();
  EXPECT_THAT(Operators(checked), ElementsAre("rmsnorm_gemv", "rmsnorm_gemv"));
  ASSERT_EQ(checked.fusion.fused.size(), 2u);
  EXPECT_THAT(Written(checked.fusion.fused[0]), ElementsAre(0, 1));
  EXPECT_THAT(Written(checked.fusion.fused[1]), ElementsAre(0, 2));
  for (const graph::Node& node : checked.graph.nodes) {
    EXPECT_EQ(checked.graph.ArgumentsOf(node).back().number, 1e-5);
  }
  // They do not wait for each other any more.
  EXPECT_EQ(checked.order.size(), 0u);
}

// The same memory, once more: the norm of the second product is another value.
TEST_F(FuseTest, MemoryThatIsUsedAgain) {
  AddNormAndProduct();
  g_.Call("rmsnorm", {"x", "norm", "normed"}).Call("gemv", {"normed", "v", None(), "z"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv", "rmsnorm_gemv"));
}

TEST_F(FuseTest, ANormThatAnotherNodeReadsStays) {
  AddNormAndProduct();
  g_.Output("other", {1, kColumns}).Call("relu", {"normed", "other"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "gemv", "relu"));
}

TEST_F(FuseTest, ANormOfWhichANodeReadsAPartStays) {
  AddNormAndProduct();
  g_.Output("other", {8}).Call("relu", {View("normed", {D(8)}, 3), "other"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "gemv", "relu"));
}

TEST_F(FuseTest, ANormOfWhichAPartIsReplacedStays) {
  g_.Call("rmsnorm", {"x", "norm", "normed"}).Call("fill", {View("normed", {D(8)}, 3), F(1)});
  g_.Call("gemv", {"normed", "w", None(), "y"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "fill", "gemv"));
}

TEST_F(FuseTest, OutputsStatesAndStreamsStay) {
  for (const auto kind : {Kind::KIND_OUTPUT, Kind::KIND_STATE, Kind::KIND_STREAM}) {
    const GraphMaker before = g_;
    const std::string name = "kept";
    std::vector<Dim> shape = {D(1), D(kColumns)};
    if (kind == Kind::KIND_STREAM) shape.insert(shape.begin(), D(1));
    g_.Tensor(kind, name, shape);
    g_.Call("rmsnorm", {"x", "norm", name}).Call("gemv", {name, "w", None(), "y"});
    EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "gemv")) << Kind::Kind_Name(kind);
    g_ = before;
  }
}

// An alias of the stop tensor's memory.
TEST_F(FuseTest, TheStopTensorStays) {
  AddNormAndProduct();
  g_.Tensor(Kind::KIND_ACTIVATION, "stop", {D(1)}, v1::DTYPE_I32);
  g_.graph.mutable_tensors(g_.graph.tensors_size() - 1)->set_alias_of("normed");
  g_.graph.mutable_loop()->set_max_steps(2);
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv"));
  g_.graph.mutable_loop()->mutable_stop()->set_tensor("stop");
  g_.graph.mutable_loop()->mutable_stop()->add_values(1);
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "gemv"));
}

TEST_F(FuseTest, AnInputThatIsOverwrittenBeforeTheProduct) {
  g_.State("s", {1, kColumns});
  g_.Call("rmsnorm", {"s", "norm", "normed"});
  const GraphMaker norm = g_;
  g_.Call("fill", {View("s", {D(1)}, 5), F(1)}).Call("gemv", {"normed", "w", None(), "y"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "fill", "gemv"));
  g_ = norm;  // Behind it, it does not matter.
  g_.Call("gemv", {"normed", "w", None(), "y"}).Call("fill", {View("s", {D(1)}, 5), F(1)});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv", "fill"));
}

TEST_F(FuseTest, AProductThatOverwritesTheInputOfTheNorm) {
  g_.State("s", {1, kColumns});
  AddWeight("square", {D(kColumns), D(kColumns)});
  g_.Call("rmsnorm", {"s", "norm", "normed"}).Call("gemv", {"normed", "square", None(), "s"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "gemv"));
}

TEST_F(FuseTest, OfSeveralReadersAllOrNoneAreFused) {
  AddWeight("floats", {D(kRows), D(kColumns)}, v1::DTYPE_F32);
  AddNormAndProduct();
  g_.Call("gemv", {"normed", "floats", None(), "z"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "gemv", "gemv"));
}

// --- What prevents a fusion --------------------------------------------------------

TEST_F(FuseTest, GraphsThatAreNotToBeFused) {
  AddNormAndProduct();
  g_.graph.set_fuse(true);
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv"));
  g_.graph.set_fuse(false);
  const graph::CheckedGraph checked = Fused();
  EXPECT_THAT(Operators(checked), ElementsAre("rmsnorm", "gemv"));
  EXPECT_TRUE(graph::StaysFused(checked.fusion, ChangedCatalog({"gemv"})));
}

TEST_F(FuseTest, NodesWithAVersionAreNotFused) {
  AddNormAndProduct();
  for (const int node : {0, 1}) {
    g_.node(node).set_version(1);
    EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "gemv")) << node;
    g_.node(node).clear_version();
  }
}

TEST_F(FuseTest, NodesWithWaitsAndSignalsAreNotFused) {
  g_.Counters(1);
  g_.Call("rmsnorm", {"x", "norm", "normed"}).Signal(0);
  g_.Call("gemv", {"normed", "w", None(), "y"}).Wait(0);
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "gemv"));
}

TEST_F(FuseTest, NodesWithABlockAreNotFused) {
  g_.graph.set_blocks(1);
  g_.Call("rmsnorm", {"x", "norm", "normed"}).Block(0);
  g_.Call("gemv", {"normed", "w", None(), "y"}).Block(0);
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm", "gemv"));
}

TEST_F(FuseTest, NodesAreFusedWhileTheBuiltInVersionsServe) {
  AddNormAndProduct();
  for (const char* const changed : {"rmsnorm", "gemv", "rmsnorm_gemv"}) {
    const graph::CheckedGraph checked = Fused(ChangedCatalog({changed}));
    EXPECT_THAT(Operators(checked), ElementsAre("rmsnorm", "gemv")) << changed;
    // To be fused once the other version has gone.
    EXPECT_TRUE(graph::StaysFused(checked.fusion, ChangedCatalog({changed})));
    EXPECT_FALSE(graph::StaysFused(checked.fusion, ChangedCatalog()));
  }
  const graph::CheckedGraph checked = Fused(ChangedCatalog({"neg"}));
  EXPECT_THAT(Operators(checked), ElementsAre("rmsnorm_gemv"));
  EXPECT_TRUE(graph::StaysFused(checked.fusion, ChangedCatalog()));
  EXPECT_FALSE(graph::StaysFused(checked.fusion, ChangedCatalog({"gemv"})));
}

TEST_F(FuseTest, AGraphWithoutSuchNodesDependsOnNoOperator) {
  g_.Call("neg", {View("x", {D(1), D(kRows)}), "y"});
  const graph::CheckedGraph checked = Fused();
  EXPECT_TRUE(graph::StaysFused(checked.fusion, ChangedCatalog({"gemv"})));
  EXPECT_EQ(checked.WrittenIndex(7), 7u);
  EXPECT_EQ(checked.WrittenName(0), "neg0");
}

TEST_F(FuseTest, ACheckThatHasEndedLeavesTheGraph) {
  AddNormAndProduct();
  std::optional<graph::CheckedGraph> checked = CheckBuiltinGraph(g_.graph);
  ASSERT_TRUE(checked.has_value());
  graph::CheckBudget budget({.cancelled = [] { return true; }});
  EXPECT_FALSE(budget.Take(graph::CheckBudget::kPollSteps));
  graph::Fuse(ChangedCatalog(), &*checked, &budget);
  EXPECT_THAT(Operators(*checked), ElementsAre("rmsnorm", "gemv"));
}

// --- Limits of the operators ---------------------------------------------------------

class FuseLimitsTest : public FuseTest {
 protected:
  // rmsnorm and gemv of this form.
  struct Form {
    int64_t vectors = 1;
    int64_t columns = kColumns;
    v1::DType x = v1::DTYPE_F32;
    v1::DType normed = v1::DTYPE_F32;
    v1::DType norm = v1::DTYPE_BF16;
    v1::DType w = v1::DTYPE_BF16;
    bool dynamic = false;
  };
  bool IsFused(const Form& form) {
    g_ = GraphMaker();
    if (form.dynamic) g_.Scalar("rows", 1, static_cast<double>(form.vectors));
    const Dim rows = form.dynamic ? D("rows") : D(form.vectors);
    g_.Tensor(Kind::KIND_INPUT, "x", {rows, D(form.columns)}, form.x);
    g_.Tensor(Kind::KIND_ACTIVATION, "normed", {rows, D(form.columns)}, form.normed);
    AddWeight("norm", {D(form.columns)}, form.norm);
    AddWeight("w", {D(4), D(form.columns)}, form.w);
    g_.Tensor(Kind::KIND_OUTPUT, "y", {rows, D(4)});
    g_.Call("rmsnorm", {"x", "norm", "normed"}).Call("gemv", {"normed", "w", None(), "y"});
    return Executed().size() == 1;
  }
};

TEST_F(FuseLimitsTest, OneVector) {
  EXPECT_TRUE(IsFused({}));
  EXPECT_TRUE(IsFused({.columns = 7}));
  EXPECT_TRUE(IsFused({.columns = 10240}));
  EXPECT_FALSE(IsFused({.columns = 10241}));
  EXPECT_TRUE(IsFused({.norm = v1::DTYPE_F16, .w = v1::DTYPE_F16}));
  EXPECT_FALSE(IsFused({.norm = v1::DTYPE_F32}));
  EXPECT_FALSE(IsFused({.norm = v1::DTYPE_F16}));
  EXPECT_FALSE(IsFused({.norm = v1::DTYPE_F32, .w = v1::DTYPE_F32}));
}

TEST_F(FuseLimitsTest, SeveralVectors) {
  EXPECT_TRUE(IsFused({.vectors = 2}));
  EXPECT_TRUE(IsFused({.vectors = 16}));
  EXPECT_FALSE(IsFused({.vectors = 17}));
  EXPECT_TRUE(IsFused({.vectors = 2, .columns = 10272}));
  EXPECT_TRUE(IsFused({.vectors = 2, .columns = 65536}));
  EXPECT_FALSE(IsFused({.vectors = 2, .columns = 65568}));
  EXPECT_FALSE(IsFused({.vectors = 2, .columns = 72}));
  EXPECT_FALSE(IsFused({.vectors = 2, .norm = v1::DTYPE_F16, .w = v1::DTYPE_F16}));
  EXPECT_FALSE(IsFused({.vectors = 2, .dynamic = true}));
}

// A value of 16 bits is rounded, which the fused operator would not do.
TEST_F(FuseLimitsTest, OnlyFloatsAreLeftOut) {
  EXPECT_FALSE(IsFused({.normed = v1::DTYPE_BF16}));
  EXPECT_FALSE(IsFused({.x = v1::DTYPE_BF16}));
}

// --- The other patterns ----------------------------------------------------------

class FusePatternsTest : public FuseTest {
 protected:
  FusePatternsTest() {
    g_.Activation("a", {1, kRows}).Activation("b", {1, kRows}).Activation("c", {1, kRows});
    g_.Tensor(Kind::KIND_INPUT, "r", {D(1), D(kRows)});
    AddWeight("bias", {D(kRows)});
  }
};

TEST_F(FusePatternsTest, AProductAndAResidual) {
  for (const bool first : {false, true}) {
    const GraphMaker before = g_;
    g_.Call("gemv", {"x", "w", None(), "a"});
    g_.Call("add", first ? std::vector<Arg>{"r", "a", "y"} : std::vector<Arg>{"a", "r", "y"});
    const graph::CheckedGraph checked = Fused();
    EXPECT_THAT(Operators(checked), ElementsAre("gemv"));
    ASSERT_EQ(checked.fusion.fused.size(), 1u);
    EXPECT_THAT(Written(checked.fusion.fused[0]), ElementsAre(0, 1));
    EXPECT_EQ(checked.WrittenName(0), "add1");
    const graph::Argument& added = checked.graph.ArgumentsOf(checked.graph.nodes[0])[2];
    EXPECT_EQ(checked.graph.TensorName(added.tensor), "r");
    EXPECT_EQ(added.view.rank, 1);
    g_ = before;
  }
}

TEST_F(FusePatternsTest, AProductAndABias) {
  g_.Call("gemv", {"x", "w", None(), "a"}).Call("add", {"a", "bias", "y", F(1)});
  EXPECT_THAT(Executed(), ElementsAre("gemv"));
}

TEST_F(FusePatternsTest, ProductsOfSeveralVectors) {
  g_.Input("xs", {3, kColumns}).Activation("as", {3, kRows}).Input("rs", {3, kRows});
  g_.Output("ys", {3, kRows}).Output("zs", {3, kRows});
  g_.Call("gemv", {"xs", "w", None(), "as"}).Call("add", {"as", "rs", "ys"});
  g_.Call("gemv", {"xs", "v", None(), "as"}).Call("add", {"as", "bias", "zs"});
  const graph::CheckedGraph checked = Fused();
  EXPECT_THAT(Operators(checked), ElementsAre("gemv", "gemv"));
  EXPECT_EQ(checked.graph.ArgumentsOf(checked.graph.nodes[0])[2].view.rank, 2);
}

// One row for all vectors, in two dimensions: gemv refuses this shape.
TEST_F(FusePatternsTest, ARowThatIsNoBiasOfSeveralVectors) {
  g_.Input("xs", {3, kColumns}).Activation("as", {3, kRows}).Output("ys", {3, kRows});
  g_.Call("gemv", {"xs", "w", None(), "as"}).Call("add", {"as", "r", "ys"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "add"));
}

TEST_F(FusePatternsTest, SumsThatAreNoBias) {
  g_.Call("gemv", {"x", "w", None(), "a"});
  const GraphMaker product = g_;
  g_.Call("add", {"a", "r", "y", F(2)});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "add")) << "another factor";
  g_ = product;
  g_.Call("add", {"a", View("r", {D(1), D(1)}), "y"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "add")) << "a number";
  g_ = product;
  g_.Call("add", {"a", "a", "y"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "add")) << "the product twice";
  g_ = product;
  g_.Output("wide", {2, kRows}).Call("add", {"a", "r", "wide"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "add")) << "another shape";
  g_ = product;
  g_.node(0).mutable_arguments(2)->mutable_tensor()->set_name("bias");
  g_.Call("add", {"a", "r", "y"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "add")) << "a product with a bias";
}

// Layers of float32: x is [R, K], f and h are weights, a, b and c results.
class FuseLayersTest : public FuseTest {
 protected:
  explicit FuseLayersTest(int64_t vectors = 3) {
    g_ = GraphMaker();
    g_.Input("x", {vectors, kColumns}).Input("r", {vectors, kRows}).Input("row", {1, kRows});
    AddWeight("f", {D(kRows), D(kColumns)}, v1::DTYPE_F32);
    AddWeight("h", {D(kColumns), D(kRows)}, v1::DTYPE_F32);
    AddWeight("bias", {D(kRows)}, v1::DTYPE_F32);
    for (const char* const name : {"a", "b", "c"}) g_.Activation(name, {vectors, kRows});
    g_.State("y", {vectors, kRows}).State("z", {vectors, kRows});  // They need not be written.
  }
  // The arguments of the first node: tensors, - for none, and the activation.
  std::string Layer() {
    const graph::CheckedGraph checked = Fused();
    std::string text;
    for (const graph::Argument& argument : checked.graph.ArgumentsOf(checked.graph.nodes[0])) {
      if (!text.empty()) text += " ";
      if (argument.kind == graph::Argument::Kind::kTensor) {
        text += checked.graph.TensorName(argument.tensor);
      } else if (argument.kind == graph::Argument::Kind::kInteger) {
        text += std::to_string(argument.integer);
      } else {
        text += "-";
      }
    }
    return Operators(checked).front() + " " + text;
  }
};

TEST_F(FuseLayersTest, BiasActivationAndResidual) {
  g_.Call("gemv", {"x", "f", None(), "a"}).Call("add", {"bias", "a", "b"});
  g_.Call("gelu", {"b", "c", I(1)}).Call("add", {"r", "c", "y"});
  EXPECT_THAT(Executed(), ElementsAre("linear"));
  EXPECT_EQ(Layer(), "linear x f bias r y 3");
  const graph::CheckedGraph checked = Fused();
  ASSERT_EQ(checked.fusion.fused.size(), 1u);
  EXPECT_THAT(Written(checked.fusion.fused[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Executed(ChangedCatalog({"linear"})), ElementsAre("gemv", "add", "gelu", "add"));
}

TEST_F(FuseLayersTest, EachActivation) {
  const GraphMaker none = g_;
  for (const auto& [name, number] : std::vector<std::pair<const char*, int>>{
           {"relu", 1}, {"gelu", 2}, {"silu", 4}, {"sigmoid", 5}, {"tanh", 6}}) {
    g_ = none;
    g_.Call("gemv", {"x", "f", "bias", "a"}).Call(name, {"a", "y"});
    EXPECT_EQ(Layer(), "linear x f bias - y " + std::to_string(number));
  }
  g_ = none;
  g_.Call("linear", {"x", "f", None(), None(), "a"}).Call("relu", {"a", "y"});
  EXPECT_EQ(Layer(), "linear x f - - y 1");
}

TEST_F(FuseLayersTest, WhatIsAddedBeforeAnActivationIsNoResidual) {
  g_.Call("gemv", {"x", "f", None(), "a"}).Call("add", {"a", "r", "b"}).Call("relu", {"b", "y"});
  EXPECT_THAT(Executed(), ElementsAre("linear", "relu"));
  EXPECT_EQ(Layer(), "linear x f - r b 0");
}

TEST_F(FuseLayersTest, WhatIsNotFused) {
  const GraphMaker none = g_;
  g_.Call("linear", {"x", "f", None(), None(), "a", I(1)}).Call("tanh", {"a", "y"});
  EXPECT_THAT(Executed(), ElementsAre("linear", "tanh")) << "two activations";
  g_ = none;
  g_.Call("linear", {"x", "f", None(), None(), "a", I(1)}).Call("add", {"a", "bias", "y"});
  EXPECT_THAT(Executed(), ElementsAre("linear", "add")) << "a bias behind an activation";
  g_ = none;
  g_.Call("linear", {"x", "f", None(), "r", "a"}).Call("add", {"a", "r", "y"});
  EXPECT_THAT(Executed(), ElementsAre("linear", "add")) << "two residuals";
  g_ = none;
  g_.Call("gemv", {"x", "f", None(), "a"}).Call("add", {"a", "row", "y"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "add")) << "a residual of another shape";
  g_ = none;
  g_.Call("gemv", {"x", "f", None(), "a"}).Call("add", {"a", "r", "y", F(2)});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "add")) << "a factor";
  g_ = none;
  g_.Call("gemv", {"x", "f", None(), "a"}).Call("relu", {"a", "y"}).Call("tanh", {"a", "z"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "relu", "tanh")) << "two readers";
  g_ = none;
  AddWeight("w", {D(kRows), D(kColumns)});
  g_.Call("gemv", {"x", "w", None(), "a"}).Call("relu", {"a", "y"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "relu")) << "weights of bfloat16";
}

// The memory that the product reads is used again for the result: in one node it would be
// overwritten while others read it.
TEST_F(FuseLayersTest, AResultInPlaceOfTheInput) {
  g_.State("s", {3, kRows});
  AddWeight("square", {D(kRows), D(kRows)}, v1::DTYPE_F32);
  g_.Call("gemv", {"s", "square", None(), "a"}).Call("relu", {"a", "s"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "relu"));
}

class FuseThreeTest : public FusePatternsTest {
 protected:
  FuseThreeTest() {
    AddWeight("u", {D(8), D(kColumns)});
    // Views of one tensor, as the importer of models has them.
    g_.Activation("all", {1, 2 * kRows + 8});
    g_.Output("read", {1, 2 * kRows + 8});
  }
  Arg Part(int64_t first, int64_t rows) { return View("all", {D(1), D(rows)}, first, {rows, 1}); }
  // Queries, keys and values; `before_last`: called in front of the last product.
  template <typename Between>
  void AddThree(Between before_last) {
    g_.Call("rmsnorm", {"x", "norm", "normed", F(1e-5)});
    g_.Call("gemv", {"normed", "w", None(), Part(0, kRows)});
    g_.Call("gemv", {"normed", "v", "bias", Part(kRows, kRows)});
    before_last();
    g_.Call("gemv", {"normed", "u", None(), Part(2 * kRows, 8)});
  }
};

TEST_F(FuseThreeTest, QueriesKeysAndValues) {
  AddThree([] {});
  g_.Call("copy", {"all", "read"});
  const graph::CheckedGraph checked = Fused();
  EXPECT_THAT(Operators(checked), ElementsAre("rmsnorm_gemv_qkv", "copy"));
  ASSERT_EQ(checked.fusion.fused.size(), 1u);
  EXPECT_THAT(Written(checked.fusion.fused[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(checked.WrittenName(0), "gemv3");
  EXPECT_EQ(checked.OtherNames(0), "rmsnorm0, gemv1, gemv2");
  const auto arguments = checked.graph.ArgumentsOf(checked.graph.nodes[0]);
  ASSERT_EQ(arguments.size(), 12u);
  const auto name = [&](size_t i) {
    return arguments[i].kind == graph::Argument::Kind::kNoTensor
               ? "-"
               : std::string(checked.graph.TensorName(arguments[i].tensor));
  };
  std::string names;
  for (size_t i = 0; i < 11; ++i) names += name(i) + " ";
  EXPECT_EQ(names, "x norm w v u - bias - all all all ");
  EXPECT_EQ(arguments[9].view.offset, kRows * 4);
  EXPECT_EQ(arguments[11].number, 1e-5);
}

TEST_F(FuseThreeTest, NodesBetweenThatDoNotMatter) {
  AddThree([&] { g_.Call("relu", {"r", "y"}); });
  g_.Call("copy", {"all", "read"});
  EXPECT_THAT(Executed(), ElementsAre("relu", "rmsnorm_gemv_qkv", "copy"));
}

// What the first products write is read, or written, before the last product.
TEST_F(FuseThreeTest, ResultsThatAreUsedBetween) {
  const GraphMaker before = g_;
  AddThree([&] { g_.Call("relu", {Part(0, kRows), "y"}); });
  g_.Call("copy", {"all", "read"});
  EXPECT_THAT(Executed(),
              ElementsAre("rmsnorm_gemv", "rmsnorm_gemv", "relu", "rmsnorm_gemv", "copy"));
  g_ = before;
  AddThree([&] { g_.Call("fill", {View("all", {D(1)}, 3), F(1)}); });
  g_.Call("copy", {"all", "read"});
  EXPECT_THAT(Executed(),
              ElementsAre("rmsnorm_gemv", "rmsnorm_gemv", "fill", "rmsnorm_gemv", "copy"));
  g_ = before;  // As the bias of the last one.
  AddThree([] {});
  g_.node(3).mutable_arguments(2)->Clear();
  *g_.node(3).mutable_arguments(2)->mutable_tensor() = g_.node(1).arguments(3).tensor();
  g_.node(3).mutable_arguments(2)->mutable_tensor()->mutable_shape(1)->set_size(8);
  g_.node(3).mutable_arguments(2)->mutable_tensor()->set_strides(0, 8);
  g_.Call("copy", {"all", "read"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv", "rmsnorm_gemv", "rmsnorm_gemv", "copy"));
}

// The same memory, written twice: the later product's value stays.
TEST_F(FuseThreeTest, ResultsThatOverlap) {
  AddThree([] {});
  g_.node(2).mutable_arguments(3)->mutable_tensor()->set_offset(4);
  g_.Call("fill", {"all", F(0)}).Call("copy", {"all", "read"});
  EXPECT_THAT(Executed(),
              ElementsAre("rmsnorm_gemv", "rmsnorm_gemv", "rmsnorm_gemv", "fill", "copy"));
}

TEST_F(FuseThreeTest, AnotherNormOrInput) {
  AddThree([] {});
  g_.Call("copy", {"all", "read"});
  const GraphMaker three = g_;
  g_.Call("gemv", {"normed", "w", None(), "y"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv_qkv", "copy", "rmsnorm_gemv"));
  g_ = three;
  AddWeight("norm2", {D(kColumns)});
  g_.Call("rmsnorm", {"x", "norm2", "normed", F(1e-5)}).Call("gemv", {"normed", "w", None(), "y"});
  g_.Call("rmsnorm", {"x", "norm2", "normed", F(1e-6)}).Call("gemv", {"normed", "v", None(), "z"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv_qkv", "copy", "rmsnorm_gemv", "rmsnorm_gemv"));
  EXPECT_THAT(Executed(ChangedCatalog({"rmsnorm_gemv_qkv"})),
              ElementsAre("rmsnorm_gemv", "rmsnorm_gemv", "rmsnorm_gemv", "copy", "rmsnorm_gemv",
                          "rmsnorm_gemv"));
}

TEST_F(FusePatternsTest, AResidualThatIsWrittenInPlace) {
  g_.State("s", {1, kRows});
  g_.Call("gemv", {"x", "w", None(), "a"}).Call("add", {"a", "s", "b"}).Call("copy", {"b", "s"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "copy"));
}

TEST_F(FusePatternsTest, ASumAndItsNorm) {
  AddWeight("other_norm", {D(kRows)});
  g_.Output("sum", {1, kRows});
  g_.Call("add", {"r", "r", "sum"}).Call("rmsnorm", {"sum", "other_norm", "y"});
  g_.Call("relu", {"sum", "z"});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_residual", "relu"));
}

TEST_F(FusePatternsTest, ASumThatIsReadBeforeItsNorm) {
  AddWeight("other_norm", {D(kRows)});
  g_.Call("add", {"r", "r", "a"})
      .Call("relu", {"a", "z"})
      .Call("rmsnorm", {"a", "other_norm", "y"});
  EXPECT_THAT(Executed(), ElementsAre("add", "relu", "rmsnorm"));
}

TEST_F(FusePatternsTest, ASumOfAnotherShape) {
  AddWeight("other_norm", {D(kRows)});
  g_.Call("add", {"r", "bias", "a"}).Call("rmsnorm", {"a", "other_norm", "y"});
  EXPECT_THAT(Executed(), ElementsAre("add", "rmsnorm"));
}

TEST_F(FusePatternsTest, SiluAndProduct) {
  for (const bool first : {false, true}) {
    const GraphMaker before = g_;
    g_.Call("silu", {"r", "a"});
    g_.Call("mul", first ? std::vector<Arg>{"a", "bias", "y"} : std::vector<Arg>{"bias", "a", "y"});
    EXPECT_THAT(Executed(), ElementsAre("silu_mul"));
    g_ = before;
  }
  g_.Call("silu", {"r", "a"}).Call("mul", {"a", "a", "y"});
  EXPECT_THAT(Executed(), ElementsAre("silu", "mul"));
}

TEST_F(FusePatternsTest, AGatedLayer) {
  g_.Call("rmsnorm", {"x", "norm", "normed"});
  g_.Call("gemv", {"normed", "w", None(), "a"}).Call("gemv", {"normed", "v", None(), "b"});
  g_.Call("silu", {"a", "c"}).Call("mul", {"c", "b", "y"});
  const graph::CheckedGraph checked = Fused();
  EXPECT_THAT(Operators(checked), ElementsAre("rmsnorm_gemv_silu_mul"));
  ASSERT_EQ(checked.fusion.fused.size(), 1u);
  EXPECT_THAT(Written(checked.fusion.fused[0]), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(checked.WrittenName(0), "mul4");
  EXPECT_EQ(checked.OtherNames(0), "rmsnorm0, gemv1, gemv2, silu3");
}

TEST_F(FusePatternsTest, GatedLayersThatStay) {
  g_.Call("gemv", {"x", "w", None(), "a"}).Call("gemv", {"x", "v", None(), "b"});
  g_.Call("silu_mul", {"a", "b", "y"});
  const GraphMaker gated = g_;
  EXPECT_THAT(Executed(), ElementsAre("gemv_silu_mul"));
  g_.node(1).mutable_arguments(2)->mutable_tensor()->set_name("bias");
  EXPECT_THAT(Executed(), ElementsAre("gemv", "gemv", "silu_mul")) << "a bias";
  g_ = gated;
  g_.graph.mutable_tensors(3)->set_dtype(v1::DTYPE_F16);
  EXPECT_THAT(Executed(), ElementsAre("gemv", "gemv", "silu_mul")) << "two dtypes";
  g_ = gated;
  g_.Call("relu", {"b", "z"});
  EXPECT_THAT(Executed(), ElementsAre("gemv", "gemv", "silu_mul", "relu")) << "another reader";
  g_ = gated;
  g_.Input("other", {1, kColumns});
  g_.node(1).mutable_arguments(0)->mutable_tensor()->set_name("other");
  EXPECT_THAT(Executed(), ElementsAre("gemv", "gemv", "silu_mul")) << "two inputs";
}

// --- Quantized weights -------------------------------------------------------------

class FuseQuantizedTest : public FusePatternsTest {
 protected:
  FuseQuantizedTest() {
    for (const std::string name : {"q", "p"}) {
      AddWeight(name, {D(kRows), D(kColumns)}, v1::DTYPE_I8);
      AddWeight(name + "4", {D(kRows), D(kColumns / 2)}, v1::DTYPE_U8);
      AddWeight(name + ".scales", {D(kRows), D(2)}, v1::DTYPE_F16);
      AddWeight(name + ".zeros", {D(kRows), D(2)}, v1::DTYPE_F16);
    }
  }
  void Quantized(const char* x, const std::string& q, const char* out, int64_t group = 32) {
    g_.Call("gemv_quant", {x, q, q.substr(0, 1) + ".scales", None(), out, I(group)});
  }
};

TEST_F(FuseQuantizedTest, ANormAndProducts) {
  g_.Call("rmsnorm", {"x", "norm", "normed"});
  Quantized("normed", "q", "y");
  g_.Call("gemv_quant_bias", {"normed", "p4", "p.scales", None(), "bias", "z", I(32)});
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv_quant", "rmsnorm_gemv_quant"));
}

TEST_F(FuseQuantizedTest, AResidual) {
  Quantized("x", "q", "a", 48);
  g_.Call("add", {"r", "a", "y"});
  EXPECT_THAT(Executed(), ElementsAre("gemv_quant_bias"));
}

TEST_F(FuseQuantizedTest, AGatedLayer) {
  g_.Call("rmsnorm", {"x", "norm", "normed"});
  Quantized("normed", "q", "a");
  Quantized("normed", "p", "b");
  g_.Call("silu_mul", {"a", "b", "y"});
  const GraphMaker gated = g_;
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv_quant_silu_mul"));
  Quantized("normed", "q", "z");
  EXPECT_THAT(Executed(), ElementsAre("rmsnorm_gemv_quant", "rmsnorm_gemv_quant", "silu_mul",
                                      "rmsnorm_gemv_quant"))
      << "another reader of the norm";
  g_ = gated;
  g_.node(1).mutable_arguments(0)->mutable_tensor()->set_name("x");
  EXPECT_THAT(Executed(), ElementsAre("gemv_quant", "rmsnorm_gemv_quant", "silu_mul"))
      << "two inputs";
}

TEST_F(FuseQuantizedTest, FormsThatAreDecodedMoreSlowly) {
  const auto is_fused = [&](const std::string& q, int64_t group, bool zeros) {
    const GraphMaker before = g_;
    g_.Call("rmsnorm", {"x", "norm", "normed"});
    Quantized("normed", q, "y", group);
    if (zeros) g_.node(1).mutable_arguments(3)->mutable_tensor()->set_name("q.zeros");
    const bool fused = Executed().size() == 1;
    g_ = before;
    return fused;
  };
  EXPECT_TRUE(is_fused("q", 32, false));
  EXPECT_TRUE(is_fused("q4", 32, false));
  EXPECT_FALSE(is_fused("q", 32, true));
  EXPECT_FALSE(is_fused("q", 48, false)) << "no power of two";
  g_.graph.mutable_tensors(1)->set_dtype(v1::DTYPE_F32);
  EXPECT_FALSE(is_fused("q", 32, false)) << "a norm of float32";
}

}  // namespace
}  // namespace resident::testing
