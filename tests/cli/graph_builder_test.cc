// The client's GraphBuilder: graphs that a real daemon runs, and errors without one.
#include "client/graph_builder.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/daemon.h"

namespace resident::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr v1::DType kF32 = v1::DTYPE_F32;

template <typename T>
std::vector<T> Decode(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

class GraphBuilderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new testing::Daemon; }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  void SetUp() override {
    auto client = Client::Connect(daemon_->address());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  struct Run {
    std::map<std::string, std::string> outputs;
    std::vector<std::map<std::string, std::string>> records;
    v1::GraphResult result;
  };

  // Builds the graph and runs it with these inputs.
  Run RunGraph(GraphBuilder& b, const std::map<std::string, std::vector<float>>& inputs,
               const std::map<std::string, double>& scalars = {}) {
    Run run;
    absl::StatusOr<v1::Graph> graph = b.Build();
    EXPECT_TRUE(graph.ok()) << graph.status();
    if (!graph.ok()) return run;
    v1::RunGraphRequest request;
    *request.mutable_graph() = *std::move(graph);
    for (const auto& [name, values] : inputs) {
      v1::GraphBinding& binding = *request.add_bindings();
      binding.set_tensor(name);
      binding.set_data(values.data(), values.size() * sizeof(float));
    }
    request.mutable_scalars()->insert(scalars.begin(), scalars.end());
    const auto result = client_->RunGraph(request, [&](const v1::GraphStep& step) {
      std::map<std::string, std::string>& records = run.records.emplace_back();
      for (const v1::GraphValue& value : step.records()) records[value.tensor()] = value.data();
    });
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return run;
    run.result = *result;
    for (const v1::GraphValue& value : result->outputs()) {
      run.outputs[value.tensor()] = value.data();
    }
    return run;
  }

  static testing::Daemon* daemon_;
  std::unique_ptr<Client> client_;
};
testing::Daemon* GraphBuilderTest::daemon_ = nullptr;

TEST_F(GraphBuilderTest, ShapesAndDtypesAreInferred) {
  GraphBuilder b("feature", *client_);
  auto x = b.Input("x", kF32, {2, 3});
  auto w = b.Weight("w", kF32, {4, 3});
  auto column = b.Input("column", kF32, {2, 1});
  auto product = b.Call("gemv", {x, w, std::nullopt});
  auto sum = b.Call("add", {product, column});  // Broadcast.
  auto half = b.Call("copy", {sum}, {{"out", v1::DTYPE_BF16}});
  EXPECT_EQ(half.dtype(), v1::DTYPE_BF16);
  ASSERT_EQ(half.shape().size(), 2u);
  EXPECT_EQ(half.shape()[1].size, 4);
  b.Output("y", b.Call("copy", {half}, {{"out", kF32}}));
  const Run run = RunGraph(b, {{"x", {1, 2, 3, 4, 5, 6}},
                               {"w", {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1}},
                               {"column", {10, 20}}});
  EXPECT_THAT(Decode<float>(run.outputs.at("y")), ElementsAre(11, 12, 13, 16, 24, 25, 26, 35));
}

TEST_F(GraphBuilderTest, Views) {
  GraphBuilder b("views", *client_);
  auto x = b.Input("x", kF32, {3, 4});
  b.Output("slice", b.Call("relu", {x.Slice(0, 1, 2).Slice(1, 2, 2)}));
  b.Output("index", b.Call("relu", {x.Index(0, 2)}));
  b.Output("transpose", b.Call("relu", {x.Transpose(0, 1).Slice(0, 0, 2)}));
  b.Output("view", b.Call("relu", {x.View({2, 6})}));
  b.Output("backwards", b.Call("relu", {x.View({4}, 3, {-1})}));
  b.Output("part", x.Slice(1, 3, 1));  // Copied by one more node.
  auto twice = b.Call("relu", {x.Index(0, 0)});
  b.Output("first", twice);
  b.Output("second", twice);
  auto whole = b.Activation("whole", kF32, {2, 2});
  b.Call("relu", {x.Slice(0, 0, 1).Slice(1, 0, 2)}, {{"out", whole.Slice(0, 1, 1)}});
  b.Call("fill", {}, {{"value", 7}, {"out", whole.Index(0, 0)}});
  b.Output("whole.copy", whole);
  const Run run = RunGraph(b, {{"x", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}});
  const auto output = [&](const char* name) { return Decode<float>(run.outputs.at(name)); };
  EXPECT_THAT(output("slice"), ElementsAre(6, 7, 10, 11));
  EXPECT_THAT(output("index"), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(output("transpose"), ElementsAre(0, 4, 8, 1, 5, 9));
  EXPECT_THAT(output("view"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(output("backwards"), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(output("part"), ElementsAre(3, 7, 11));
  EXPECT_EQ(output("first"), output("second"));
  EXPECT_THAT(output("whole.copy"), ElementsAre(7, 7, 0, 1));
}

// A step of a decoder: a cache that is appended to in place, a length that grows, a stop token.
TEST_F(GraphBuilderTest, LoopWithAStateAndAStream) {
  GraphBuilder b("decode", *client_);
  auto pos = b.Integer("pos", 0, 7);
  auto row = b.Input("row", kF32, {1, 1, 1, 2});
  auto cache = b.State("cache", kF32, {1, 1, 8, 2});
  auto in_place = b.Named("append").Call("kv_append", {row, cache}, {{"pos", pos}});
  auto attended = b.Named("attend").Call("attention", {row, in_place, in_place, std::nullopt},
                                         {{"scale", 0.0}, {"kv_len", pos + 1}});
  b.Stream("attended", attended);
  auto index = b.Call("argmax", {attended.View({2})},
                      {{"axes", 1}, {"out", GraphBuilder::New{v1::DTYPE_I64, {}}}});
  b.StopWhen(index, {5});  // Never.
  b.Loop(4);
  b.EachStep(pos, pos + 2);
  const Run run = RunGraph(b, {{"row", {3, 4}}}, {{"pos", 0}});
  EXPECT_EQ(run.result.end(), v1::GraphResult::END_STEPS);
  ASSERT_EQ(run.records.size(), 4u);
  // Rows 0, 2, 4... have a value, the others are zeros.
  for (size_t step = 0; step < 4; ++step) {
    const auto k = static_cast<float>(step);
    const std::vector<float> values = Decode<float>(run.records[step].at("attended"));
    EXPECT_NEAR(values[0], 3 * (k + 1) / (2 * k + 1), 1e-5);
    EXPECT_NEAR(values[1], 4 * (k + 1) / (2 * k + 1), 1e-5);
  }
}

TEST_F(GraphBuilderTest, DynamicDimensionsAndScalars) {
  GraphBuilder b("dynamic", *client_);
  auto rows = b.Integer("rows", 1, 4);
  auto scale = b.Real("scale", -10, 10, 1.5);
  auto x = b.Input("x", kF32, {4, 2});
  auto part = b.Call("scale", {x.Slice(0, 0, rows)}, {{"s", 2 * scale - 1}});
  ASSERT_EQ(part.shape().size(), 2u);
  EXPECT_TRUE(part.shape()[0].scalar.has_value());  // Inferred with its scalar.
  b.Output("y", part);
  const Run run = RunGraph(b, {{"x", {1, 2, 3, 4, 5, 6, 7, 8}}}, {{"rows", 2}});
  EXPECT_THAT(Decode<float>(run.outputs.at("y")), ElementsAre(2, 4, 6, 8));
}

TEST_F(GraphBuilderTest, OperatorsWithSeveralResultsAndVersions) {
  GraphBuilder b("several", *client_);
  auto x = b.Input("x", kF32, {2, 4});
  auto w = b.Input("w", kF32, {4});
  auto residual = b.Input("residual", kF32, {2, 4});
  auto op = client_->DescribeOperator("rmsnorm_residual");
  ASSERT_TRUE(op.ok());
  int results = 0;
  for (const v1::Parameter& parameter : op->parameters()) {
    results += parameter.kind() == v1::Parameter::KIND_OUTPUT ||
               parameter.kind() == v1::Parameter::KIND_IN_OUT;
  }
  ASSERT_GT(results, 1) << op->signature();
  const auto all = b.Version(1).Named("norm").CallAll("rmsnorm_residual", {x, residual, w});
  ASSERT_EQ(all.size(), static_cast<size_t>(results)) << b.Build().status();
  const auto graph = b.Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->nodes(0).version(), 1u);
  EXPECT_EQ(graph->nodes(0).name(), "norm");
}

TEST_F(GraphBuilderTest, AnInstalledOperatorThatTheDaemonDoesNotKnow) {
  GraphBuilder b("unknown", *client_);
  auto x = b.Input("x", kF32, {4});
  b.Output("y", b.Call("rmsnrom", {x}));
  const auto graph = b.Build();
  EXPECT_THAT(std::string(graph.status().message()), HasSubstr("did you mean 'rmsnorm'"));
}

TEST_F(GraphBuilderTest, ADaemonThatIsLost) {
  testing::Daemon daemon;
  auto client = Client::Connect(daemon.address());
  ASSERT_TRUE(client.ok()) << client.status();
  daemon.Kill(SIGKILL);
  daemon.Wait();
  GraphBuilder b("lost", **client);
  b.Output("y", b.Call("relu", {b.Input("x", kF32, {4})}));
  EXPECT_EQ(b.Build().status().code(), absl::StatusCode::kUnavailable);
}

// Every error has the node or tensor, and what to do. Without a daemon.
class Errors : public ::testing::Test {
 protected:
  Errors() {
    b_.Operator("add",
                "x: in strided f32[*S~], y: in strided f32[*S~], out: out f32[*S], "
                "alpha: scalar f64 = 1");
    b_.Operator("gemv", "x: in f32[*S, K], w: in f32[N, K], bias: in f32[*B], out: out f32[*S, N]");
    b_.Operator("two", "x: in f32[N], a: out f32[N], b: out f32[N]");
    b_.Operator("sum", "x: in f32[*S], out: out f32[*R], axes: scalar u32");
    x_ = b_.Input("x", kF32, {4});
  }

  void ExpectError(const std::vector<std::string>& parts) {
    const absl::StatusOr<v1::Graph> graph = b_.Build();
    ASSERT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(graph.status().message());
    // One error: what follows from it is not reported.
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
    EXPECT_THAT(message, HasSubstr("Fix: "));
    for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
  }

  GraphBuilder b_{"errors"};
  GraphBuilder::Tensor x_;
};

TEST_F(Errors, UnknownOperator) {
  b_.Output("y", b_.Named("n").Call("ad", {x_, x_}));
  ExpectError({"node 'n' (ad)", "did you mean 'add'"});
}

TEST_F(Errors, WrongNumberOfTensors) {
  b_.Output("y", b_.Call("add", {b_.Call("add", {x_}), x_}));
  ExpectError({"node 'add0' (add): 1 tensor is given", "give 2, in the order x, y"});
}

TEST_F(Errors, UnknownParameter) {
  b_.Call("add", {x_, x_}, {{"beta", 1}});
  ExpectError({"no parameter 'beta'", "x, y, out, alpha"});
}

TEST_F(Errors, ParameterTwice) {
  b_.Call("add", {x_, x_}, {{"alpha", 1}, {"alpha", 2}});
  ExpectError({"'alpha' is given twice"});
}

TEST_F(Errors, ScalarMissing) {
  b_.Call("sum", {x_}, {{"out", GraphBuilder::New{kF32, {1}}}});
  ExpectError({"node 'sum0' (sum): parameter 'axes' has no value", "an integer or a scalar"});
}

TEST_F(Errors, WrongKinds) {
  b_.Call("add", {x_, x_}, {{"alpha", x_}});
  ExpectError({"parameter 'alpha' has a tensor as its value", "a number or a scalar"});
}

TEST_F(Errors, FractionForAnInteger) {
  b_.Call("sum", {x_}, {{"out", GraphBuilder::New{kF32, {1}}}, {"axes", 0.5}});
  ExpectError({"parameter 'axes'", "give an integer"});
}

TEST_F(Errors, NothingForAnOutput) {
  b_.Call("add", {x_, x_}, {{"out", std::nullopt}});
  ExpectError({"parameter 'out' has nothing as its value"});
}

TEST_F(Errors, ShapeThatDoesNotFollow) {
  b_.Output("y", b_.Call("sum", {x_}, {{"axes", 1}}));
  ExpectError({"the shape of 'out' does not follow from the shapes [4]", "GraphBuilder::New"});
}

TEST_F(Errors, ShapesThatDoNotBroadcast) {
  b_.Call("add", {x_, b_.Input("z", kF32, {3})});
  ExpectError({"node 'add0'", "[4], [3]"});
}

TEST_F(Errors, SeveralResults) {
  b_.Output("y", b_.Call("two", {x_}));
  ExpectError({"has 2 results", "CallAll"});
}

TEST_F(Errors, SliceOutside) {
  b_.Output("y", x_.Slice(0, 2, 3));
  ExpectError({"tensor 'x' has 4 elements in dimension 0, and 3 from 2 on"});
}

TEST_F(Errors, SliceOfAMissingDimension) {
  b_.Output("y", x_.Slice(1, 0, 1));
  ExpectError({"tensor 'x' has 1 dimensions, and dimension 1"});
}

TEST_F(Errors, DimensionOfNothing) {
  b_.Input("z", kF32, {4, 0});
  ExpectError({"tensor 'z' has a dimension of 0 elements"});
}

TEST_F(Errors, DimensionThatIsAnExpression) {
  auto n = b_.Integer("n", 1, 4);
  b_.Input("z", kF32, {n + 1});
  ExpectError({"tensor 'z'", "factor * scalar + addend"});
}

TEST_F(Errors, NamesTwice) {
  b_.Input("x", kF32, {4});
  ExpectError({"two tensors have the name 'x'"});
}

TEST_F(Errors, TensorsAndScalarsOfAnotherBuilder) {
  GraphBuilder other("other");
  b_.Call("add", {x_, other.Input("z", kF32, {4})});
  ExpectError({"node 'add0', parameter 'y'", "was not made by this builder"});
}

TEST_F(Errors, ADefaultTensor) {
  b_.Output("y", GraphBuilder::Tensor());
  ExpectError({"output 'y'", "was not made by this builder"});
}

TEST_F(Errors, StreamWithoutALoop) {
  b_.Stream("s", b_.Call("add", {x_, x_}));
  ExpectError({"stream 's' has no number of records"});
  b_.Loop(3);
  const absl::StatusOr<v1::Graph> graph = b_.Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->tensors(1).shape(0).size(), 3);
}

TEST_F(Errors, UpdateWithoutALoop) {
  auto n = b_.Integer("n", 1, 4);
  b_.EachStep(n, n + 1);
  ExpectError({"EachStep has no effect without a loop"});
}

TEST_F(Errors, MalformedSignature) {
  b_.Operator("bad", "x: inn f32[N]");
  ExpectError({"inn"});
}

TEST_F(Errors, AllAreReported) {
  for (int i = 0; i < 150; ++i) b_.Call("add", {x_});
  const std::string message(b_.Build().status().message());
  EXPECT_THAT(message, HasSubstr("'add0'"));
  EXPECT_THAT(message, HasSubstr("and 50 more errors"));
  EXPECT_THAT(message, Not(HasSubstr("and 51")));
}

}  // namespace
}  // namespace resident::client
