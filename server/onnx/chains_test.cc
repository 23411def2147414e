// Chains of element-wise nodes become one call of pointwise.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/pointwise_program.h"
#include "server/onnx/import.h"
#include "server/onnx/model_maker_for_test.h"

namespace resident::onnx {
namespace {

using ::testing::ElementsAre;

ImportedModel Import(const ModelMaker& maker, const Sizes& sizes = {}) {
  const auto model = CheckModel(maker.Bytes(), {}, {});
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  for (const Finding& finding : model->report.findings) ADD_FAILURE() << finding.message;
  const auto imported = Specialize(*model, sizes);
  EXPECT_TRUE(imported.ok()) << imported.status();
  return imported.ok() ? *imported : ImportedModel();
}

std::vector<std::string> Operators(const ImportedModel& imported) {
  std::vector<std::string> operators;
  for (const v1::GraphNode& node : imported.graph.nodes()) operators.push_back(node.operator_());
  return operators;
}

// x, and a model that ends with y.
ModelMaker Begin() {
  ModelMaker maker;
  maker.Input("x", {"2", "3"});
  maker.Output("y");
  return maker;
}

TEST(ChainsTest, GeluOfAnExporterIsOneCall) {
  ModelMaker maker = Begin();
  maker.Weight("root", Sizes64{});
  maker.Weight("one", Sizes64{});
  maker.Weight("half", Sizes64{});
  maker.Node("Div", {"x", "root"}, {"a"});
  maker.Node("Erf", {"a"}, {"b"});
  maker.Node("Add", {"b", "one"}, {"c"});
  maker.Node("Mul", {"x", "c"}, {"d"});
  maker.Node("Mul", {"d", "half"}, {"y"});
  const ImportedModel imported = Import(maker);
  ASSERT_THAT(Operators(imported), ElementsAre("pointwise"));
  const v1::GraphNode& node = imported.graph.nodes(0);
  ASSERT_EQ(node.arguments_size(), 2 + static_cast<int>(pointwise::kInputs));
  EXPECT_EQ(node.arguments(1).tensor().name(), "x");
  for (int i = 2; i < 7; ++i) EXPECT_TRUE(node.arguments(i).none());
  EXPECT_EQ(node.arguments(7).tensor().name(), "y");
  // Numbers are in the program.
  ASSERT_EQ(imported.weights.size(), 1u);
  EXPECT_THAT(imported.weights[0].shape, ElementsAre(6, 2));
}

TEST(ChainsTest, ASingleNodeKeepsItsOperator) {
  ModelMaker maker = Begin();
  maker.Node("Exp", {"x"}, {"y"});
  EXPECT_THAT(Operators(Import(maker)), ElementsAre("exp"));
}

TEST(ChainsTest, AValueThatOthersReadIsNotJoined) {
  ModelMaker maker = Begin();
  maker.Node("Exp", {"x"}, {"a"});
  maker.Node("Neg", {"a"}, {"y"});
  maker.Node("Softmax", {"a"}, {"z"});
  maker.Output("z");
  EXPECT_THAT(Operators(Import(maker)), ElementsAre("exp", "neg", "softmax"));
  ModelMaker output = Begin();
  output.Node("Exp", {"x"}, {"z"});
  output.Node("Neg", {"z"}, {"y"});
  output.Output("z");
  EXPECT_THAT(Operators(Import(output)), ElementsAre("exp", "neg"));
}

TEST(ChainsTest, AValueThatIsReadTwiceInTheChainIsJoined) {
  ModelMaker maker = Begin();
  maker.Node("Exp", {"x"}, {"a"});
  maker.Node("Sin", {"a"}, {"b"});
  maker.Node("Mul", {"a", "b"}, {"y"});
  EXPECT_THAT(Operators(Import(maker)), ElementsAre("pointwise"));
}

TEST(ChainsTest, AValueThatIsRepeatedIsNotComputedAgain) {
  ModelMaker maker = Begin();
  maker.Input("row", {"3"});
  maker.Node("Exp", {"row"}, {"a"});
  maker.Node("Mul", {"a", "x"}, {"y"});
  EXPECT_THAT(Operators(Import(maker)), ElementsAre("exp", "mul"));
}

TEST(ChainsTest, ALongChainIsSeveralCalls) {
  ModelMaker maker = Begin();
  std::string value = "x";
  for (int i = 0; i < 100; ++i) {
    const std::string next = i == 99 ? "y" : "v" + std::to_string(i);
    maker.Node(i % 2 == 0 ? "Sin" : "Cos", {value}, {next});
    value = next;
  }
  EXPECT_THAT(Operators(Import(maker)), ElementsAre("pointwise", "pointwise"));
}

TEST(ChainsTest, AChainHasAtMostSixInputs) {
  ModelMaker maker = Begin();
  std::string value = "x";
  for (int i = 0; i < 8; ++i) {
    const std::string input = "in" + std::to_string(i),
                      next = i == 7 ? "y" : "v" + std::to_string(i);
    maker.Input(input, {"2", "3"});
    maker.Node("Mul", {value, input}, {next});
    value = next;
  }
  EXPECT_THAT(Operators(Import(maker)), ElementsAre("pointwise", "pointwise"));
}

TEST(ChainsTest, ASumWithAProductStaysByItself) {
  ModelMaker maker = Begin();
  maker.Weight("w", {3, 3});
  maker.Weight("b", {3});
  maker.Node("MatMul", {"x", "w"}, {"p"});
  maker.Node("Add", {"p", "b"}, {"s"});
  maker.Node("Relu", {"s"}, {"y"});
  EXPECT_THAT(Operators(Import(maker)), ElementsAre("linear", "add", "relu"));
}

TEST(ChainsTest, ValuesOfSixteenBitsAreRoundedAsTheModelSays) {
  ModelMaker maker;
  maker.Input("x", {"2", "3"}, ElementType::kFloat16);
  maker.Node("Exp", {"x"}, {"a"});
  maker.Node("Sin", {"a"}, {"y"});
  maker.Output("y");
  EXPECT_THAT(Operators(Import(maker)), ElementsAre("exp", "sin"));
}

TEST(ChainsTest, TheMaskOfAnEncoderIsOneCall) {
  ModelMaker maker;
  maker.Input("mask", {"batch", "5"}, ElementType::kInt64);
  maker.Weight("one", Sizes64{});
  maker.Weight("least", Sizes64{});
  maker.Node("Unsqueeze", {"mask", "axes"}, {"wide"});
  maker.Integers("axes", {1, 2});
  maker.Node("Cast", {"wide"}, {"a"}, {IntAttribute("to", 1)});
  maker.Node("Sub", {"one", "a"}, {"b"});
  maker.Node("Cast", {"b"}, {"c"}, {IntAttribute("to", 9)});
  maker.Node("Where", {"c", "least", "b"}, {"y"});
  maker.Output("y");
  const ImportedModel imported = Import(maker, {{{"batch", 8}}, "batch"});
  EXPECT_THAT(Operators(imported), ElementsAre("pointwise"));
  EXPECT_EQ(imported.batch_scalar, "batch");
}

// A dimension of size 1 must not change what is joined.
TEST(ChainsTest, TheGraphsOfAllBatchSizesHaveTheSameCalls) {
  ModelMaker maker;
  maker.Input("x", {"batch", "4"});
  maker.Input("row", {"1", "4"});
  maker.Node("Exp", {"row"}, {"a"});
  maker.Node("Mul", {"a", "x"}, {"b"});
  maker.Node("Sin", {"b"}, {"y"});
  maker.Output("y");
  EXPECT_THAT(Operators(Import(maker, {{{"batch", 8}}, "batch"})), ElementsAre("exp", "pointwise"));
}

}  // namespace
}  // namespace resident::onnx
