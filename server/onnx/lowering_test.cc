// The graphs that models become.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/onnx/import.h"
#include "server/onnx/model_maker_for_test.h"

namespace resident::onnx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ImportedModel Import(const ModelMaker& maker, const Sizes& sizes = {},
                     const Options& options = {}) {
  const auto model = CheckModel(maker.Bytes(), {}, options);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  const auto imported = Specialize(*model, sizes);
  EXPECT_TRUE(imported.ok()) << imported.status();
  return imported.ok() ? *imported : ImportedModel();
}

std::vector<std::string> Operators(const v1::Graph& graph) {
  std::vector<std::string> operators;
  for (const v1::GraphNode& node : graph.nodes()) operators.push_back(node.operator_());
  return operators;
}

std::vector<int64_t> ShapeOf(const v1::GraphView& view) {
  std::vector<int64_t> shape;
  for (const v1::GraphDim& dim : view.shape()) shape.push_back(dim.size());
  return shape;
}

const v1::GraphTensor* FindTensor(const v1::Graph& graph, const std::string& name) {
  for (const v1::GraphTensor& tensor : graph.tensors()) {
    if (tensor.name() == name) return &tensor;
  }
  return nullptr;
}

ModelMaker TwoLayers() {
  ModelMaker maker;
  maker.Input("x", {"batch", "4"});
  maker.Weight("w1", {4, 3});
  maker.Weight("b1", {3});
  maker.Weight("w2", {3, 2});
  maker.Node("Gemm", {"x", "w1", "b1"}, {"h"});
  maker.Node("Relu", {"h"}, {"r"});
  maker.Node("MatMul", {"r", "w2"}, {"y"});
  maker.Output("y");
  return maker;
}

TEST(LoweringTest, FewRowsUseTransposedWeights) {
  const ImportedModel imported = Import(TwoLayers(), {{{"batch", 2}}, ""});
  EXPECT_THAT(Operators(imported.graph), ElementsAre("linear", "relu", "linear"));
  ASSERT_EQ(imported.weights.size(), 3u);
  for (const Weight& weight : imported.weights) {
    ASSERT_NE(FindTensor(imported.graph, weight.tensor), nullptr);
    EXPECT_EQ(FindTensor(imported.graph, weight.tensor)->kind(), v1::GraphTensor::KIND_WEIGHT);
    EXPECT_EQ(static_cast<int64_t>(weight.bytes->size()), 4 * *CountElements(weight.shape));
  }
  const std::string& weight = imported.graph.nodes(0).arguments(1).tensor().name();
  const auto transposed = std::find_if(imported.weights.begin(), imported.weights.end(),
                                       [&](const Weight& each) { return each.tensor == weight; });
  ASSERT_NE(transposed, imported.weights.end());
  EXPECT_THAT(transposed->shape, ElementsAre(3, 4));
  EXPECT_EQ(*transposed->bytes,
            *Constant::Reals({3, 4}, {1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12}).bytes);
}

// A classifier as the converter of scikit-learn writes it.
TEST(LoweringTest, LinearModelsOfScikitLearnAreProducts) {
  ModelMaker maker;
  maker.Input("x", {"batch", "2"});
  maker.Node("Scaler", {"x"}, {"scaled"},
             {FloatsAttribute("offset", {1, 2}), FloatsAttribute("scale", {3, 4})});
  maker.Node(
      "LinearClassifier", {"scaled"}, {"label", "scores"},
      {FloatsAttribute("coefficients", {1, 2, 3, 4, 5, 6}),
       FloatsAttribute("intercepts", {7, 8, 9}), IntsAttribute("classlabels_ints", {10, 20, 30}),
       IntAttribute("multi_class", 1), StringAttribute("post_transform", "SOFTMAX")});
  maker.Node("Normalizer", {"scores"}, {"probabilities"}, {StringAttribute("norm", "L1")});
  for (NodeProto& node : *maker.graph().mutable_node()) node.set_domain("ai.onnx.ml");
  maker.Output("label");
  maker.Output("probabilities");
  const ImportedModel imported = Import(maker, {{{"batch", 8}}, "batch"});
  EXPECT_EQ(imported.batch_scalar, "batch");
  EXPECT_THAT(Operators(imported.graph), ElementsAre("pointwise", "linear", "argmax", "gather",
                                                     "softmax", "abs", "sum", "pointwise"));
  const std::string& weight = imported.graph.nodes(1).arguments(1).tensor().name();
  for (const Weight& each : imported.weights) {
    if (each.tensor != weight) continue;
    EXPECT_THAT(each.shape, ElementsAre(3, 2));
    EXPECT_EQ(*each.bytes, *Constant::Reals({3, 2}, {1, 2, 3, 4, 5, 6}).bytes);
  }
}

// The classes of computed indices, as a classifier of scikit-learn with several layers ends.
TEST(LoweringTest, ClassesOfComputedIndicesKeepTheBatch) {
  ModelMaker maker;
  maker.Input("x", {"batch", "3"});
  maker.Integers("classes", {5, 7, 9});
  maker.Integers("all", {-1});
  maker.Node("ArgMax", {"x"}, {"best"}, {IntAttribute("axis", 1)});
  maker.Node("ArrayFeatureExtractor", {"classes", "best"}, {"found"}).set_domain("ai.onnx.ml");
  maker.Node("Reshape", {"found", "all"}, {"label"});
  maker.Output("label");
  const ImportedModel imported = Import(maker, {{{"batch", 8}}, "batch"});
  EXPECT_EQ(Operators(imported.graph)[1], "gather");
  EXPECT_EQ(FindTensor(imported.graph, "label")->shape(0).scalar(), imported.batch_scalar);
}

// A column of the ids is dense for one row only, and a table of them takes dense ids.
TEST(LoweringTest, AColumnKeepsTheBatch) {
  ModelMaker maker;
  maker.Input("ids", {"batch", "3"}, ElementType::kInt64);
  maker.Weight("table", {5, 4});
  maker.Weight("column", Constant::Integers({}, {1}));
  maker.Node("Gather", {"ids", "column"}, {"of_column"}, {IntAttribute("axis", 1)});
  maker.Node("Gather", {"table", "of_column"}, {"rows"});
  maker.Output("rows");
  const ImportedModel imported = Import(maker, {{{"batch", 8}}, "batch"});
  EXPECT_EQ(imported.batch_scalar, "batch");
  EXPECT_THAT(Operators(imported.graph), ElementsAre("copy", "embedding"));
}

TEST(LoweringTest, WeightsOfOneNameHaveOneContent) {
  Options options;
  options.max_batch = 20000;
  const auto model = CheckModel(TwoLayers().Bytes(), {}, options);
  ASSERT_TRUE(model.ok());
  std::map<std::string, std::string> contents;
  for (const int64_t batch : {1, 16384, 16385, 20000}) {
    const auto imported = Specialize(*model, {{{"batch", batch}}, ""});
    ASSERT_TRUE(imported.ok()) << imported.status();
    for (const Weight& weight : imported->weights) {
      const auto known = contents.emplace(weight.tensor, *weight.bytes).first;
      EXPECT_EQ(known->second, *weight.bytes) << weight.tensor;
    }
  }
  EXPECT_TRUE(contents.contains("w1"));  // Of more than 16,384 rows.
}

TEST(LoweringTest, SizesOfOutputsAreThoseOfTheModel) {
  const auto model = CheckModel(TwoLayers().Bytes(), {}, {});
  ASSERT_TRUE(model.ok());
  ASSERT_EQ(model->symbols.size(), 1u);
  EXPECT_EQ(model->symbols[0].max_size, 64);
  EXPECT_TRUE(model->symbols[0].outermost);
  ASSERT_EQ(model->outputs.size(), 1u);
  EXPECT_EQ(model->outputs[0].shape[0].symbol, "batch");
  EXPECT_EQ(model->outputs[0].shape[0].size, 0);
  EXPECT_EQ(model->outputs[0].shape[1].size, 2);
}

TEST(LoweringTest, TheBatchMayRemainDynamic) {
  const ImportedModel imported = Import(TwoLayers(), {{{"batch", 8}}, "batch"});
  EXPECT_EQ(imported.batch_scalar, "batch");
  ASSERT_EQ(imported.graph.scalars_size(), 1);
  EXPECT_EQ(imported.graph.scalars(0).least(), 1);
  EXPECT_EQ(imported.graph.scalars(0).most(), 8);
  for (const char* const name : {"x", "h", "r", "y"}) {
    ASSERT_NE(FindTensor(imported.graph, name), nullptr) << name;
    EXPECT_EQ(FindTensor(imported.graph, name)->shape(0).scalar(), "batch") << name;
    EXPECT_EQ(FindTensor(imported.graph, name)->shape(1).scalar(), "") << name;
  }
}

TEST(LoweringTest, ABatchThatIsMergedWithAnotherDimensionIsRefused) {
  ModelMaker maker;
  maker.Input("x", {"batch", "3", "4"});
  maker.Integers("shape", {-1, 4});
  maker.Node("Reshape", {"x", "shape"}, {"rows"});
  maker.Node("Relu", {"rows"}, {"y"});
  maker.Output("y");
  const auto model = CheckModel(maker.Bytes(), {}, {});
  ASSERT_TRUE(model.ok());
  EXPECT_TRUE(Specialize(*model, {{{"batch", 8}}, ""}).ok());
  const auto imported = Specialize(*model, {{{"batch", 8}}, "batch"});
  EXPECT_THAT(std::string(imported.status().message()), HasSubstr("MODEL_E302"));
  EXPECT_EQ(model->outputs[0].shape[0].size, 0);
  EXPECT_EQ(model->outputs[0].shape[0].symbol, "");
}

TEST(LoweringTest, ABatchThatIsCutIsRefused) {
  ModelMaker maker;
  maker.Input("x", {"batch", "4"});
  maker.Integers("zero", {0});
  maker.Integers("five", {5});
  maker.Node("Slice", {"x", "zero", "five", "zero"}, {"cut"});
  maker.Node("Relu", {"cut"}, {"y"});
  maker.Output("y");
  const auto model = CheckModel(maker.Bytes(), {}, {});
  ASSERT_TRUE(model.ok());
  EXPECT_FALSE(Specialize(*model, {{{"batch", 64}}, "batch"}).ok());
}

TEST(LoweringTest, ATransposedTensorIsAView) {
  ModelMaker maker;
  maker.Input("x", {"2", "3"});
  maker.Node("Transpose", {"x"}, {"t"});
  maker.Node("Relu", {"t"}, {"y"});
  maker.Output("y");
  const ImportedModel imported = Import(maker);
  EXPECT_THAT(Operators(imported.graph), ElementsAre("relu"));
  const v1::GraphView& view = imported.graph.nodes(0).arguments(0).tensor();
  EXPECT_EQ(view.name(), "x");
  EXPECT_THAT(ShapeOf(view), ElementsAre(3, 2));
  EXPECT_THAT(view.strides(), ElementsAre(1, 3));
}

TEST(LoweringTest, AReshapeWithoutStridesIsOneCopy) {
  ModelMaker maker;
  maker.Input("x", {"2", "3"});
  maker.Integers("shape", {6});
  maker.Node("Transpose", {"x"}, {"t"});
  maker.Node("Reshape", {"t", "shape"}, {"flat"});
  maker.Node("Relu", {"flat"}, {"y"});
  maker.Output("y");
  EXPECT_THAT(Operators(Import(maker).graph), ElementsAre("copy", "relu"));
}

TEST(LoweringTest, AnOutputThatIsAViewIsCopied) {
  ModelMaker maker;
  maker.Input("x", {"4", "4"});
  maker.Integers("start", {3});
  maker.Integers("end", {-5});
  maker.Integers("axis", {1});
  maker.Integers("step", {-2});
  maker.Node("Slice", {"x", "start", "end", "axis", "step"}, {"y"});
  maker.Output("y");
  maker.Output("x");
  const ImportedModel imported = Import(maker);
  EXPECT_THAT(Operators(imported.graph), ElementsAre("copy", "copy"));
  const v1::GraphView& view = imported.graph.nodes(0).arguments(0).tensor();
  EXPECT_EQ(view.offset(), 3);
  EXPECT_THAT(view.strides(), ElementsAre(4, -2));
  EXPECT_THAT(ShapeOf(view), ElementsAre(4, 2));
  // The output that is the input has memory of its own.
  ASSERT_EQ(imported.outputs.size(), 2u);
  EXPECT_EQ(imported.outputs[1].name, "x");
  EXPECT_NE(imported.outputs[1].tensor, "x");
}

TEST(LoweringTest, ArithmeticOfShapesIsNotInTheGraph) {
  ModelMaker maker;
  maker.Input("x", {"batch", "2", "6"});
  maker.Weight("zero", Constant::Integers({}, {0}));
  maker.Integers("axis", {0});
  maker.Integers("rest", {-1});
  maker.Node("Shape", {"x"}, {"shape"});
  maker.Node("Gather", {"shape", "zero"}, {"size"});
  maker.Node("Unsqueeze", {"size", "axis"}, {"sizes"});
  maker.Node("Concat", {"sizes", "rest"}, {"target"}, {IntAttribute("axis", 0)});
  maker.Node("Reshape", {"x", "target"}, {"flat"});
  maker.Node("Relu", {"flat"}, {"y"});
  maker.Output("y");
  const ImportedModel imported = Import(maker, {{{"batch", 5}}, ""});
  EXPECT_THAT(Operators(imported.graph), ElementsAre("relu"));
  EXPECT_THAT(ShapeOf(imported.graph.nodes(0).arguments(0).tensor()), ElementsAre(5, 12));
  EXPECT_THAT(imported.weights, IsEmpty());
}

TEST(LoweringTest, NodesThatNoOutputNeedsAreLeftOut) {
  ModelMaker maker;
  maker.Input("x", {"2"});
  maker.Node("NoSuchOperator", {"x"}, {"unused"});
  maker.Node("Exp", {"x"}, {"e"});
  maker.Node("Shape", {"e"}, {"shape"});
  maker.Node("Expand", {"x", "shape"}, {"same"});
  maker.Node("Relu", {"same"}, {"y"});
  maker.Output("y");
  EXPECT_THAT(Operators(Import(maker).graph), ElementsAre("relu"));
}

TEST(LoweringTest, AFixedInputChoosesTheBranch) {
  ModelMaker maker;
  maker.Input("x", {"2"});
  maker.Input("positive", {}, ElementType::kBool);
  GraphProto branches[2];
  for (int i = 0; i < 2; ++i) {
    ModelMaker::AddNode(&branches[i], i == 0 ? "Relu" : "Neg", {"x"}, {"r"});
    branches[i].add_output()->set_name("r");
  }
  maker.Node(
      "If", {"positive"}, {"y"},
      {GraphAttribute("then_branch", branches[0]), GraphAttribute("else_branch", branches[1])});
  maker.Output("y");
  Options options;
  options.fixed_inputs["positive"] = "true";
  EXPECT_THAT(Operators(Import(maker, {}, options).graph), ElementsAre("relu", "copy"));
  options.fixed_inputs["positive"] = "0";
  EXPECT_THAT(Operators(Import(maker, {}, options).graph), ElementsAre("neg", "copy"));
}

// x, or its negative, as a condition of the model says.
ModelMaker ComputedBranch(const std::vector<std::string>& shape) {
  ModelMaker maker;
  maker.Input("x", shape);
  maker.Weight("zero", Constant::Reals({}, {0}));
  maker.Node("ReduceMax", {"x"}, {"largest"}, {IntAttribute("keepdims", 0)});
  maker.Node("Less", {"largest", "zero"}, {"below"});
  return maker;
}

TEST(LoweringTest, BothBranchesOfAComputedConditionAreComputed) {
  ModelMaker maker = ComputedBranch({"2", "3"});
  GraphProto branches[2];
  for (int i = 0; i < 2; ++i) {
    ModelMaker::AddNode(&branches[i], i == 0 ? "Neg" : "Exp", {"x"}, {"e"});
    ModelMaker::AddNode(&branches[i], "Softmax", {"e"}, {"r"});
    branches[i].add_output()->set_name("r");
  }
  const std::vector<AttributeProto> both = {GraphAttribute("then_branch", branches[0]),
                                            GraphAttribute("else_branch", branches[1])};
  maker.Node("If", {"below"}, {"y"}, both);
  maker.Output("y");
  const v1::Graph graph = Import(maker).graph;
  EXPECT_THAT(Operators(graph),
              ElementsAre("max", "pointwise", "exp", "softmax", "neg", "softmax", "pointwise"));
  EXPECT_EQ(graph.nodes(6).name(), "y");
}

TEST(LoweringTest, BranchesOfAComputedConditionMustHaveOneShape) {
  ModelMaker maker = ComputedBranch({"2", "3"});
  GraphProto whole, sum;
  ModelMaker::AddNode(&whole, "Relu", {"x"}, {"r"});
  whole.add_output()->set_name("r");
  ModelMaker::AddNode(&sum, "ReduceSum", {"x"}, {"r"});
  sum.add_output()->set_name("r");
  maker.Node("If", {"below"}, {"y"},
             {GraphAttribute("then_branch", whole), GraphAttribute("else_branch", sum)});
  maker.Output("y");
  const auto model = CheckModel(maker.Bytes(), {}, {});
  ASSERT_TRUE(model.ok());
  ASSERT_EQ(model->report.findings.size(), 1u);
  EXPECT_EQ(model->report.findings[0].code, "MODEL_E402");
  // A branch has the finding of its node, and the If none.
  maker.graph().mutable_node(2)->mutable_attribute(1)->mutable_g()->mutable_node(0)->set_op_type(
      "GridSample");
  const auto other = CheckModel(maker.Bytes(), {}, {});
  ASSERT_TRUE(other.ok());
  ASSERT_EQ(other->report.findings.size(), 1u);
  EXPECT_EQ(other->report.findings[0].code, "MODEL_E301");
}

TEST(LoweringTest, FunctionsBecomeTheirNodes) {
  ModelMaker maker;
  FunctionProto& function = *maker.proto.add_functions();
  function.set_name("Scaled");
  function.set_domain("own");
  function.add_input("a");
  function.add_output("b");
  function.add_attribute("slope");
  NodeProto& leaky = *function.add_node();
  leaky.set_op_type("LeakyRelu");
  leaky.add_input("a");
  leaky.add_output("t");
  AttributeProto& alpha = *leaky.add_attribute();
  alpha.set_name("alpha");
  alpha.set_ref_attr_name("slope");
  NodeProto& softplus = *function.add_node();
  softplus.set_op_type("Softplus");
  softplus.add_input("t");
  softplus.add_output("b");
  maker.Input("x", {"2"});
  maker.Node("Scaled", {"x"}, {"m"}, {FloatAttribute("slope", 0.5)}).set_domain("own");
  maker.Node("Scaled", {"m"}, {"y"}, {FloatAttribute("slope", 0.25)}).set_domain("own");
  maker.Output("y");
  const ImportedModel imported = Import(maker);
  EXPECT_THAT(Operators(imported.graph),
              ElementsAre("leaky_relu", "softplus", "leaky_relu", "softplus"));
  EXPECT_EQ(imported.graph.nodes(0).arguments(2).f64(), 0.5);
  EXPECT_EQ(imported.graph.nodes(2).arguments(2).f64(), 0.25);
}

TEST(LoweringTest, LongNamesAreShortened) {
  const std::string long_name(400, 'n');
  ModelMaker maker;
  maker.Input(long_name + "1", {"2"});
  maker.Input(long_name + "2", {"2"});
  maker.Node("Add", {long_name + "1", long_name + "2"}, {long_name});
  maker.Output(long_name);
  const ImportedModel imported = Import(maker);
  for (const v1::GraphTensor& tensor : imported.graph.tensors()) {
    EXPECT_LE(tensor.name().size(), 128u);
  }
  ASSERT_EQ(imported.inputs.size(), 2u);
  EXPECT_NE(imported.inputs[0].tensor, imported.inputs[1].tensor);
  EXPECT_EQ(imported.inputs[0].name, long_name + "1");
  EXPECT_NE(FindTensor(imported.graph, imported.outputs[0].tensor), nullptr);
}

TEST(LoweringTest, AnInputWithoutElementsIsAConstant) {
  ModelMaker maker;
  maker.Input("x", {"2", "3"});
  maker.Input("axes", {"0"}, ElementType::kInt64);
  maker.Node("ReduceSum", {"x", "axes"}, {"y"});
  maker.Output("y");
  const ImportedModel imported = Import(maker);
  ASSERT_EQ(imported.inputs.size(), 1u);
  EXPECT_EQ(imported.inputs[0].name, "x");
  EXPECT_THAT(Operators(imported.graph), ElementsAre("sum"));
}

TEST(LoweringTest, BatchNormalizationOfConstantsIsOneProgramOfAProductAndASum) {
  ModelMaker maker;
  maker.Input("x", {"1", "2", "3"});
  for (const char* const name : {"scale", "bias", "mean", "variance"}) maker.Weight(name, {2});
  maker.Node("BatchNormalization", {"x", "scale", "bias", "mean", "variance"}, {"y"});
  maker.Output("y");
  const ImportedModel imported = Import(maker);
  EXPECT_THAT(Operators(imported.graph), ElementsAre("pointwise"));
  EXPECT_EQ(imported.weights.size(), 3u);  // Two operands and the program.
}

}  // namespace
}  // namespace resident::onnx
