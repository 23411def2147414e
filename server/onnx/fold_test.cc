// What is computed at import.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/onnx/import.h"
#include "server/onnx/model_maker_for_test.h"
#include "server/onnx/values/value.h"

namespace resident::onnx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The result of one node whose inputs are constants; without elements if it is refused, or is not a
// constant of the graph.
Constant Compute(const std::string& op, const std::vector<Constant>& inputs,
                 const std::vector<AttributeProto>& attributes = {}, std::string* error = nullptr) {
  ModelMaker maker;
  std::vector<std::string> names;
  for (const Constant& input : inputs) {
    names.push_back("c" + std::to_string(names.size()));
    maker.Weight(names.back(), input);
  }
  maker.Node(op, names, {"y"}, attributes);
  maker.Output("y");
  const auto model = CheckModel(maker.Bytes(), {}, {});
  EXPECT_TRUE(model.ok()) << model.status();
  const auto imported = Specialize(*model, {});
  if (!imported.ok()) {
    if (error != nullptr) *error = std::string(imported.status().message());
    return {};
  }
  if (imported->weights.size() != 1 || imported->graph.nodes_size() != 1) return {};
  Constant result;
  result.type = imported->outputs[0].type;
  for (const auto& dim : imported->outputs[0].shape) result.shape.push_back(dim.size);
  result.bytes = imported->weights[0].bytes;
  return result;
}

std::vector<int64_t> Integers(const std::string& op, const std::vector<Constant>& inputs,
                              const std::vector<AttributeProto>& attributes = {}) {
  const Constant result = Compute(op, inputs, attributes);
  return result.bytes == nullptr ? std::vector<int64_t>() : result.AllIntegers();
}

Constant I64(const std::vector<int64_t>& values) {
  return Constant::Integers({static_cast<int64_t>(values.size())}, values);
}

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();

TEST(FoldTest, IntegersWrapAndDivisionTruncates) {
  EXPECT_THAT(Integers("Add", {I64({kLargest, 1}), I64({1, 2})}), ElementsAre(kSmallest, 3));
  EXPECT_THAT(Integers("Mul", {I64({kLargest, 3}), I64({2, -2})}), ElementsAre(-2, -6));
  EXPECT_THAT(Integers("Div", {I64({kSmallest, -7, 7}), I64({-1, 2, -2})}),
              ElementsAre(kSmallest, -3, -3));
  EXPECT_THAT(Integers("Mod", {I64({kSmallest, -7, 7}), I64({-1, 3, -3})}), ElementsAre(0, 2, -2));
  EXPECT_THAT(Integers("Mod", {I64({-7, 7}), I64({3, -3})}, {IntAttribute("fmod", 1)}),
              ElementsAre(-1, 1));
  EXPECT_THAT(Integers("Neg", {I64({kSmallest, 5})}), ElementsAre(kSmallest, -5));
  EXPECT_THAT(Integers("Pow", {I64({3, -1, 2}), I64({4, -3, -1})}), ElementsAre(81, -1, 0));
}

TEST(FoldTest, DivisionByZeroIsRefused) {
  for (const char* const op : {"Div", "Mod"}) {
    std::string error;
    Compute(op, {I64({1}), I64({0})}, {}, &error);
    EXPECT_THAT(error, HasSubstr("MODEL_E302")) << op;
  }
}

TEST(FoldTest, ShapesBroadcast) {
  const Constant column = Constant::Integers({2, 1}, {10, 20});
  const Constant result = Compute("Add", {column, I64({1, 2, 3})});
  EXPECT_THAT(result.shape, ElementsAre(2, 3));
  EXPECT_THAT(result.AllIntegers(), ElementsAre(11, 12, 13, 21, 22, 23));
}

TEST(FoldTest, ComparisonsAndSelections) {
  const Constant less = Compute("Less", {I64({1, 2, 3}), I64({2, 2, 2})});
  EXPECT_EQ(less.type, ElementType::kBool);
  EXPECT_THAT(less.AllIntegers(), ElementsAre(1, 0, 0));
  EXPECT_THAT(Integers("Where", {less, I64({7, 8, 9}), I64({0, 0, 0})}), ElementsAre(7, 0, 0));
  EXPECT_THAT(Integers("Not", {less}), ElementsAre(0, 1, 1));
  const Constant nan = Constant::Reals({1}, {std::nan("")});
  EXPECT_THAT(Integers("Equal", {nan, nan}), ElementsAre(0));
}

TEST(FoldTest, Layout) {
  const Constant matrix = Constant::Integers({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(Integers("Transpose", {matrix}), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(Integers("Slice", {matrix, I64({2}), I64({-10}), I64({1}), I64({-2})}),
              ElementsAre(3, 1, 6, 4));
  EXPECT_THAT(Integers("Expand", {I64({1, 2}), I64({2, 2})}), ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(Integers("Tile", {matrix, I64({1, 2})}),
              ElementsAre(1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6));
  EXPECT_THAT(Integers("Concat", {matrix, matrix}, {IntAttribute("axis", 1)}),
              ElementsAre(1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6));
  EXPECT_THAT(Integers("Gather", {matrix, I64({-1, 0})}, {IntAttribute("axis", 1)}),
              ElementsAre(3, 1, 6, 4));
  EXPECT_THAT(Integers("Trilu", {matrix}, {IntAttribute("upper", 0)}),
              ElementsAre(1, 0, 0, 4, 5, 0));
}

TEST(FoldTest, SequencesOfNumbers) {
  const auto number = [](int64_t value) { return Constant::Integers({}, {value}); };
  EXPECT_THAT(Integers("Range", {number(10), number(3), number(-3)}), ElementsAre(10, 7, 4));
  std::string error;
  Compute("Range", {number(0), number(kLargest), number(1)}, {}, &error);
  EXPECT_THAT(error, HasSubstr("MODEL_E501"));
  Compute("Range", {number(0), number(1), number(0)}, {}, &error);
  EXPECT_THAT(error, HasSubstr("MODEL_E501"));
}

TEST(FoldTest, Reductions) {
  const Constant matrix = Constant::Integers({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(Integers("ReduceSum", {matrix, I64({1})}), ElementsAre(6, 15));
  EXPECT_THAT(Integers("ReduceProd", {matrix}), ElementsAre(720));
  EXPECT_THAT(Integers("ReduceMax", {matrix}, {IntsAttribute("axes", {0})}), ElementsAre(4, 5, 6));
}

TEST(FoldTest, Conversions) {
  const Constant reals = Constant::Reals({4}, {-1.5, 2.5, 1e30, std::nan("")});
  EXPECT_THAT(Integers("Cast", {reals}, {IntAttribute("to", 7)}), ElementsAre(-1, 2, kLargest, 0));
  EXPECT_THAT(Integers("Cast", {I64({0, 5})}, {IntAttribute("to", 9)}), ElementsAre(0, 1));
  const Constant half = Compute("Cast", {reals}, {IntAttribute("to", 10)});
  EXPECT_EQ(half.Real(0), -1.5);
  EXPECT_TRUE(std::isinf(half.Real(2)));
}

TEST(ValueTest, StridesForAShape) {
  Value view;
  view.shape = {2, 3, 4};
  view.strides = {12, 4, 1};
  EXPECT_THAT(StridesForShape(view, {6, 4}).value(), ElementsAre(4, 1));
  EXPECT_THAT(StridesForShape(view, {2, 1, 12}).value(), ElementsAre(12, 12, 1));
  view.strides = {1, 8, 2};  // A transposed tensor.
  EXPECT_THAT(StridesForShape(view, {2, 3, 2, 2}).value(), ElementsAre(1, 8, 4, 2));
  EXPECT_FALSE(StridesForShape(view, {6, 4}).has_value());
  view.strides = {0, 0, 1};  // A repeated row.
  EXPECT_THAT(StridesForShape(view, {6, 4}).value(), ElementsAre(0, 1));
  EXPECT_FALSE(StridesForShape(view, {24}).has_value());
}

TEST(ConstantTest, CountElementsDoesNotOverflow) {
  EXPECT_EQ(CountElements({}), 1);
  EXPECT_EQ(CountElements({3, 0, 5}), 0);
  EXPECT_FALSE(CountElements({-1}).has_value());
  EXPECT_FALSE(CountElements({int64_t{1} << 40, int64_t{1} << 40}).has_value());
  EXPECT_FALSE(CountElements({0, int64_t{1} << 40, int64_t{1} << 40}).has_value());
  EXPECT_FALSE(CountElements({kLargest}).has_value());
}

}  // namespace
}  // namespace resident::onnx
