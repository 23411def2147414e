// Every code with which a model is refused.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/onnx/import.h"
#include "server/onnx/model_maker_for_test.h"

namespace resident::onnx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The message of the error with which the file is refused as a whole.
std::string Error(const std::string& bytes, const Files& files = {}, const Options& options = {}) {
  const auto model = CheckModel(bytes, files, options);
  return model.ok() ? "accepted" : std::string(model.status().message());
}
std::string Error(const ModelMaker& maker, const Options& options = {}) {
  return Error(maker.Bytes(), {}, options);
}

// The code and message of the first finding.
std::string FirstFinding(const ModelMaker& maker, const Options& options = {}) {
  const auto model = CheckModel(maker.Bytes(), {}, options);
  if (!model.ok()) return std::string(model.status().message());
  if (model->report.findings.empty()) return "accepted";
  return model->report.findings[0].code + ": " + model->report.findings[0].message;
}

// x -> y by one node with these further inputs.
ModelMaker OneNode(const std::string& op, const std::vector<AttributeProto>& attributes = {},
                   const std::vector<std::string>& shape = {"2", "3"},
                   ElementType type = ElementType::kFloat) {
  ModelMaker maker;
  maker.Input("x", shape, type);
  maker.Node(op, {"x"}, {"y"}, attributes);
  maker.Output("y");
  return maker;
}

// The same with the operator of the domain for scikit-learn.
ModelMaker OfMl(ModelMaker maker) {
  maker.graph().mutable_node(0)->set_domain("ai.onnx.ml");
  return maker;
}

TEST(RefusalsTest, AModelThatIsAcceptedHasNoFindings) {
  EXPECT_EQ(FirstFinding(OneNode("Relu")), "accepted");
}

TEST(RefusalsTest, E101IsForBytesThatAreNoModel) {
  EXPECT_THAT(Error("this is not a model"), StartsWith("MODEL_E101"));
  EXPECT_THAT(Error(""), StartsWith("MODEL_E101"));
  std::string bytes = OneNode("Relu").Bytes();
  bytes.resize(bytes.size() - 3);
  EXPECT_THAT(Error(bytes), AllOf(StartsWith("MODEL_E101"), HasSubstr("Fix: ")));
}

TEST(RefusalsTest, E102IsForVersionsThatAreNotKnown) {
  ModelProto empty;
  empty.set_ir_version(8);
  EXPECT_THAT(Error(empty.SerializeAsString()), StartsWith("MODEL_E102"));
  for (const int64_t version : {0, 5, 29, 1000}) {
    ModelMaker maker(version);
    EXPECT_THAT(Error(maker), AllOf(StartsWith("MODEL_E102"), HasSubstr("Fix: "))) << version;
  }
}

TEST(RefusalsTest, E103IsForLimits) {
  ModelMaker long_name;
  long_name.Input(std::string(513, 'n'), {"1"});
  EXPECT_THAT(Error(long_name), StartsWith("MODEL_E103"));

  ModelMaker many;
  many.Input("x", {"1"});
  for (int64_t i = 0; i <= kMaxNodes; ++i) many.Node("Relu", {"x"}, {});
  EXPECT_THAT(Error(many), StartsWith("MODEL_E103"));

  ModelMaker rank;
  rank.Input("x", std::vector<std::string>(9, "1"));
  EXPECT_THAT(Error(rank), StartsWith("MODEL_E103"));

  GraphProto inner;
  for (int depth = 0; depth < 6; ++depth) {
    GraphProto outer;
    ModelMaker::AddNode(&outer, "If", {}, {}, {GraphAttribute("then_branch", inner)});
    inner = outer;
  }
  ModelMaker deep;
  *deep.proto.mutable_graph() = inner;
  EXPECT_THAT(Error(deep), StartsWith("MODEL_E103"));
}

TEST(RefusalsTest, E103IsForFunctionsThatCallThemselvesOrGrow) {
  ModelMaker recursive;
  FunctionProto& function = *recursive.proto.add_functions();
  function.set_name("F");
  function.set_domain("own");
  function.add_output("r");
  NodeProto& call = *function.add_node();
  call.set_op_type("F");
  call.set_domain("own");
  call.add_output("r");
  recursive.Node("F", {}, {"y"}).set_domain("own");
  EXPECT_THAT(Error(recursive), StartsWith("MODEL_E103"));

  // Each function calls the next one twice.
  ModelMaker doubling;
  for (int i = 0; i < 15; ++i) {
    FunctionProto& each = *doubling.proto.add_functions();
    each.set_name("F" + std::to_string(i));
    each.set_domain("own");
    for (int repeat = 0; repeat < 8; ++repeat) {
      NodeProto& inner = *each.add_node();
      inner.set_op_type("F" + std::to_string(i + 1));
      inner.set_domain("own");
    }
  }
  doubling.Node("F0", {}, {}).set_domain("own");
  EXPECT_THAT(Error(doubling), StartsWith("MODEL_E103"));
}

TEST(RefusalsTest, E104IsForTwoValuesOfOneName) {
  ModelMaker maker = OneNode("Relu");
  maker.Node("Relu", {"x"}, {"y"});
  EXPECT_THAT(Error(maker), AllOf(StartsWith("MODEL_E104"), HasSubstr("'y'")));
  ModelMaker outputs = OneNode("Relu");
  outputs.Output("y");
  EXPECT_THAT(Error(outputs), StartsWith("MODEL_E104"));
  EXPECT_THAT(Error(OneNode("Elu", {FloatAttribute("alpha", 1), FloatAttribute("alpha", 2)})),
              StartsWith("MODEL_E104"));
}

TEST(RefusalsTest, E105IsForValuesThatAreNotComputedBefore) {
  ModelMaker cycle;
  cycle.Node("Relu", {"b"}, {"a"});
  cycle.Node("Relu", {"a"}, {"b"});
  EXPECT_THAT(Error(cycle), AllOf(StartsWith("MODEL_E105"), HasSubstr("'b'")));
  ModelMaker output;
  output.Output("y");
  EXPECT_THAT(Error(output), StartsWith("MODEL_E105"));
}

TEST(RefusalsTest, E106IsForDataThatDoNotFit) {
  ModelMaker maker = OneNode("Relu");
  TensorProto& tensor = maker.Weight("w", Sizes64{2});
  tensor.mutable_raw_data()->pop_back();
  EXPECT_THAT(Error(maker), AllOf(StartsWith("MODEL_E106"), HasSubstr("7 bytes")));
  tensor.mutable_raw_data()->clear();
  for (const int64_t size : {int64_t{-1}, int64_t{1} << 62, INT64_MAX}) {
    tensor.clear_dims();
    tensor.add_dims(size);
    tensor.add_dims(4);
    EXPECT_THAT(Error(maker), StartsWith("MODEL_E106")) << size;
  }
  tensor.mutable_segment();
  EXPECT_THAT(Error(maker), StartsWith("MODEL_E106"));
}

TEST(RefusalsTest, E107IsForDataFiles) {
  const auto error = [](const std::string& location, const std::string& offset,
                        const std::string& length, const Files& files) {
    ModelMaker maker = OneNode("Relu");
    TensorProto& tensor = maker.Weight("w", Sizes64{2});
    tensor.clear_raw_data();
    tensor.set_data_location(1);
    for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
             {"location", location}, {"offset", offset}, {"length", length}}) {
      if (value.empty()) continue;
      StringStringEntryProto& entry = *tensor.add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
    return Error(maker.Bytes(), files);
  };
  const Files files = {{"data", "01234567abcdefgh"}, {"../data", "01234567"}};
  EXPECT_EQ(error("data", "", "8", files), "accepted");
  EXPECT_EQ(error("data", "8", "8", files), "accepted");
  EXPECT_THAT(error("missing", "", "", files),
              AllOf(StartsWith("MODEL_E107"), HasSubstr("Fix: send 'missing' along")));
  for (const char* const name : {"../data", "/data", "..", ".", "", "a\\b"}) {
    EXPECT_THAT(error(name, "", "", files), StartsWith("MODEL_E107")) << name;
  }
  EXPECT_THAT(error("data", "9", "8", files), StartsWith("MODEL_E107"));
  EXPECT_THAT(error("data", "18446744073709551615", "8", files), StartsWith("MODEL_E107"));
  EXPECT_THAT(error("data", "-1", "8", files), StartsWith("MODEL_E107"));
  EXPECT_THAT(error("data", "", "7", files), StartsWith("MODEL_E106"));
}

TEST(RefusalsTest, E108IsForOptionsThatDoNotFit) {
  Options options;
  options.fixed_inputs["z"] = "1";
  EXPECT_THAT(Error(OneNode("Relu"), options),
              AllOf(StartsWith("MODEL_E108"), HasSubstr("Fix: --fixed one of 'x'")));
  for (const char* const text : {"1,2", "a,b,c,d,e,f", ""}) {
    options.fixed_inputs = {{"x", text}};
    EXPECT_THAT(Error(OneNode("Relu"), options), StartsWith("MODEL_E108")) << text;
  }
  options = {};
  options.max_sizes["seq"] = 4;
  EXPECT_THAT(Error(OneNode("Relu"), options), StartsWith("MODEL_E108"));
  options.max_sizes["seq"] = 0;
  EXPECT_THAT(Error(OneNode("Relu", {}, {"1", "seq"}), options), StartsWith("MODEL_E108"));
}

TEST(RefusalsTest, E109IsForNodesThatAreMalformed) {
  EXPECT_THAT(Error(OneNode("")), StartsWith("MODEL_E109"));
  ModelMaker name = OneNode("Relu");
  name.graph().mutable_node(0)->set_name("\xff");
  EXPECT_THAT(Error(name), StartsWith("MODEL_E109"));
  EXPECT_THAT(FirstFinding(OneNode("Add")), StartsWith("MODEL_E109"));
  EXPECT_THAT(FirstFinding(OneNode("Elu", {IntAttribute("alpha", 1)})), StartsWith("MODEL_E109"));
  EXPECT_THAT(FirstFinding(OneNode("Constant")), StartsWith("MODEL_E109"));
}

TEST(RefusalsTest, E201IsForTypes) {
  EXPECT_THAT(FirstFinding(OneNode("Exp", {}, {"2"}, ElementType::kDouble)),
              AllOf(StartsWith("MODEL_E201"), HasSubstr("Exp 'y'"), HasSubstr("double"),
                    HasSubstr("Fix: export in float32")));
  EXPECT_THAT(FirstFinding(OneNode("Identity", {}, {"2"}, ElementType::kString)),
              StartsWith("MODEL_E201"));
  EXPECT_THAT(FirstFinding(OneNode("Cast", {IntAttribute("to", 17)})), StartsWith("MODEL_E201"));
  ModelMaker maker = OneNode("Relu");
  maker.Input("z", {"2"}, ElementType::kInt64);
  maker.Node("Exp", {"z"}, {"sum"});
  maker.Output("sum");
  EXPECT_THAT(FirstFinding(maker), AllOf(StartsWith("MODEL_E201"), HasSubstr("int64")));
}

TEST(RefusalsTest, AConditionOfAnotherTypeIsRefused) {
  ModelMaker maker;
  maker.Input("x", {"2"});
  TensorProto& condition = maker.Weight("condition", Constant::Integers({}, {1}));
  condition.set_data_type(static_cast<int32_t>(ElementType::kString));
  maker.Node("If", {"condition"}, {"y"});
  maker.Output("y");
  EXPECT_THAT(FirstFinding(maker), StartsWith("MODEL_E201"));
}

TEST(RefusalsTest, E202IsForSequencesAndMaps) {
  EXPECT_THAT(FirstFinding(OneNode("SequenceConstruct")), StartsWith("MODEL_E202"));
  EXPECT_THAT(FirstFinding(OfMl(OneNode("ZipMap"))),
              AllOf(StartsWith("MODEL_E202"), HasSubstr("zipmap")));
  ModelMaker input = OneNode("Relu");
  input.graph().add_input()->set_name("s");
  input.graph().mutable_input(1)->mutable_type()->mutable_sequence_type();
  EXPECT_THAT(FirstFinding(input), StartsWith("MODEL_E202"));
  ModelMaker sparse = OneNode("Relu");
  sparse.graph().add_sparse_initializer();
  EXPECT_THAT(FirstFinding(sparse), StartsWith("MODEL_E202"));
}

TEST(RefusalsTest, ModelsOfScikitLearnThatAreNotSupportedAreRefused) {
  const auto refusal = [](const std::string& op, const std::vector<AttributeProto>& attributes,
                          ElementType type = ElementType::kFloat) {
    return FirstFinding(OfMl(OneNode(op, attributes, {"2", "3"}, type)));
  };
  EXPECT_THAT(refusal("TreeEnsembleRegressor", {}),
              AllOf(StartsWith("MODEL_E301"), HasSubstr("ai.onnx.ml.TreeEnsembleRegressor")));
  // They are operators of that domain only, and those of the standard are not in it.
  EXPECT_THAT(FirstFinding(OneNode("Scaler")), StartsWith("MODEL_E301"));
  EXPECT_THAT(refusal("Relu", {}), StartsWith("MODEL_E301"));
  EXPECT_THAT(refusal("Scaler", {FloatsAttribute("offset", {1, 2})}),
              AllOf(StartsWith("MODEL_E109"), HasSubstr("offset has 2 numbers")));
  EXPECT_THAT(refusal("Scaler", {}, ElementType::kDouble), StartsWith("MODEL_E201"));
  EXPECT_THAT(refusal("Normalizer", {StringAttribute("norm", "L7")}), StartsWith("MODEL_E302"));
  const AttributeProto weights = FloatsAttribute("coefficients", {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(refusal("LinearRegressor", {weights}), StartsWith("MODEL_E109"));
  EXPECT_THAT(refusal("LinearRegressor", {weights, IntAttribute("targets", int64_t{1} << 62)}),
              StartsWith("MODEL_E109"));
  EXPECT_THAT(refusal("LinearRegressor", {weights, IntAttribute("targets", 2),
                                          StringAttribute("post_transform", "PROBIT")}),
              AllOf(StartsWith("MODEL_E302"), HasSubstr("PROBIT")));
  EXPECT_THAT(refusal("LinearClassifier", {weights, IntsAttribute("classlabels_ints", {1, 2, 3})}),
              StartsWith("MODEL_E109"));
  EXPECT_THAT(refusal("LinearClassifier", {weights, IntsAttribute("classlabels_ints", {1, 2, 3}),
                                           FloatsAttribute("intercepts", {0, 0})}),
              AllOf(StartsWith("MODEL_E302"), HasSubstr("2 scores for 3 classes")));
  AttributeProto names;
  names.set_name("classlabels_strings");
  names.set_type(8);
  names.add_strings("cat");
  names.add_strings("dog");
  EXPECT_THAT(refusal("LinearClassifier", {weights, names, FloatsAttribute("intercepts", {0, 0})}),
              AllOf(StartsWith("MODEL_E201"), HasSubstr("Fix: ")));
}

TEST(RefusalsTest, E203IsForProductsOfIntegers) {
  EXPECT_THAT(FirstFinding(OneNode("MatMulInteger")),
              AllOf(StartsWith("MODEL_E203"), HasSubstr("Fix: ")));
}

TEST(RefusalsTest, E301ListsAllOperatorsThatAreNotSupported) {
  ModelMaker maker = OneNode("GridSample");
  maker.Node("NoSuchOperator", {"y"}, {"z"});
  maker.Node("Relu", {"z"}, {"r"});
  maker.Node("GridSample", {"r"}, {"s"});
  maker.Node("Other", {"s"}, {"t"}).set_domain("com.example");
  maker.Output("t");
  const auto model = CheckModel(maker.Bytes(), {}, {});
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->report.findings.size(), 4u);
  for (const Finding& finding : model->report.findings) EXPECT_EQ(finding.code, "MODEL_E301");
  EXPECT_EQ(model->report.unsupported.at("GridSample"), 2u);
  EXPECT_EQ(model->report.unsupported.at("com.example.Other"), 1u);
  EXPECT_FALSE(Specialize(*model, {}).ok());
}

TEST(RefusalsTest, E302IsForFormsThatAreNotSupported) {
  EXPECT_THAT(FirstFinding(OneNode("Softmax", {IntAttribute("axis", 5)})),
              AllOf(StartsWith("MODEL_E302"), HasSubstr("axis 5")));
  EXPECT_THAT(FirstFinding(OneNode("Transpose", {IntsAttribute("perm", {0, 0})})),
              StartsWith("MODEL_E302"));
  ModelMaker shapes = OneNode("Relu");
  shapes.Input("z", {"4"});
  shapes.Node("Add", {"x", "z"}, {"sum"});
  shapes.Output("sum");
  EXPECT_THAT(FirstFinding(shapes), AllOf(StartsWith("MODEL_E302"), HasSubstr("[2, 3] and [4]")));
}

TEST(RefusalsTest, AttentionOfNumbersIsRefused) {
  ModelMaker maker(23);
  maker.Input("x", {});
  maker.Node("Attention", {"x", "x", "x"}, {"y"});
  maker.Output("y");
  EXPECT_THAT(FirstFinding(maker), StartsWith("MODEL_E302"));
}

TEST(RefusalsTest, E401IsForShapesThatDependOnValues) {
  EXPECT_THAT(FirstFinding(OneNode("NonZero")), StartsWith("MODEL_E401"));
}

TEST(RefusalsTest, E402NamesTheInputThatCouldBeFixed) {
  ModelMaker maker;
  maker.Input("x", {"2", "3"});
  maker.Input("axes", {"1"}, ElementType::kInt64);
  maker.Node("ReduceSum", {"x", "axes"}, {"y"});
  maker.Output("y");
  const auto model = CheckModel(maker.Bytes(), {}, {});
  ASSERT_TRUE(model.ok());
  ASSERT_EQ(model->report.findings.size(), 1u);
  EXPECT_EQ(model->report.findings[0].code, "MODEL_E402");
  EXPECT_EQ(model->report.findings[0].input, "axes");
  EXPECT_THAT(model->report.findings[0].message, HasSubstr("Fix: --fixed axes="));
  Options options;
  options.fixed_inputs["axes"] = "-1";
  EXPECT_EQ(FirstFinding(maker, options), "accepted");
}

TEST(RefusalsTest, E403IsForLoops) {
  EXPECT_THAT(FirstFinding(OneNode("Loop")), StartsWith("MODEL_E403"));
  EXPECT_THAT(FirstFinding(OneNode("Scan")), StartsWith("MODEL_E403"));
}

TEST(RefusalsTest, E404IsForSizes) {
  EXPECT_THAT(FirstFinding(OneNode("Relu", {}, {"1", "seq"})),
              AllOf(StartsWith("MODEL_E404"), HasSubstr("Fix: --max seq=512")));
  EXPECT_THAT(FirstFinding(OneNode("Relu", {}, {"2", "0"})), StartsWith("MODEL_E404"));
  ModelMaker shapeless = OneNode("Relu");
  shapeless.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  EXPECT_THAT(FirstFinding(shapeless), StartsWith("MODEL_E404"));
  Options options;
  options.max_sizes["seq"] = 512;
  const auto model = CheckModel(OneNode("Relu", {}, {"1", "seq"}).Bytes(), {}, options);
  ASSERT_TRUE(model.ok());
  EXPECT_TRUE(Specialize(*model, {{{"seq", 512}}, ""}).ok());
  for (const std::map<std::string, int64_t>& sizes :
       std::vector<std::map<std::string, int64_t>>{{{"seq", 513}}, {{"seq", 0}}, {}}) {
    EXPECT_THAT(std::string(Specialize(*model, {sizes, ""}).status().message()),
                StartsWith("MODEL_E404"));
  }
}

TEST(RefusalsTest, E501IsForWhatIsTooLarge) {
  ModelMaker maker = OneNode("Relu");
  maker.Integers("shape", {1 << 20, 1 << 10});
  maker.Node("ConstantOfShape", {"shape"}, {"zeros"});
  maker.Output("zeros");
  EXPECT_THAT(FirstFinding(maker), StartsWith("MODEL_E501"));
  ModelMaker expanded = OneNode("Relu");
  expanded.Integers("shape", {1 << 20, 1 << 10, 1 << 10, 2, 3});
  expanded.Node("Expand", {"y", "shape"}, {"large"});
  expanded.Node("Exp", {"large"}, {"z"});
  expanded.Output("z");
  EXPECT_THAT(FirstFinding(expanded), StartsWith("MODEL_E501"));
}

}  // namespace
}  // namespace resident::onnx
