// Tasks that cannot end within --task_time_limit are refused, whatever way they come; without that
// each of them would end the engine, and all clients would lose their buffers there. Work that can
// end in time is executed.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "inference/open_inference.grpc.pb.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_runs.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;
using Dims = std::vector<uint64_t>;
using Strides = std::vector<int64_t>;

// A view of one element. A GPU does more in ten seconds.
uint64_t Side() { return OnGpu() ? uint64_t{1} << 26 : uint64_t{1} << 20; }
uint64_t Length() { return Side() * Side(); }
// What each error has: the limit, and what to do. The least time depends on the engine.
std::vector<std::string> Parts(const std::string& operator_name) {
  return {operator_name + ": a task of ", " takes at least ", " s on device 0, over ",
          "--task_time_limit of 10 s", "split it into smaller tasks, or raise --task_time_limit"};
}

class WorkBoundTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = std::make_unique<Daemon>(std::vector<std::string>{"--cpu_workers=2"});
  }
  static void TearDownTestSuite() { daemon_.reset(); }

  WorkBoundTest() : client_(*daemon_), other_(*daemon_, "other") {
    EXPECT_TRUE(client_.Allocate(1, &one_).ok());
    EXPECT_TRUE(Upload(client_, one_, std::string(4, '\0')).ok());
    EXPECT_TRUE(other_.Allocate(1, &kept_).ok());
    EXPECT_TRUE(Upload(other_, kept_, "kept").ok());
  }
  // The engine is the same.
  ~WorkBoundTest() override {
    std::string bytes;
    EXPECT_TRUE(Download(other_, kept_, &bytes).ok());
    EXPECT_EQ(bytes, "kept");
  }

  void View(v1::Batch& batch, const Dims& shape, const Strides& strides) const {
    v1::BufferColumn* const column = Buffers(batch, {one_});
    for (const uint64_t size : shape) column->add_shape(size);
    for (const int64_t stride : strides) column->add_strides(stride);
  }
  v1::Batch Sum(uint64_t side) const {
    v1::Batch batch = Tasks("sum", 1);
    View(batch, {side, side}, {0, 0});
    Returned(batch, {});
    Integer(batch, {3});
    return batch;
  }
  // A product of two vectors.
  v1::Batch Gemm(uint64_t length, uint32_t count) const {
    v1::Batch batch = Tasks("gemm", count);
    View(batch, {1, length}, {0, 0});
    View(batch, {length, 1}, {0, 0});
    Inline(batch, {1, 1}, {0});
    return batch;
  }
  GraphMaker MakeGraph(int64_t length) const {
    GraphMaker g;
    g.Input("x", {D(1)}).Output("y", {D(1), D(1)});
    g.Call("gemm", {resident::testing::View("x", {D(1), D(length)}, 0, {0, 0}),
                    resident::testing::View("x", {D(length), D(1)}, 0, {0, 0}), "y"});
    return g;
  }

  static inline std::unique_ptr<Daemon> daemon_;
  const Client client_;
  const Client other_;
  uint64_t one_ = 0;
  uint64_t kept_ = 0;
};

TEST_F(WorkBoundTest, TasksOfRunAndOfSubmit) {
  for (const v1::Batch& batch : {Sum(Side()), Gemm(Length(), 1)}) {
    const std::vector<std::string> parts = Parts(batch.tasks().operator_());
    ExpectRefused(client_.Run(batch).call, StatusCode::INVALID_ARGUMENT, parts);
    const std::vector<v1::BatchResult> answers = SubmitSequentially(client_, {batch, SmallAdd(1)});
    ASSERT_EQ(answers.size(), 2u);
    ExpectRefused(grpc::Status(static_cast<StatusCode>(answers[0].refused().code()),
                               answers[0].refused().message()),
                  StatusCode::INVALID_ARGUMENT, parts);
    EXPECT_FALSE(answers[1].has_refused());
  }
}

// A regular batch runs as ranges, and each of its tasks has the limit.
TEST_F(WorkBoundTest, TasksOfARange) {
  ExpectRefused(client_.Run(Gemm(Length(), 1024)).call, StatusCode::INVALID_ARGUMENT,
                Parts("gemm"));
}

TEST_F(WorkBoundTest, NodesOfAGraph) {
  v1::RunGraphRequest run = RunOf(MakeGraph(static_cast<int64_t>(Length())));
  Bind(run, "x").set_data(ToBytes<float>({1}));
  std::vector<std::string> parts = Parts("gemm");
  parts.emplace_back("gemm0");  // The node's name.
  ExpectRefused(RunGraph(*daemon_, client_, run).status, StatusCode::INVALID_ARGUMENT, parts);
  const Daemon by_node({"--cpu_workers=2", "--graphs_in_engine=false"});
  const Client client(by_node);
  ExpectRefused(RunGraph(by_node, client, run).status, StatusCode::INVALID_ARGUMENT, parts);
}

// Its size is that of the step: the steps before are executed.
TEST_F(WorkBoundTest, NodesThatGrowInALoop) {
  GraphMaker g;
  const auto max = static_cast<int64_t>(Length());
  g.Scalar("n", 1, static_cast<double>(max)).Input("x", {D(1)}).Output("y", {D(1), D(1)});
  g.Call("gemm", {resident::testing::View("x", {D(1), D("n")}, 0, {0, 0}),
                  resident::testing::View("x", {D("n"), D(1)}, 0, {0, 0}), "y"});
  v1::GraphLoop& loop = *g.graph.mutable_loop();
  loop.set_max_steps(3);
  v1::GraphUpdate& update = *loop.add_updates();
  update.set_scalar("n");
  update.set_factor(std::sqrt(static_cast<double>(max)));
  v1::RunGraphRequest run = RunOf(g);
  Bind(run, "x").set_data(ToBytes<float>({1}));
  (*run.mutable_scalars())["n"] = 1;
  std::vector<std::string> parts = Parts("gemm");
  parts.emplace_back("failed in step 2");
  ExpectRefused(RunGraph(*daemon_, client_, run).status, StatusCode::INVALID_ARGUMENT, parts);
  run.set_max_steps(2);
  const GraphOutcome outcome = RunGraph(*daemon_, client_, run);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.floats(), std::vector<float>{static_cast<float>(Side())});
}

// Dense inputs of 2 MiB, every pair of which takes operations.
TEST_F(WorkBoundTest, RequestsOfTheInferenceProtocol) {
  if (OnGpu()) GTEST_SKIP() << "a GPU executes in ten seconds what fits a message";
  constexpr int64_t kPositions = 1 << 19;
  inference::ModelInferRequest request;
  request.set_model_name("attention");
  for (const char* name : {"q", "k", "v"}) {
    auto* const input = request.add_inputs();
    input->set_name(name);
    input->set_datatype("FP32");
    for (const int64_t size : {int64_t{1}, int64_t{1}, kPositions, int64_t{1}}) {
      input->add_shape(size);
    }
    request.add_raw_input_contents(std::string(4 * kPositions, '\0'));
  }
  auto* const mask = request.add_inputs();
  mask->set_name("mask");
  mask->set_datatype("FP32");
  mask->add_shape(0);
  request.add_raw_input_contents("");
  (*request.mutable_parameters())["scale"].set_double_param(1);
  const auto stub = inference::GRPCInferenceService::NewStub(daemon_->Connect());
  inference::ModelInferResponse response;
  ExpectRefused(stub->ModelInfer(client_.Context().get(), request, &response),
                StatusCode::INVALID_ARGUMENT, Parts("attention"));
}

TEST_F(WorkBoundTest, RepeatedElementsThatCanBeReadInTimeAre) {
  const RunOutcome sum = client_.Run(Sum(1 << 12));
  ASSERT_TRUE(sum.all_ok()) << sum.call.error_message() << sum.message();
  EXPECT_EQ(Floats(sum.result), std::vector<float>{0});
  const RunOutcome products = client_.Run(Gemm(1 << 12, 1024));
  ASSERT_TRUE(products.all_ok()) << products.call.error_message() << products.message();
  EXPECT_EQ(Floats(products.result), std::vector<float>(1024, 0));
  v1::RunGraphRequest run = RunOf(MakeGraph(1 << 12));
  Bind(run, "x").set_data(ToBytes<float>({1}));
  const GraphOutcome outcome = RunGraph(*daemon_, client_, run);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.floats(), std::vector<float>{1 << 12});
}

// A step of decoding reads the keys that there are, and not those for which there is room.
TEST_F(WorkBoundTest, KeysThatAreNotUsedDoNotCount) {
  v1::Batch batch = Tasks("attention", 1);
  Inline(batch, {1, 1, 1, 1}, {1});
  View(batch, {1, 1, Length(), 1}, {0, 0, 0, 0});
  View(batch, {1, 1, Length(), 1}, {0, 0, 0, 0});
  Inline(batch, {0}, {});
  Returned(batch, {1, 1, 1, 1});
  Scalar(batch, {1});
  Integer(batch, {0});
  v1::Batch all = batch;
  Integer(batch, {4});
  const RunOutcome outcome = client_.Run(batch);
  ASSERT_TRUE(outcome.all_ok()) << outcome.call.error_message() << outcome.message();
  EXPECT_EQ(Floats(outcome.result), std::vector<float>{0});
  Integer(all, {-1});
  ExpectRefused(client_.Run(all).call, StatusCode::INVALID_ARGUMENT, Parts("attention"));
}

// Large tasks of each kind that end in time on every machine: none is refused.
TEST_F(WorkBoundTest, LargeHonestTasksOfEachKindAreExecuted) {
  const auto expect_runs = [&](const v1::Batch& batch) {
    const RunOutcome outcome = client_.Run(batch);
    EXPECT_TRUE(outcome.all_ok()) << batch.tasks().operator_() << ": "
                                  << outcome.call.error_message() << outcome.message();
  };
  const uint64_t n = OnGpu() ? 2048 : 512;
  std::vector<uint64_t> matrices;
  for (int i = 0; i < 3; ++i) {
    matrices.emplace_back();
    const grpc::Status allocated = client_.Allocate(n * n, &matrices.back());
    ASSERT_TRUE(allocated.ok()) << allocated.error_message();
    v1::Batch fill = Tasks("fill", 1);
    Buffers(fill, {matrices.back()})->add_shape(n * n);
    Scalar(fill, {1});
    expect_runs(fill);
  }
  const auto add = [&](v1::Batch& batch, int matrix, const Dims& shape) {
    v1::BufferColumn* const column = Buffers(batch, {matrices[matrix]});
    for (const uint64_t size : shape) column->add_shape(size);
  };
  struct Task {
    const char* name;
    std::vector<Dims> shapes;
    std::vector<double> scalars;
  };
  for (const Task& task :
       std::vector<Task>{{"add", {{n, n}, {n}, {n, n}}, {1}},
                         {"softmax", {{n, n}, {n, n}}, {}},
                         {"rmsnorm", {{n, n}, {n}, {n, n}}, {}},
                         {"sum_rows", {{n, n}, {n}}, {}},
                         {"gemm", {{n, n}, {n, n}, {n, n}}, {}},
                         {"gemv", {{n}, {n, n}, {0}, {n}}, {}},
                         {"attention",
                          {{1, 4, n, 32}, {1, 4, n, 32}, {1, 4, n, 32}, {0}, {1, 4, n, 32}},
                          {0.1}}}) {
    v1::Batch batch = Tasks(task.name, 1);
    for (size_t i = 0; i < task.shapes.size(); ++i) {
      if (task.shapes[i] == Dims{0}) {
        Inline(batch, {0}, {});
      } else {
        add(batch, i + 1 == task.shapes.size() ? 2 : static_cast<int>(i % 2), task.shapes[i]);
      }
    }
    for (const double value : task.scalars) Scalar(batch, {value});
    expect_runs(batch);
  }
}

}  // namespace
}  // namespace resident::testing
