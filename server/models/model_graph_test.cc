#include "server/models/model_graph.h"

#include <set>
#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "runtime/graph/check.h"
#include "runtime/graph/finding.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/registry_catalog.h"
#include "server/graphs/reader/graph_reader.h"

namespace resident {
namespace {

v1::Graph Parse(const std::string& text) {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &graph));
  return graph;
}

// y = relu(x + w), with x of `rows` rows.
std::string Text(const std::string& rows, const std::string& extra = "") {
  return R"pb(
           format: 1
           tensors { name: "x" kind: KIND_INPUT dtype: DTYPE_F32 shape {)pb" +
         rows + R"pb(}
                     shape { size: 4 } }
    tensors { name: "w" kind: KIND_WEIGHT dtype: DTYPE_F32 shape { size: 4 } }
    tensors { name: "s" kind: KIND_ACTIVATION dtype: DTYPE_F32 shape { )pb" +
         rows + R"pb(}
                     shape { size: 4 } }
    tensors { name: "y" kind: KIND_OUTPUT dtype: DTYPE_F32 shape { )pb" +
         rows + R"pb(}
                     shape { size: 4 } }
    nodes {
      operator: "mul"
      arguments { tensor { name: "x" } }
      arguments { tensor { name: "x" } }
      arguments { tensor { name: "s" } }
    }
    nodes {
      operator: "relu"
      arguments { tensor { name: "s" } }
      arguments { tensor { name: "y" } }
    }
  )pb" + extra;
}

class ModelGraphTest : public testing::Test {
 protected:
  absl::StatusOr<ModelInterface> Read(const v1::Graph& message) {
    graph::Findings findings;
    const graph::Graph graph = ReadGraph(message, RegistryCatalog(*registry_), &findings);
    const graph::GraphCheck check = graph::CheckGraph(graph, &findings);
    for (const graph::Finding& finding : findings.list()) {
      EXPECT_TRUE(finding.warning) << finding.message;
    }
    EXPECT_TRUE(check.accepted);
    return ReadInterface(graph);
  }

  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
};

TEST_F(ModelGraphTest, TheInterfaceIsWhatRequestsSendAndGet) {
  const std::string scalar =
      R"pb(scalars { name: "n" dtype: DTYPE_I64 least: 1 most: 8 initial: 8 })pb";
  const auto interface = Read(Parse(Text(R"pb(scalar: "n")pb", scalar)));
  ASSERT_TRUE(interface.ok()) << interface.status();
  ASSERT_EQ(interface->inputs.size(), 1u);
  ASSERT_EQ(interface->outputs.size(), 1u);
  EXPECT_EQ(interface->weights, std::vector<uint32_t>{1});
  const ModelPort& x = interface->inputs[0];
  EXPECT_EQ(x.name, "x");
  EXPECT_EQ(x.dtype, DType::kF32);
  EXPECT_EQ(x.shape, (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(x.scalar, 0u);
  EXPECT_EQ(x.bytes, 128u);
  EXPECT_EQ(x.BytesAt(3), 48u);
  EXPECT_EQ(interface->scalar_names, std::vector<std::string>{"n"});
}

TEST_F(ModelGraphTest, AnInputThatTwoArgumentsReadIsCopiedToTheDevice) {
  const v1::Graph graph = AddDeviceCopies(Parse(Text("size: 2")));
  ASSERT_EQ(graph.nodes_size(), 3);
  EXPECT_EQ(graph.nodes(0).operator_(), "copy");
  EXPECT_EQ(graph.nodes(0).arguments(0).tensor().name(), "x");
  const std::string inner = graph.nodes(0).arguments(1).tensor().name();
  EXPECT_EQ(graph.nodes(1).arguments(0).tensor().name(), inner);
  EXPECT_EQ(graph.nodes(1).arguments(1).tensor().name(), inner);
  // Messages call the nodes as the caller does.
  EXPECT_EQ(graph.nodes(1).name(), "#0");
  EXPECT_EQ(graph.nodes(2).name(), "#1");
  // What requests name is where it was.
  EXPECT_EQ(graph.tensors(0).name(), "x");
  EXPECT_EQ(graph.tensors(0).kind(), v1::GraphTensor::KIND_INPUT);
  const auto interface = Read(graph);
  ASSERT_TRUE(interface.ok()) << interface.status();
  EXPECT_EQ(interface->inputs.size(), 1u);
}

TEST_F(ModelGraphTest, AnOutputThatANodeReadsIsCopiedFromTheDevice) {
  const v1::Graph graph = AddDeviceCopies(Parse(Text("size: 2", R"pb(
    tensors {
      name: "m"
      kind: KIND_OUTPUT
      dtype: DTYPE_F32
      shape { size: 4 }
    }
    nodes {
      operator: "mean"
      arguments { tensor { name: "y" } }
      arguments { tensor { name: "m" } }
      arguments { parameter: "axes" i64: 1 }
    }
  )pb")));
  ASSERT_EQ(graph.nodes_size(), 5);
  EXPECT_EQ(graph.nodes(4).operator_(), "copy");
  EXPECT_EQ(graph.nodes(4).arguments(1).tensor().name(), "y");
  EXPECT_EQ(graph.nodes(3).arguments(0).tensor().name(),
            graph.nodes(4).arguments(0).tensor().name());
  EXPECT_TRUE(Read(graph).ok());
}

TEST_F(ModelGraphTest, ASmallInputWithOneReaderIsReadWhereItIs) {
  const v1::Graph graph = Parse(R"pb(
    format: 1
    tensors {
      name: "x"
      kind: KIND_INPUT
      dtype: DTYPE_F32
      shape { size: 4096 }
    }
    tensors {
      name: "y"
      kind: KIND_OUTPUT
      dtype: DTYPE_F32
      shape { size: 4096 }
    }
    nodes {
      operator: "relu"
      arguments { tensor { name: "x" } }
      arguments { tensor { name: "y" } }
    }
  )pb");
  EXPECT_EQ(AddDeviceCopies(graph).nodes_size(), 1);
  v1::Graph larger = graph;
  for (v1::GraphTensor& tensor : *larger.mutable_tensors()) {
    tensor.mutable_shape(0)->set_size(4097);
  }
  EXPECT_EQ(AddDeviceCopies(larger).nodes_size(), 2);
}

TEST_F(ModelGraphTest, GraphsThatKeepSomethingAreNoModels) {
  const struct {
    const char* extra;
    const char* why;
  } cases[] = {
      {R"pb(loop { max_steps: 2 })pb", "it has a loop"},
      {R"pb(tensors {
              name: "k"
              kind: KIND_STATE
              dtype: DTYPE_F32
              shape { size: 4 }
            })pb",
       "'k' is a state"},
  };
  for (const auto& [extra, why] : cases) {
    const auto interface = Read(Parse(Text("size: 2", extra)));
    EXPECT_EQ(interface.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(interface.status().message().find(why), std::string::npos) << interface.status();
  }
}

TEST_F(ModelGraphTest, ADynamicInnerDimensionIsRefused) {
  const auto interface = Read(Parse(R"pb(
    format: 1
    scalars { name: "n" dtype: DTYPE_I64 least: 1 most: 8 initial: 8 }
    tensors {
      name: "x"
      kind: KIND_INPUT
      dtype: DTYPE_F32
      shape { size: 4 }
      shape { scalar: "n" }
    }
    tensors {
      name: "y"
      kind: KIND_OUTPUT
      dtype: DTYPE_F32
      shape { size: 4 }
      shape { scalar: "n" }
    }
    nodes {
      operator: "relu"
      arguments { tensor { name: "x" } }
      arguments { tensor { name: "y" } }
    }
  )pb"));
  EXPECT_NE(interface.status().message().find("dimension 1 of tensor 'x' is dynamic"),
            std::string::npos)
      << interface.status();
}

// It would cover rows of an earlier request.
TEST_F(ModelGraphTest, AViewThatFewRowsDoNotHaveIsRefused) {
  v1::Graph graph = Parse(Text("scalar: \"n\"", R"pb(
    scalars { name: "n" dtype: DTYPE_I64 least: 1 most: 6 }
  )pb"));
  for (const int tensor : {2, 3}) {
    v1::GraphDim& rows = *graph.mutable_tensors(tensor)->mutable_shape(0);
    rows.clear_scalar();
    rows.set_size(1);
  }
  v1::GraphNode& node = *graph.mutable_nodes(0);
  for (const int argument : {0, 1}) {
    v1::GraphView& view = *node.mutable_arguments(argument)->mutable_tensor();
    view.add_shape()->set_size(1);
    view.add_shape()->set_size(4);
  }
  EXPECT_TRUE(Read(graph).ok()) << Read(graph).status();
  node.mutable_arguments(1)->mutable_tensor()->set_offset(4);
  const absl::Status refused = Read(graph).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_NE(refused.message().find("node #0 covers elements of tensor 'x'"), std::string::npos)
      << refused;
  graph.mutable_scalars(0)->set_least(2);
  EXPECT_TRUE(Read(graph).ok()) << Read(graph).status();
}

}  // namespace
}  // namespace resident
