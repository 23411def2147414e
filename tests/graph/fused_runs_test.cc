// Runs of graphs whose nodes are fused, on a real daemon: random graphs compute what an interpreter
// computes, in float64 and node by node, with and without fusion; and what runs report.
//
//   $RESIDENT_RANDOM_GRAPHS   number of graphs (default: 400)
//   $RESIDENT_RANDOM_SEED     seed of the first one; each further graph has the next seed
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_runs.h"
#include "tests/graph/interpreter.h"
#include "tests/graph/loaded_graphs.h"

namespace resident::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Kind = v1::GraphTensor;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// Random chains of the operators of all patterns, over a few activations that are used again and
// again, so that values have other readers, are replaced, kept or computed in another dtype.
class RandomChains {
 public:
  // Of the norms: so large that the interpreter's bounds of errors stay small.
  static constexpr double kEps = 64;

  explicit RandomChains(std::mt19937_64& random) : random_(random) {
    const int64_t columns = 32 * (1 + Below(2));
    const int64_t vectors = Below(3) == 0 ? 3 : 1;
    shape_ = {D(vectors), D(columns)};
    elements_ = vectors * columns;
    const v1::DType weights =
        Pick<v1::DType>({v1::DTYPE_BF16, v1::DTYPE_BF16, v1::DTYPE_F16, v1::DTYPE_F32});
    Input("x", shape_, elements_, v1::DTYPE_F32, 1);
    Input("r", shape_, elements_, v1::DTYPE_F32, 1);
    Input("bias", {D(columns)}, columns, v1::DTYPE_F32, 1);
    for (const char* const name : {"norm0", "norm1"}) {
      Input(name, {D(columns)}, columns, Below(8) == 0 ? v1::DTYPE_F32 : weights, 1);
    }
    for (const char* const name : {"w0", "w1", "w2"}) {
      Input(name, {D(columns), D(columns)}, columns * columns,
            Below(8) == 0 ? v1::DTYPE_F32 : weights, 8);
    }
    for (int i = 0; i < 7; ++i) {
      g_.Tensor(Kind::KIND_ACTIVATION, absl::StrCat("a", i), shape_,
                Below(12) == 0 ? v1::DTYPE_BF16 : v1::DTYPE_F32);
    }
    g_.Tensor(Kind::KIND_STATE, "s", shape_);
    // The interpreter takes what follows from exact numbers for exact, which holds for whole
    // numbers.
    for (const char* const name : {"x", "r", "s"}) Add("tanh", {name}, {});
  }

  v1::RunGraphRequest Make() {
    const int links = 3 + static_cast<int>(Below(8));
    for (int i = 0; i < links; ++i) AddLink();
    for (int i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat("y", i);
      g_.Tensor(Kind::KIND_OUTPUT, name, shape_);
      g_.Call("copy", {i == 0 ? last_ : PickDefined(), name});
    }
    g_.Call("tanh", {last_, "s"});
    if (Below(2) == 0) g_.graph.mutable_loop()->set_max_steps(2);
    if (Below(10) == 0) g_.node(static_cast<int>(Below(g_.graph.nodes_size()))).set_version(1);
    *request_.mutable_graph() = g_.graph;
    return std::move(request_);
  }

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  template <typename T>
  T Pick(std::vector<T> values) {
    return values[static_cast<size_t>(Below(static_cast<int64_t>(values.size())))];
  }
  std::string PickDefined() { return Pick(defined_); }
  std::string PickInput() { return Below(4) == 0 ? PickDefined() : last_; }

  // Values of at most 1 / `divisor`.
  void Input(const std::string& name, std::vector<Dim> shape, int64_t elements, v1::DType dtype,
             double divisor) {
    g_.Tensor(Kind::KIND_INPUT, name, std::move(shape), dtype);
    std::string bytes;
    for (int64_t i = 0; i < elements; ++i) {
      // All of these dtypes have it exactly.
      const auto value = static_cast<float>(static_cast<double>(Below(129) - 64) / 64 / divisor);
      if (dtype == v1::DTYPE_F32) {
        bytes += ToBytes<float>({value});
      } else if (dtype == v1::DTYPE_BF16) {
        bytes += ToBytes<float>({value}).substr(2);
      } else {
        bytes += ToBytes<_Float16>({static_cast<_Float16>(value)});
      }
    }
    Bind(request_, name).set_data(bytes);
  }

  // An activation that is none of these.
  std::string PickOut(const std::vector<std::string>& inputs) {
    while (true) {
      std::string out = absl::StrCat("a", Below(7));
      if (std::find(inputs.begin(), inputs.end(), out) == inputs.end()) return out;
    }
  }
  std::string Add(const std::string& op, std::vector<Arg> arguments,
                  const std::vector<std::string>& inputs, std::vector<Arg> rest = {}) {
    std::string out = PickOut(inputs);
    arguments.emplace_back(out);
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    g_.Call(op, std::move(arguments));
    if (std::find(defined_.begin(), defined_.end(), out) == defined_.end()) defined_.push_back(out);
    return last_ = out;
  }
  std::string AddProduct(const std::string& x, std::vector<std::string> inputs) {
    inputs.push_back(x);
    const std::string w = Pick<std::string>({"w0", "w1", "w2"});
    return Add("gemv", {x, w, Below(5) == 0 ? Arg("bias") : None()}, inputs);
  }

  void AddLink() {
    const std::string x = PickInput();
    switch (Below(8)) {
      case 0:
        Add("rmsnorm", {x, Pick<std::string>({"norm0", "norm1"})}, {x}, {F(kEps)});
        break;
      case 1: {
        // Products of one value, often a norm.
        std::vector<std::string> products;
        const std::string from = x;
        for (int64_t i = 0; i <= Below(2); ++i) products.push_back(AddProduct(from, products));
        break;
      }
      case 2: {
        const std::string other = Below(4) == 0 ? "bias" : PickDefined();
        std::vector<std::string> terms = {x, other};
        if (Below(2) == 0) std::swap(terms[0], terms[1]);
        if (Below(6) == 0) {
          Add("add", {terms[0], terms[1]}, terms, {F(0.5)});
        } else {
          Add("add", {terms[0], terms[1]}, terms);
        }
        // So that values stay small.
        Add("rmsnorm", {last_, "norm0"}, {last_, x}, {F(kEps)});
        break;
      }
      case 3: {
        const std::string gate = AddProduct(x, {});
        const std::string up = AddProduct(x, {gate});
        const std::string open = Add("silu", {gate}, {gate, up});
        Add("mul", {open, up}, {open, up});
        Add("rmsnorm", {last_, "norm1"}, {last_}, {F(kEps)});
        break;
      }
      case 4: {
        // Into a residual.
        const std::string residual = PickDefined();
        const std::string product = AddProduct(x, {residual});
        const std::string sum = Add("add", {product, residual}, {product, residual});
        Add("rmsnorm", {sum, "norm0"}, {sum}, {F(kEps)});
        break;
      }
      case 5: {
        // Queries, keys and values.
        const std::string normed = Add("rmsnorm", {x, "norm0"}, {x}, {F(kEps)});
        std::vector<std::string> products;
        for (int i = 0; i < 3; ++i) products.push_back(AddProduct(normed, products));
        break;
      }
      case 6: {
        // A layer with an activation, and perhaps a residual.
        const std::string residual = PickDefined();
        const std::string product = AddProduct(x, {residual});
        const std::string open = Add(Pick<std::string>({"relu", "tanh", "sigmoid", "silu"}),
                                     {product}, {product, residual});
        if (Below(2) == 0) Add("add", {residual, open}, {residual, open});
        Add("rmsnorm", {last_, "norm1"}, {last_}, {F(kEps)});
        break;
      }
      default:
        // Something that is in no pattern.
        Add(Pick<std::string>({"relu", "neg", "tanh"}), {x}, {x});
    }
  }

  std::mt19937_64& random_;
  GraphMaker g_;
  v1::RunGraphRequest request_;
  std::vector<Dim> shape_;
  int64_t elements_ = 0;
  std::vector<std::string> defined_;
  std::string last_;
};

class FusedRunsTest : public DaemonTest {
 protected:
  void Check(const v1::RunGraphRequest& request, const Interpretation& expected,
             std::vector<float>* values) {
    const GraphOutcome outcome = RunGraph(*daemon_, client_, request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    ASSERT_EQ(outcome.result.steps(), expected.steps);
    ASSERT_EQ(static_cast<size_t>(outcome.result.outputs_size()), expected.outputs.size());
    for (size_t i = 0; i < expected.outputs.size(); ++i) {
      EXPECT_EQ(FindDifference(outcome.result.outputs(static_cast<int>(i)), expected.outputs[i]),
                "");
      for (const double error : expected.outputs[i].errors) precise_ += error < 0.05;
      elements_ += expected.outputs[i].errors.size();
      const std::vector<float> floats = outcome.floats(static_cast<int>(i));
      values->insert(values->end(), floats.begin(), floats.end());
    }
    for (const v1::GraphVersion& version : outcome.result.versions()) {
      tasks_ += version.tasks();
      ++operators_[version.operator_()];
    }
  }

  uint64_t precise_ = 0;
  uint64_t elements_ = 0;
  uint64_t tasks_ = 0;
  std::map<std::string, int> operators_;
  const GraphCalls calls_{*daemon_, client_};
};

TEST_F(FusedRunsTest, RandomGraphsEqualAnInterpreterWithAndWithoutFusion) {
  const uint64_t count = FromEnvironment("RESIDENT_RANDOM_GRAPHS", 400);
  const uint64_t first = FromEnvironment("RESIDENT_RANDOM_SEED", std::random_device{}());
  std::cout << "seeds " << first << " to " << first + count - 1 << "\n";
  uint64_t unfused_tasks = 0;
  for (uint64_t i = 0; i < count && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", first + i));
    std::mt19937_64 random(first + i);
    v1::RunGraphRequest request = RandomChains(random).Make();
    const Interpretation expected = Interpret(request);
    std::vector<float> fused, unfused;
    Check(request, expected, &fused);
    request.mutable_graph()->set_fuse(false);
    const uint64_t before = tasks_;
    Check(request, expected, &unfused);
    // Within what another rounding to bfloat16 of an activation makes.
    ASSERT_EQ(fused.size(), unfused.size());
    for (size_t e = 0; e < fused.size(); ++e) {
      ASSERT_NEAR(fused[e], unfused[e], 0.02 * (0.2 + std::fabs(unfused[e]))) << "element " << e;
    }
    unfused_tasks += std::exchange(tasks_, before) - before;
  }
  std::cout << unfused_tasks << " nodes, of which " << tasks_ << " were executed with fusion\n";
  EXPECT_LT(tasks_, unfused_tasks * 19 / 20);
  for (const char* const name : {"gemv_silu_mul", "linear", "rmsnorm_gemv", "rmsnorm_gemv_qkv",
                                 "rmsnorm_gemv_silu_mul", "rmsnorm_residual", "silu_mul"}) {
    EXPECT_GT(operators_[name], 0) << name;
  }
  EXPECT_GT(precise_, elements_ / 2);
}

// --- What runs report --------------------------------------------------------------

// y = rmsnorm(x) * w, and z = relu(y).
GraphMaker NormAndProduct() {
  GraphMaker g;
  g.Input("x", {1, 32}).Input("norm", {32}).Input("w", {32, 32}).Activation("normed", {1, 32});
  for (const int i : {1, 2}) g.tensor(i).set_dtype(v1::DTYPE_BF16);
  g.Output("y", {1, 32}).Output("z", {1, 32});
  g.Call("rmsnorm", {"x", "norm", "normed"}).Call("gemv", {"normed", "w", None(), "y"});
  g.Call("relu", {"y", "z"});
  return g;
}
void BindAll(v1::RunGraphRequest& request) {
  Bind(request, "x").set_data(ToBytes(std::vector<float>(32, 2)));
  // 1 as bfloat16.
  Bind(request, "norm").set_data(ToBytes(std::vector<uint16_t>(32, 0x3f80)));
  Bind(request, "w").set_data(ToBytes(std::vector<uint16_t>(32 * 32, 0x3f80)));
}

std::vector<std::string> Versions(const GraphOutcome& outcome) {
  std::vector<std::string> versions;
  for (const v1::GraphVersion& each : outcome.result.versions()) {
    versions.push_back(absl::StrCat(each.operator_(), " ", each.version(), " x", each.tasks()));
  }
  return versions;
}

TEST_F(FusedRunsTest, ReportsNameTheFusedNodes) {
  GraphMaker g = NormAndProduct();
  v1::LoadGraphResponse fused;
  ASSERT_TRUE(calls_.Load(g.graph, &fused).ok());
  const v1::GraphReport& report = fused.report();
  EXPECT_TRUE(report.accepted());
  ASSERT_EQ(report.fusions_size(), 1);
  EXPECT_EQ(report.fusions(0).operator_(), "rmsnorm_gemv");
  EXPECT_THAT(report.fusions(0).nodes(), ElementsAre(0, 1));
  EXPECT_EQ(report.dependency_count(), 2u);
  EXPECT_EQ(report.longest_chain(), 3u);

  g.graph.set_fuse(false);
  v1::LoadGraphResponse written;
  ASSERT_TRUE(calls_.Load(g.graph, &written).ok());
  EXPECT_EQ(written.report().fusions_size(), 0);
  EXPECT_NE(written.graph_id(), fused.graph_id());

  v1::RunGraphRequest request;
  BindAll(request);
  request.set_graph_id(fused.graph_id());
  const GraphOutcome of_fused = calls_.Run(request);
  EXPECT_THAT(Versions(of_fused), UnorderedElementsAre("relu 1 x1", "rmsnorm_gemv 1 x1"));
  request.set_graph_id(written.graph_id());
  const GraphOutcome of_written = calls_.Run(request);
  EXPECT_THAT(Versions(of_written), UnorderedElementsAre("gemv 1 x1", "relu 1 x1", "rmsnorm 1 x1"));
  for (const GraphOutcome& outcome : {of_fused, of_written}) {
    ASSERT_EQ(outcome.floats().size(), 32u);
    for (const float y : outcome.floats()) EXPECT_NEAR(y, 32, 1e-3);
    EXPECT_EQ(outcome.floats(1), outcome.floats(0));
  }
  v1::DescribeGraphResponse described;
  ASSERT_TRUE(calls_.Describe(fused.graph_id(), &described).ok());
  EXPECT_EQ(described.graph().nodes_size(), 3);
  EXPECT_EQ(described.loaded().nodes(), 3u);
  EXPECT_EQ(described.loaded().state(), v1::LoadedGraph::STATE_READY);
}

TEST_F(FusedRunsTest, ErrorsNameTheFusedNodes) {
  GraphMaker g;
  g.Input("x", {1, 64}).Input("norm", {64}).Input("q", {8, 64}).Input("scales", {8, 3});
  g.tensor(1).set_dtype(v1::DTYPE_BF16);
  g.tensor(2).set_dtype(v1::DTYPE_I8);
  g.tensor(3).set_dtype(v1::DTYPE_F16);
  g.Activation("normed", {1, 64}).Output("y", {1, 8});
  g.Call("rmsnorm", {"x", "norm", "normed"});
  g.Call("gemv_quant", {"normed", "q", "scales", None(), "y", I(32)});  // There are two groups.
  v1::RunGraphRequest request = RunOf(g);
  Bind(request, "x").set_data(std::string(64 * 4, '\0'));
  Bind(request, "norm").set_data(std::string(64 * 2, '\0'));
  Bind(request, "q").set_data(std::string(8 * 64, '\0'));
  Bind(request, "scales").set_data(std::string(8 * 3 * 2, '\0'));
  ExpectRefused(RunGraph(*daemon_, client_, request).status, grpc::StatusCode::INVALID_ARGUMENT,
                {"node 'gemv_quant1' (rmsnorm_gemv_quant, fused with rmsnorm0) failed in step 0",
                 "detail 3"});
  request.mutable_graph()->set_fuse(false);
  ExpectRefused(RunGraph(*daemon_, client_, request).status, grpc::StatusCode::INVALID_ARGUMENT,
                {"node 'gemv_quant1' (gemv_quant) failed in step 0", "detail 3"});
}

TEST_F(FusedRunsTest, TracesHaveTheNodesOfTheWrittenGraph) {
  GraphMaker g = NormAndProduct();
  g.Tensor(Kind::KIND_STREAM, "record", {D(1), D(1), D(32)});
  g.Call("copy", {"z", "record"});
  v1::RunGraphRequest request = RunOf(g);
  BindAll(request);
  request.set_trace(true);
  const GraphOutcome outcome = RunGraph(*daemon_, client_, request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  std::set<uint32_t> nodes;
  for (const v1::GraphTraceEvent& event : outcome.events()) nodes.insert(event.node());
  // The product, relu, copy, and the copy of the record.
  EXPECT_THAT(nodes, ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace resident::testing
