// The graphs of models pass the checks of graphs with the built-in operators, for several sizes and
// with a batch that remains dynamic.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/onnx/import.h"
#include "server/onnx/model_maker_for_test.h"
#include "tests/graph/checked_graph.h"

namespace resident::onnx {
namespace {

struct Case {
  const char* name;
  std::function<void(ModelMaker&)> make;  // From x [batch, 4, 6] to y.
  bool dynamic = true;                    // Whether the batch may remain dynamic.
};

class GraphsTest : public ::testing::TestWithParam<Case> {};

TEST_P(GraphsTest, IsAccepted) {
  ModelMaker maker(23);
  maker.Input("x", {"batch", "4", "6"});
  GetParam().make(maker);
  maker.Output("y");
  Options options;
  options.max_batch = 40;
  const auto model = CheckModel(maker.Bytes(), {}, options);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(model->report.findings.empty()) << model->report.findings[0].message;
  for (const int64_t batch : {1, 2, 40}) {
    const auto imported = Specialize(*model, {{{"batch", batch}}, ""});
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_TRUE(testing::CheckBuiltinGraph(imported->graph).has_value()) << batch;
    const auto dynamic = Specialize(*model, {{{"batch", batch}}, "batch"});
    ASSERT_EQ(dynamic.ok(), GetParam().dynamic || batch == 1) << dynamic.status();
    if (!dynamic.ok()) continue;
    EXPECT_TRUE(testing::CheckBuiltinGraph(dynamic->graph).has_value()) << batch;
  }
}

const Case kCases[] = {
    {"Elementwise",
     [](ModelMaker& m) {
       m.Weight("w", {4, 1});
       m.Node("HardSigmoid", {"x"}, {"a"});
       m.Node("Mul", {"a", "w"}, {"b"});
       m.Node("Selu", {"b"}, {"y"});
     }},
    {"ChainOfPointwise",
     [](ModelMaker& m) {
       m.Weight("w", {4, 1});
       m.Node("Erf", {"x"}, {"a"});
       m.Node("Less", {"a", "w"}, {"b"});
       m.Node("Where", {"b", "a", "w"}, {"c"});
       m.Node("Softsign", {"c"}, {"y"});
     }},
    {"GatherAndComparison",
     [](ModelMaker& m) {
       m.Node("ArgMax", {"x"}, {"i"}, {IntAttribute("axis", 2), IntAttribute("keepdims", 1)});
       m.Node("GatherElements", {"x", "i"}, {"g"}, {IntAttribute("axis", 2)});
       m.Node("Equal", {"x", "g"}, {"e"});
       m.Node("Cast", {"e"}, {"y"}, {IntAttribute("to", 1)});
     }},
    {"MatMulOfAWeight",
     [](ModelMaker& m) {
       m.Weight("w", {6, 5});
       m.Node("MatMul", {"x", "w"}, {"y"});
     }},
    {"MatMulOfTwoValues",
     [](ModelMaker& m) {
       m.Node("Transpose", {"x"}, {"t"}, {IntsAttribute("perm", {0, 2, 1})});
       m.Node("MatMul", {"x", "t"}, {"y"});
     }},
    {"SoftmaxOfAnInnerAxis",
     [](ModelMaker& m) { m.Node("Softmax", {"x"}, {"y"}, {IntAttribute("axis", 1)}); }},
    {"LayerNormalization",
     [](ModelMaker& m) {
       m.Weight("w", {6});
       m.Node("LayerNormalization", {"x", "w", "w"}, {"y", "mean", "deviation"});
       m.Output("mean");
       m.Output("deviation");
     }},
    {"GroupNormalization",
     [](ModelMaker& m) {
       m.Weight("w", {4});
       m.Node("GroupNormalization", {"x", "w", "w"}, {"y"}, {IntAttribute("num_groups", 2)});
     }},
    {"Convolution",
     [](ModelMaker& m) {
       m.Weight("w", {8, 2, 3});
       m.Weight("b", {8});
       m.Node("Conv", {"x", "w", "b"}, {"c"},
              {IntAttribute("group", 2), IntsAttribute("pads", {1, 1})});
       m.Weight("back", {8, 3, 2});
       m.Node("ConvTranspose", {"c", "back"}, {"y"}, {IntsAttribute("strides", {2})});
     }},
    {"Pooling",
     [](ModelMaker& m) {
       const std::vector<AttributeProto> window = {IntsAttribute("kernel_shape", {3}),
                                                   IntsAttribute("strides", {2}),
                                                   IntsAttribute("pads", {1, 1})};
       m.Node("MaxPool", {"x"}, {"a"}, window);
       m.Node("AveragePool", {"x"}, {"b"}, window);
       m.Node("Add", {"a", "b"}, {"y"});
     }},
    {"PadAndConcat",
     [](ModelMaker& m) {
       m.Integers("pads", {0, 1, 2, 0, 2, 1});
       m.Node("Pad", {"x", "pads"}, {"p"}, {StringAttribute("mode", "reflect")});
       m.Node("Neg", {"p"}, {"n"});
       m.Node("Concat", {"p", "n"}, {"y"}, {IntAttribute("axis", 1)});
     }},
    {"GatherAndReduce",
     [](ModelMaker& m) {
       m.Input("ids", {"batch", "3"}, ElementType::kInt64);
       m.Weight("table", {9, 6});
       m.Node("Gather", {"table", "ids"}, {"rows"});
       m.Integers("one", {1});
       m.Node("ReduceMax", {"rows", "one"}, {"largest"});
       m.Node("Sub", {"x", "largest"}, {"y"});
     }},
    {"ArgMaxOfTheLast",
     [](ModelMaker& m) {
       m.Node("ArgMax", {"x"}, {"y"},
              {IntAttribute("axis", 2), IntAttribute("select_last_index", 1)});
     }},
    {"Attention",
     [](ModelMaker& m) {
       m.Node("Attention", {"x", "x", "x"}, {"y"},
              {IntAttribute("q_num_heads", 2), IntAttribute("kv_num_heads", 2),
               IntAttribute("is_causal", 1)});
     }},
    {"Logic",
     [](ModelMaker& m) {
       m.Input("p", {"batch", "6"}, ElementType::kBool);
       m.Node("Not", {"p"}, {"q"});
       m.Node("Xor", {"p", "q"}, {"r"});
       m.Output("r");
       m.Node("Relu", {"x"}, {"y"});
     }},
    {"MergedBatch",
     [](ModelMaker& m) {
       m.Integers("shape", {-1, 6});
       m.Node("Reshape", {"x", "shape"}, {"rows"});
       m.Node("Relu", {"rows"}, {"y"});
     },
     false},
    {"ReducedBatch",
     [](ModelMaker& m) {
       m.Integers("zero", {0});
       m.Node("ReduceMean", {"x", "zero"}, {"y"});
     },
     true},
};

INSTANTIATE_TEST_SUITE_P(Models, GraphsTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace resident::onnx
