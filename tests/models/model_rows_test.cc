#include "server/models/model_rows.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "runtime/graph/check.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/fuse.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/registry_catalog.h"
#include "server/graphs/reader/graph_reader.h"
#include "tests/graph/graph_maker.h"

namespace resident {
namespace {

using namespace testing;  // GraphMaker and its arguments.

constexpr int64_t kWidth = 4;

class ModelRowsTest : public ::testing::Test {
 protected:
  ModelRows Find(const GraphMaker& maker, bool fuse = false) {
    const RegistryCatalog catalog(*registry_);
    graph::Findings findings;
    graph::CheckedGraph checked{ReadGraph(maker.graph, catalog, &findings), {}};
    graph::GraphCheck check = graph::CheckGraph(checked.graph, &findings);
    for (const graph::Finding& finding : findings.list()) {
      EXPECT_TRUE(finding.warning) << finding.message;
    }
    EXPECT_TRUE(check.accepted);
    if (!check.accepted) return {};
    checked.order = *std::move(check.order);
    if (fuse) graph::Fuse(catalog, &checked);
    const auto interface = ReadInterface(checked.graph);
    EXPECT_TRUE(interface.ok()) << interface.status();
    return interface.ok() ? FindRows(checked, *interface) : ModelRows();
  }
  void ExpectIndependent(const GraphMaker& maker) {
    for (const bool fuse : {false, true}) {
      const ModelRows rows = Find(maker, fuse);
      EXPECT_TRUE(rows.independent()) << rows.reason;
      EXPECT_EQ(rows.max, 8u);
    }
  }
  void ExpectMixed(const GraphMaker& maker, const std::string& reason) {
    const ModelRows rows = Find(maker);
    EXPECT_FALSE(rows.independent());
    EXPECT_NE(rows.reason.find(reason), std::string::npos) << rows.reason;
  }
  // x and y with n rows, 1 to 8.
  static GraphMaker Rows(int64_t out = kWidth) {
    GraphMaker g;
    g.Scalar("n", 1, 8).Input("x", {D("n"), D(kWidth)}).Output("y", {D("n"), D(out)});
    return g;
  }

  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
};

TEST_F(ModelRowsTest, OperatorsOfRowsAreIndependent) {
  GraphMaker g = Rows();
  g.Weight("w", {D(kWidth), D(kWidth)}).Weight("b", {D(kWidth)});
  for (const char* name : {"a", "c", "d", "e", "f"}) g.Activation(name, {D("n"), D(kWidth)});
  g.Activation("m", {D("n")}).Activation("k", {D("n"), D(int64_t{1})});
  g.Call("gemv", {"x", "w", "b", "a"}).Call("relu", {"a", "c"}).Call("add", {"c", "b", "d"});
  g.Call("softmax", {"d", "e"}).Call("layernorm", {"e", "b", "b", "f"});
  g.Call("mean", {"f", "k", Named("axes", I(2))}).Call("max", {"f", "m", Named("axes", I(2))});
  g.Call("mul", {"f", "k", "y"});
  ExpectIndependent(g);
}

TEST_F(ModelRowsTest, ViewsWithinARowAreIndependent) {
  GraphMaker g = Rows();
  // Halves of each row, and rows as matrices.
  const auto half = [](const char* tensor, int64_t at) {
    return View(tensor, {D("n"), D(int64_t{2})}, at, {4, 1});
  };
  g.Activation("a", {D("n"), D(kWidth)});
  g.Call("neg", {half("x", 0), half("a", 2)}).Call("neg", {half("x", 2), half("a", 0)});
  g.Call("relu", {View("a", {D("n"), D(int64_t{2}), D(int64_t{2})}),
                  View("y", {D("n"), D(int64_t{2}), D(int64_t{2})})});
  ExpectIndependent(g);
}

TEST_F(ModelRowsTest, AttentionOfABatchWithAMaskIsIndependent) {
  GraphMaker g;
  g.Scalar("n", 1, 8);
  const auto shape = [](int64_t rows) {
    return std::vector<client::graph_messages::Dim>{D("n"), D(int64_t{2}), D(rows), D(kWidth)};
  };
  g.Input("q", shape(3)).Input("k", shape(5)).Output("y", shape(3));
  g.Input("mask", {D("n"), D(int64_t{1}), D(int64_t{1}), D(int64_t{5})});
  g.Call("attention", {"q", "k", "k", "mask", "y", F(1)});
  ExpectIndependent(g);
}

TEST_F(ModelRowsTest, ArgumentsThatFollowTheOutputByRulesOfTheirOwnAreIndependent) {
  GraphMaker g = Rows();
  g.Weight("w", {D(kWidth), D(kWidth)}).Weight("b", {D(kWidth)});
  g.Tensor(v1::GraphTensor::KIND_CONST, "p", {D(int64_t{2}), D(int64_t{2})}, v1::DTYPE_I64);
  g.Activation("a", {D("n"), D(kWidth)}).Activation("k", {D("n"), D(int64_t{1})});
  g.Call("linear", {"x", "w", "b", "x", "a", I(1)});
  g.Call("mean", {"a", "k", Named("axes", I(2))});
  g.Call("pointwise", {"p", "a", "k", "b", None(), None(), None(), "y"});
  ExpectIndependent(g);
  {
    // The rows of `b` are along the columns of the output.
    GraphMaker square;
    square.Scalar("n", 1, 8)
        .Input("x", {D("n"), D(int64_t{8})})
        .Output("y", {D("n"), D(int64_t{8})});
    square.Tensor(v1::GraphTensor::KIND_CONST, "p", {D(int64_t{2}), D(int64_t{2})}, v1::DTYPE_I64);
    square.Activation("m", {D("n")}).Call("mean", {"x", "m", Named("axes", I(2))});
    square.Call("pointwise", {"p", "x", "m", None(), None(), None(), None(), "y"});
    ExpectMixed(square, "those of 'b'");
  }
}

TEST_F(ModelRowsTest, AnArgumentWithoutRowsHasNoRowsOfItsOwn) {
  // Alone, the operator refuses a request of another number of rows than those of the bias.
  GraphMaker g = Rows();
  g.Weight("w", {D(kWidth), D(kWidth)}).Weight("b", {D(int64_t{8}), D(kWidth)});
  g.Call("gemv", {"x", "w", "b", "y"});
  ExpectMixed(g, "(gemv) mixes rows: its argument 'bias' has another number of them");
  // A table of which each row selects.
  GraphMaker table;
  table.Scalar("n", 1, 8).Output("y", {D("n"), D(kWidth)});
  table.Tensor(v1::GraphTensor::KIND_INPUT, "i", {D("n"), D(kWidth)}, v1::DTYPE_I64);
  table.Weight("t", {D(int64_t{8}), D(kWidth)}).Call("gather", {"t", "i", "y", I(0)});
  ExpectIndependent(table);
}

TEST_F(ModelRowsTest, AGatherIsIndependentWithinTheRowsOnly) {
  for (const int64_t axis : {0, 1}) {
    GraphMaker g;
    g.Scalar("n", 1, 8).Input("x", {D("n"), D(kWidth)}).Output("y", {D("n"), D(kWidth)});
    g.Tensor(v1::GraphTensor::KIND_INPUT, "i", {D("n"), D(kWidth)}, v1::DTYPE_I64);
    g.Call("gather", {"x", "i", "y", I(axis)});
    if (axis == 1) {
      ExpectIndependent(g);
    } else {
      ExpectMixed(g, "those of 'x'");
    }
  }
}

TEST_F(ModelRowsTest, WhatDependsOnWeightsOnlyIsTheSameForAllRows) {
  GraphMaker g = Rows();
  g.Weight("w", {D(kWidth), D(kWidth)}).Activation("v", {D(kWidth), D(kWidth)});
  g.Call("softmax", {"w", "v"}).Call("gemv", {"x", "v", None(), "y"});
  ExpectIndependent(g);
}

TEST_F(ModelRowsTest, NodesThatMixRowsAreNamed) {
  {
    GraphMaker g = Rows();
    g.Activation("s", {D(kWidth)});
    g.Call("sum", {"x", "s", Named("axes", I(1))}).Call("add", {"x", "s", "y"});
    ExpectMixed(g, "node sum0 (sum) mixes rows: an output of it has none");
  }
  {
    // As many keys as there are rows.
    GraphMaker g;
    g.Scalar("n", 1, 8).Input("q", {D("n"), D(int64_t{1}), D(int64_t{8}), D(kWidth)});
    g.Output("y", {D("n"), D(int64_t{1}), D(int64_t{8}), D(kWidth)});
    g.Call("attention", {"q", "q", "q", None(), "y", F(1), I(0), S("n")});
    ExpectMixed(g, "(attention) uses the number of rows as the value of 'kv_len'");
  }
  {
    // Row i gets row i of a weight.
    GraphMaker g = Rows();
    g.Weight("w", {D(int64_t{8}), D(kWidth)});
    g.Call("add", {"x", View("w", {D("n"), D(kWidth)}), "y"});
    ExpectMixed(g, "(add) mixes rows: its argument 'y'");
  }
  {
    // All rows get the first one.
    GraphMaker g = Rows();
    g.Call("add", {"x", View("x", {D(int64_t{1}), D(kWidth)}), "y"});
    ExpectMixed(g, "mixes rows: its argument 'y'");
  }
  {
    // The product of all rows with all rows.
    GraphMaker g = Rows();
    g.Activation("t", {D(kWidth), D(kWidth)});
    g.Call("gemm", {View("x", {D(kWidth), D("n")}, 0, {1, kWidth}), "x", "t"});
    g.Call("gemv", {"x", "t", None(), "y"});
    ExpectMixed(g, "(gemm) mixes rows");
  }
  {
    // Its random numbers depend on the number of the row.
    GraphMaker g = Rows();
    g.Call("relu", {"x", "y"}).Call("sample", {"y", "t", F(1), I(1), I(0)});
    g.Tensor(v1::GraphTensor::KIND_OUTPUT, "t", {D("n")}, v1::DTYPE_I64);
    ExpectMixed(g, "(sample) is not known");
  }
}

TEST_F(ModelRowsTest, InputsAndOutputsHaveTheSameRows) {
  GraphMaker g = Rows();
  g.Input("bias", {D(kWidth)}).Call("add", {"x", "bias", "y"});
  ExpectMixed(g, "tensor 'bias' has no dynamic outermost dimension");
  GraphMaker two = Rows();
  two.Scalar("m", 1, 8).Input("z", {D("m"), D(kWidth)}).Output("u", {D("m"), D(kWidth)});
  two.Call("relu", {"x", "y"}).Call("relu", {"z", "u"});
  ExpectMixed(two, "tensor 'z' and tensor 'x' have different dynamic dimensions");
}

TEST_F(ModelRowsTest, ATensorThatIsNoRowByRowIsMixed) {
  // The memory of rows, as one vector: element i is not in row i.
  GraphMaker g;
  g.Scalar("n", 1, 8).Input("x", {D("n"), D(kWidth)}).Output("y", {D("n")});
  g.Call("relu", {View("x", {D("n")}, 0, {1}), "y"});
  ExpectMixed(g, "mixes rows: its argument 'x'");
}

}  // namespace
}  // namespace resident
