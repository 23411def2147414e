#include "server/onnx/patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/onnx/import.h"
#include "server/onnx/model_maker_for_test.h"

namespace resident::onnx {
namespace {

using ::testing::ElementsAre;

void AddNumber(ModelMaker& maker, const std::string& name, double value) {
  maker.Weight(name, Constant::Reals({}, {value}));
}

class PatternsTest : public ::testing::Test {
 protected:
  PatternsTest() {
    maker_.Input("x", {"2", "4"});
    AddNumber(maker_, "root", 1.4142135);
    AddNumber(maker_, "inverse", 0.70710677);
    for (const double number : {0.5, 1.0, 2.0, 3.0}) {
      AddNumber(maker_, std::to_string(static_cast<int>(10 * number)), number);
    }
    maker_.Output("y");
  }
  // The operators of the calls.
  std::vector<std::string> Calls() {
    const auto model = CheckModel(maker_.Bytes(), {}, {});
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return {};
    const auto imported = Specialize(*model, {{}, ""});
    if (!imported.ok()) return {std::string(imported.status().message())};
    std::vector<std::string> operators;
    for (const v1::GraphNode& node : imported->graph.nodes()) operators.push_back(node.operator_());
    return operators;
  }

  ModelMaker maker_;
};

TEST_F(PatternsTest, AttentionOfHeads) {
  const auto heads = [&](const char* name, const std::vector<int64_t>& order) {
    maker_.Node("Transpose", {"h"}, {name}, {IntsAttribute("perm", order)});
  };
  maker_.Weight("shape", Constant::Integers({4}, {1, 2, 2, 2}));
  maker_.Weight("mask", Constant::Reals({1, 1, 1, 2}, {0, -1e30}));
  maker_.Node("Reshape", {"x", "shape"}, {"h"});
  heads("q", {0, 2, 1, 3});
  heads("v", {0, 2, 1, 3});
  heads("t", {0, 2, 3, 1});
  maker_.Node("MatMul", {"q", "t"}, {"p"});
  maker_.Node("Div", {"p", "root"}, {"d"});
  const ModelMaker scaled = maker_;
  maker_.Node("Add", {"d", "mask"}, {"a"});
  maker_.Node("Softmax", {"a"}, {"s"}, {IntAttribute("axis", -1)});
  const ModelMaker softmax = maker_;
  maker_.Node("MatMul", {"s", "v"}, {"y"});
  EXPECT_THAT(Calls(), ElementsAre("attention"));
  maker_ = softmax;
  maker_.Node("MatMul", {"v", "s"}, {"y"});
  EXPECT_THAT(Calls(), ::testing::Not(::testing::Contains("attention"))) << "values in front";
  maker_ = scaled;
  maker_.Node("Softmax", {"d"}, {"s"}, {IntAttribute("axis", 2)});
  maker_.Node("MatMul", {"s", "v"}, {"y"});
  EXPECT_THAT(Calls(), ::testing::Not(::testing::Contains("attention"))) << "another axis";
  maker_ = scaled;
  maker_.Node("Softmax", {"d"}, {"s"}, {IntAttribute("axis", 3)});
  maker_.Node("MatMul", {"s", "v"}, {"y"});
  EXPECT_THAT(Calls(), ElementsAre("attention")) << "without a mask";
}

// The queries, keys and values of one x, as exporters write them.
TEST_F(PatternsTest, ProductsOfAttentionWithOneInputAreOne) {
  maker_.Weight("shape", Constant::Integers({4}, {1, 2, 2, 2}));
  maker_.Weight("back", Constant::Integers({2}, {2, 4}));
  const ModelMaker none = maker_;
  const auto make = [&](bool transposed, bool bias, const std::string& x_of_values) {
    maker_ = none;
    for (const std::string part : {"q", "k", "v"}) {
      const auto name = [&](const char* what) { return part + what; };
      maker_.Weight(name("w"), Sizes64{4, 4});
      std::string weight = name("w");
      if (transposed) {
        maker_.Node("Transpose", {weight}, {name("t")}, {IntsAttribute("perm", {1, 0})});
        weight = name("t");
      }
      maker_.Node("MatMul", {part == "v" ? x_of_values : "x", weight}, {name("p")});
      if (bias) {
        maker_.Weight(name("b"), Sizes64{4});
        maker_.Node("Add", {name("b"), name("p")}, {name("a")});
      }
      maker_.Node("Reshape", {name(bias ? "a" : "p"), "shape"}, {name("h")});
      const std::vector<int64_t> order = {0, 2, part == "k" ? 3 : 1, part == "k" ? 1 : 3};
      maker_.Node("Transpose", {name("h")}, {name("m")}, {IntsAttribute("perm", order)});
    }
    maker_.Node("MatMul", {"qm", "km"}, {"s"});
    maker_.Node("Div", {"s", "root"}, {"d"});
    maker_.Node("Softmax", {"d"}, {"f"}, {IntAttribute("axis", -1)});
    maker_.Node("MatMul", {"f", "vm"}, {"o"});
    maker_.Node("Transpose", {"o"}, {"r"}, {IntsAttribute("perm", {0, 2, 1, 3})});
    maker_.Node("Reshape", {"r", "back"}, {"e"});
    maker_.Node("Relu", {"e"}, {"y"});
  };
  for (const bool transposed : {false, true}) {
    make(transposed, false, "x");
    EXPECT_THAT(Calls(), ElementsAre("linear", "attention", "relu")) << transposed;
    make(transposed, true, "x");
    EXPECT_THAT(Calls(), ElementsAre("linear", "add", "attention", "relu")) << transposed;
    make(transposed, true, "qa");
    const std::vector<std::string> calls = Calls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "linear"), 3) << transposed;
  }
  // Another reader of a product finds its part.
  make(true, true, "x");
  maker_.Node("Relu", {"ka"}, {"z"});
  maker_.Output("z");
  const std::vector<std::string> calls = Calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "linear"), 1);
}

TEST_F(PatternsTest, GeluInEveryOrder) {
  const ModelMaker none = maker_;
  for (const bool divides : {false, true}) {
    for (int order = 0; order < 5; ++order) {
      SCOPED_TRACE(order);
      maker_ = none;
      maker_.Node(divides ? "Div" : "Mul", {"x", divides ? "root" : "inverse"}, {"u"});
      maker_.Node("Erf", {"u"}, {"e"});
      maker_.Node("Add", {divides ? "e" : "10", divides ? "10" : "e"}, {"a"});
      if (order == 0) {
        maker_.Node("Mul", {"x", "a"}, {"m"});
        maker_.Node("Mul", {"m", "5"}, {"y"});
      } else if (order == 1) {
        maker_.Node("Mul", {"a", "5"}, {"m"});
        maker_.Node("Mul", {"x", "m"}, {"y"});
      } else if (order == 2) {
        maker_.Node("Mul", {"5", "x"}, {"m"});
        maker_.Node("Mul", {"m", "a"}, {"y"});
      } else if (order == 3) {
        maker_.Node("Div", {"x", "20"}, {"m"});
        maker_.Node("Mul", {"a", "m"}, {"y"});
      } else {
        maker_.Node("Mul", {"a", "x"}, {"m"});
        maker_.Node("Div", {"m", "20"}, {"y"});
      }
      EXPECT_THAT(Calls(), ElementsAre("gelu"));
    }
  }
}

TEST_F(PatternsTest, WhatIsNoGelu) {
  const ModelMaker none = maker_;
  for (int form = 0; form < 4; ++form) {
    SCOPED_TRACE(form);
    maker_ = none;
    maker_.Input("z", {"2", "4"});
    maker_.Node("Div", {"x", form == 0 ? "20" : "root"}, {"u"});
    maker_.Node("Erf", {"u"}, {"e"});
    maker_.Node("Add", {"e", form == 1 ? "20" : "10"}, {"a"});
    maker_.Node("Mul", {form == 2 ? "z" : "x", "a"}, {"m"});
    maker_.Node("Mul", {"m", form == 3 ? "30" : "5"}, {"y"});
    const std::vector<std::string> calls = Calls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "gelu"), 0);
  }
}

class NormPatternsTest : public PatternsTest {
 protected:
  // y = norm of x, times w, plus b.
  void Make(const std::vector<int64_t>& axes, bool squares_by_pow, bool bias, bool keeps = true) {
    maker_.Weight("w", {4});
    maker_.Weight("b", {4});
    AddNumber(maker_, "eps", 1e-3);
    std::vector<AttributeProto> attributes = {IntsAttribute("axes", axes)};
    if (!keeps) {
      attributes.emplace_back();
      attributes.back().set_name("keepdims");
      attributes.back().set_type(2);
      attributes.back().set_i(0);
    }
    maker_.Node("ReduceMean", {"x"}, {"mean"}, attributes);
    maker_.Node("Sub", {"x", "mean"}, {"d"});
    if (squares_by_pow) {
      maker_.Node("Pow", {"d", "20"}, {"s"});
    } else {
      maker_.Node("Mul", {"d", "d"}, {"s"});
    }
    maker_.Node("ReduceMean", {"s"}, {"v"}, attributes);
    maker_.Node("Add", {"v", "eps"}, {"ve"});
    maker_.Node("Sqrt", {"ve"}, {"root_of_v"});
    maker_.Node("Div", {"d", "root_of_v"}, {"n"});
    maker_.Node("Mul", {"w", "n"}, {bias ? "p" : "y"});
    if (bias) maker_.Node("Add", {"p", "b"}, {"y"});
  }
};

TEST_F(NormPatternsTest, LayerNormalization) {
  const ModelMaker none = maker_;
  for (const bool pow : {false, true}) {
    for (const bool bias : {false, true}) {
      maker_ = none;
      Make({-1}, pow, bias);
      EXPECT_THAT(Calls(), ElementsAre("layernorm")) << pow << bias;
    }
  }
}

TEST_F(NormPatternsTest, AnotherReaderOfAnIntermediate) {
  Make({-1}, true, true);
  maker_.Node("Relu", {"mean"}, {"z"});
  maker_.Output("z");
  EXPECT_THAT(Calls(), ElementsAre("mean", "layernorm", "relu"));
}

TEST_F(NormPatternsTest, AnotherAxisIsNone) {
  Make({0}, true, true);
  const std::vector<std::string> calls = Calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "layernorm"), 0);
  EXPECT_GT(calls.size(), 5u);
}

}  // namespace
}  // namespace resident::onnx
