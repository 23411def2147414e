// Models with a plan for each set of sizes, on a real daemon: how plans are made, kept and dropped,
// and what happens to requests meanwhile.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/models.h"
#include "inference/open_inference.grpc.pb.h"
#include "server/onnx/model_maker_for_test.h"
#include "tests/daemon/daemon.h"
#include "tests/graph/graph_runs.h"
#include "tests/models/importers.h"
#include "tests/models/traffic.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Values = std::vector<float>;

constexpr int64_t kIn = 4;
constexpr int64_t kOut = 3;

// For a sequence of 1 to `max` tokens, each of kIn numbers: tokens = relu((x + positions) w), and
// mean, the mean of these over the tokens. The first rows of the positions are a weight that each
// plan has of its own; w is shared.
struct Encoder {
  // `extra`: the width of a square weight that does not change the result.
  explicit Encoder(uint32_t seed, int64_t max, int64_t extra = 0) : max(max) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> value(-1, 1);
    for (int64_t i = 0; i < max * kIn; ++i) positions.push_back(value(random));
    for (int64_t i = 0; i < kIn * kOut; ++i) w.push_back(value(random));
    onnx::ModelMaker maker;
    maker.Input("x", {"batch", "seq", absl::StrCat(kIn)});
    maker.Weight("positions",
                 onnx::Constant::Reals({max, kIn}, {positions.begin(), positions.end()}));
    maker.Weight("w", onnx::Constant::Reals({kIn, kOut}, {w.begin(), w.end()}));
    for (const auto& [name, number] : {std::pair{"zero", 0}, {"one", 1}}) {
      maker.Integers(name, {number});
    }
    maker.Node("Shape", {"x"}, {"shape"});
    maker.Node("Gather", {"shape", "one"}, {"length"});
    maker.Node("Slice", {"positions", "zero", "length", "zero"}, {"rows"});
    maker.Node("Add", {"x", "rows"}, {"sum"});
    std::string last = "sum";
    if (extra > 0) {
      for (const auto& [name, rows, columns] :
           {std::tuple{"up", kIn, extra}, {"across", extra, extra}}) {
        maker.Weight(name, onnx::Constant::Reals({rows, columns},
                                                 std::vector<double>(rows * columns, 1e-3)));
      }
      maker.Node("MatMul", {"sum", "up"}, {"raised"});
      maker.Node("MatMul", {"raised", "across"}, {"wide"});
      maker.Weight("none", onnx::Constant::Reals({1}, {0}));
      maker.Node("Mul", {"wide", "none"}, {"nothing"});
      maker.Node("ReduceMean", {"nothing"}, {"zeros"}, {onnx::IntsAttribute("axes", {2})});
      maker.Node("Add", {"sum", "zeros"}, {"added"});
      last = "added";
    }
    maker.Node("MatMul", {last, "w"}, {"product"});
    maker.Node("Relu", {"product"}, {"tokens"});
    maker.Node("ReduceMean", {"tokens"}, {"mean"},
               {onnx::IntsAttribute("axes", {1}), onnx::IntAttribute("keepdims", 0)});
    maker.Output("tokens");
    maker.Output("mean");
    model = maker.Bytes();
  }

  // In double precision: the tokens, then the means.
  std::vector<double> Reference(const Values& x, int64_t batch, int64_t seq) const {
    std::vector<double> tokens(batch * seq * kOut), means(batch * kOut);
    for (int64_t row = 0; row < batch * seq; ++row) {
      for (int64_t j = 0; j < kOut; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < kIn; ++i) {
          sum += (double{x[row * kIn + i]} + positions[row % seq * kIn + i]) * w[i * kOut + j];
        }
        tokens[row * kOut + j] = std::max(sum, 0.0);
        means[row / seq * kOut + j] += std::max(sum, 0.0) / seq;
      }
    }
    tokens.insert(tokens.end(), means.begin(), means.end());
    return tokens;
  }

  v1::LoadModelHeader Header(const std::string& name) const {
    v1::LoadModelHeader header;
    header.set_name(name);
    header.set_activate(true);
    header.mutable_onnx()->set_file("model.onnx");
    (*header.mutable_onnx()->mutable_max_sizes())["seq"] = max;
    return header;
  }

  int64_t max;
  Values positions, w;
  std::string model;
};

void AddWarmup(v1::LoadModelHeader& header, const std::vector<uint64_t>& shape,
               const std::string& input = "x") {
  auto& inputs = *header.mutable_onnx()->add_warmup()->mutable_inputs();
  inputs[input].mutable_sizes()->Add(shape.begin(), shape.end());
}

v1::ModelCall CallOf(const std::string& name, const Values& x, int64_t batch, int64_t seq) {
  v1::ModelCall call;
  call.set_model(name);
  v1::ModelTensor& tensor = *call.add_inputs();
  tensor.set_name("x");
  tensor.set_dtype(v1::DTYPE_F32);
  for (const int64_t size : {batch, seq, kIn}) tensor.add_shape(size);
  tensor.set_data(ToBytes(x));
  return call;
}

Values RandomValues(std::mt19937& random, int64_t count) {
  std::uniform_real_distribution<float> value(-2, 2);
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(value(random));
  return values;
}

// Sends a request, and compares the result.
absl::Status Serves(client::Models& models, const std::string& name, const Encoder& encoder,
                    int64_t batch, int64_t seq, uint32_t seed = 1) {
  std::mt19937 random(seed);
  const Values x = RandomValues(random, batch * seq * kIn);
  const auto result = models.Run(CallOf(name, x, batch, seq));
  if (!result.ok()) return result.status();
  Values got = FromBytes<float>(result->outputs(0));
  const Values means = FromBytes<float>(result->outputs(1));
  EXPECT_THAT(result->output_types(0).shape(), ElementsAre(batch, seq, kOut));
  EXPECT_THAT(result->output_types(1).shape(), ElementsAre(batch, kOut));
  got.insert(got.end(), means.begin(), means.end());
  const std::vector<double> expected = encoder.Reference(x, batch, seq);
  EXPECT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-4) << name << " " << batch << "x" << seq;
  }
  return absl::OkStatus();
}

class PlansTest : public ::testing::Test {
 protected:
  explicit PlansTest(const std::vector<std::string>& flags = {}) : daemon_(flags) {
    auto client = client::Client::Connect(daemon_.address());
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    models_ = std::make_unique<client::Models>(*client_);
  }

  void Load(const std::string& name, const Encoder& encoder) {
    Load(encoder.Header(name), encoder);
  }
  void Load(const v1::LoadModelHeader& header, const Encoder& encoder) {
    const auto loaded = models_->Load(header, {{"model.onnx", encoder.model}});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_NE(loaded->version(), 0u) << loaded->report().DebugString();
  }
  v1::ModelVersion Version(const std::string& name) const {
    const v1::Model model = models_->List(name)->at(0);
    return model.versions(model.versions_size() - 1);
  }
  std::vector<uint64_t> Plans(const std::string& name) const {
    std::vector<uint64_t> sizes;
    const v1::ModelVersion version = Version(name);
    for (const v1::ModelPlan& plan : version.plans()) sizes.push_back(plan.sizes(0));
    return sizes;
  }
  void ExpectServes(const std::string& name, const Encoder& encoder, int64_t batch, int64_t seq) {
    const absl::Status status = Serves(*models_, name, encoder, batch, seq);
    EXPECT_TRUE(status.ok()) << status;
  }
  void ExpectRefused(const v1::LoadModelHeader& header, const Encoder& encoder,
                     const std::string& part) {
    const absl::Status status = models_->Load(header, {{"model.onnx", encoder.model}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  Daemon daemon_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Models> models_;
};

TEST_F(PlansTest, TheFirstRequestOfEachSizeMakesAPlan) {
  EXPECT_THAT(daemon_.Metrics(), Not(HasSubstr("resident_model_plan")));
  const Encoder encoder(1, 16);
  Load("encoder", encoder);
  const v1::ModelVersion loaded = Version("encoder");
  ASSERT_EQ(loaded.dimensions_size(), 1);
  EXPECT_EQ(loaded.dimensions(0).name(), "seq");
  EXPECT_EQ(loaded.dimensions(0).most(), 16u);
  EXPECT_THAT(loaded.inputs(0).shape(), ElementsAre(-1, -1, kIn));
  EXPECT_THAT(loaded.inputs(0).most(), ElementsAre(64, 16, kIn));
  EXPECT_THAT(loaded.outputs(0).shape(), ElementsAre(-1, -1, kOut));
  EXPECT_THAT(loaded.outputs(1).shape(), ElementsAre(-1, kOut));
  EXPECT_EQ(loaded.plans_size(), 0);
  EXPECT_EQ(loaded.max_batch(), 64u) << loaded.not_batched();
  for (const auto& [batch, seq] : {std::pair{2, 3}, {1, 16}, {5, 3}, {1, 1}, {64, 2}}) {
    ExpectServes("encoder", encoder, batch, seq);
  }
  EXPECT_THAT(Plans("encoder"), ElementsAre(2, 1, 3, 16));
  const v1::ModelVersion used = Version("encoder");
  EXPECT_EQ(used.plan_misses(), 4u);
  EXPECT_EQ(used.executions(), 5u);
  EXPECT_EQ(used.instances(), 4u);
  EXPECT_EQ(used.plans(2).executions(), 2u);
  EXPECT_GT(used.plans(0).memory_bytes(), 0u);
  EXPECT_GT(used.plans(0).nodes(), 0u);
  const std::string labels = R"({model="encoder",version="1"})";
  EXPECT_EQ(daemon_.Figure("resident_model_plan_misses_total" + labels), 4u);
  EXPECT_EQ(daemon_.Figure("resident_model_plans" + labels), 4u);
}

TEST_F(PlansTest, RequestsThatDoNotFitAreRefused) {
  const Encoder encoder(1, 16);
  Load("encoder", encoder);
  const auto refused = [&](int64_t seq) {
    const Values x(2 * seq * kIn);
    const absl::Status status = models_->Run(CallOf("encoder", x, 2, seq)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << seq;
    return std::string(status.message());
  };
  EXPECT_THAT(refused(17), HasSubstr("seq is 17, the model was loaded for 16"));
  EXPECT_THAT(refused(0), HasSubstr("the shape [2, 0, 4]"));
  v1::ModelCall call = CallOf("encoder", Values(11), 1, 3);
  EXPECT_THAT(std::string(models_->Run(call).status().message()), HasSubstr("number of bytes"));
  EXPECT_TRUE(Plans("encoder").empty());
}

TEST_F(PlansTest, TheProtocolOfOtherServersShowsDynamicDimensions) {
  const Encoder encoder(1, 16);
  Load("encoder", encoder);
  const auto stub = inference::GRPCInferenceService::NewStub(daemon_.Connect());
  {
    grpc::ClientContext context;
    inference::ModelMetadataRequest request;
    request.set_name("encoder");
    inference::ModelMetadataResponse response;
    ASSERT_TRUE(stub->ModelMetadata(&context, request, &response).ok());
    EXPECT_THAT(response.inputs(0).shape(), ElementsAre(-1, -1, kIn));
    EXPECT_THAT(response.outputs(0).shape(), ElementsAre(-1, -1, kOut));
  }
  {
    grpc::ClientContext context;
    inference::ModelConfigRequest request;
    request.set_name("encoder");
    inference::ModelConfigResponse response;
    ASSERT_TRUE(stub->ModelConfig(&context, request, &response).ok());
    EXPECT_EQ(response.config().max_batch_size(), 64);
    EXPECT_THAT(response.config().input(0).dims(), ElementsAre(-1, kIn));
  }
  for (const int64_t seq : {7, 9}) {
    grpc::ClientContext context;
    inference::ModelInferRequest request;
    request.set_model_name("encoder");
    std::mt19937 random(3);
    const Values x = RandomValues(random, seq * kIn);
    auto& input = *request.add_inputs();
    input.set_name("x");
    input.set_datatype("FP32");
    for (const int64_t size : {int64_t{1}, seq, kIn}) input.add_shape(size);
    request.add_raw_input_contents(ToBytes(x));
    inference::ModelInferResponse response;
    const grpc::Status status = stub->ModelInfer(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(response.outputs(0).shape(), ElementsAre(1, seq, kOut));
    const Values got = FromBytes<float>(response.raw_output_contents(0));
    const std::vector<double> expected = encoder.Reference(x, 1, seq);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected.at(i), 1e-4);
  }
}

TEST_F(PlansTest, ALoadMakesThePlansOfItsShapes) {
  const Encoder encoder(1, 16);
  v1::LoadModelHeader header = encoder.Header("encoder");
  AddWarmup(header, {1, 3, kIn});
  AddWarmup(header, {1, 5, kIn});
  AddWarmup(header, {2, 5, kIn});
  Load(header, encoder);
  EXPECT_THAT(Plans("encoder"), ElementsAre(5, 3));
  ExpectServes("encoder", encoder, 2, 3);
  ExpectServes("encoder", encoder, 1, 5);
  EXPECT_EQ(Version("encoder").plan_misses(), 0u);
  // Shapes are not part of the content.
  EXPECT_TRUE(
      models_->Load(encoder.Header("encoder"), {{"model.onnx", encoder.model}})->already_loaded());

  const auto with = [&](const std::vector<uint64_t>& shape, const std::string& input) {
    v1::LoadModelHeader other = encoder.Header("other");
    AddWarmup(other, shape, input);
    return other;
  };
  ExpectRefused(with({1, 17, kIn}, "x"), encoder, "is 17 and must be 1 to 16");
  ExpectRefused(with({1, 3}, "x"), encoder, "has 3 dimensions");
  ExpectRefused(with({1, 3, kIn}, "y"), encoder, "input 'y' is not known");
  header = encoder.Header("other");
  header.mutable_onnx()->add_warmup();
  ExpectRefused(header, encoder, "dimension seq has no size");
  for (int i = 0; i < 32; ++i) AddWarmup(header, {1, 1, kIn});
  ExpectRefused(header, encoder, "a model keeps 32");
  header = encoder.Header("other");
  header.mutable_onnx()->clear_max_sizes();
  (*header.mutable_onnx()->mutable_sizes())["seq"] = 4;
  AddWarmup(header, {1, 4, kIn});
  ExpectRefused(header, encoder, "the model has one plan");
  EXPECT_EQ(models_->List()->size(), 1u);
}

TEST_F(PlansTest, ADimensionHasASizeOrABound) {
  const Encoder encoder(1, 16);
  v1::LoadModelHeader header = encoder.Header("encoder");
  (*header.mutable_onnx()->mutable_sizes())["seq"] = 4;
  auto loaded = models_->Load(header, {{"model.onnx", encoder.model}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->report().findings(0).code(), "MODEL_E108");
  header.mutable_onnx()->clear_max_sizes();
  header.mutable_onnx()->clear_sizes();
  loaded = models_->Load(header, {{"model.onnx", encoder.model}});
  EXPECT_EQ(loaded->report().findings(0).code(), "MODEL_E404");
  EXPECT_THAT(loaded->report().findings(0).message(), HasSubstr("--max seq=512"));
  // The same file with one size, and with a bound, are two versions.
  (*header.mutable_onnx()->mutable_sizes())["seq"] = 16;
  Load(header, encoder);
  EXPECT_EQ(Version("encoder").dimensions_size(), 0);
  ExpectServes("encoder", encoder, 2, 16);
  Load("encoder", encoder);
  EXPECT_EQ(Version("encoder").version(), 2u);
  ExpectServes("encoder", encoder, 2, 16);
  ExpectServes("encoder", encoder, 2, 5);
  ASSERT_TRUE(models_->Rollback("encoder").ok());
  EXPECT_FALSE(Serves(*models_, "encoder", encoder, 2, 5).ok());
  ExpectServes("encoder", encoder, 2, 16);
}

TEST_F(PlansTest, ThePlanThatWasUsedLongestAgoIsDropped) {
  const Encoder encoder(1, 40);
  Load("encoder", encoder);
  for (int64_t seq = 1; seq <= 32; ++seq) ExpectServes("encoder", encoder, 1, seq);
  ExpectServes("encoder", encoder, 1, 1);
  EXPECT_EQ(Plans("encoder").size(), 32u);
  ExpectServes("encoder", encoder, 1, 33);
  const std::vector<uint64_t> plans = Plans("encoder");
  EXPECT_EQ(plans.size(), 32u);
  EXPECT_EQ(plans[0], 33u);
  EXPECT_EQ(plans[1], 1u);
  EXPECT_EQ(std::ranges::count(plans, 2), 0);
  EXPECT_EQ(Version("encoder").plan_misses(), 33u);
  ExpectServes("encoder", encoder, 3, 2);
  EXPECT_EQ(Version("encoder").plan_misses(), 34u);
  EXPECT_EQ(Plans("encoder").size(), 32u);
}

// More sizes at the same time than plans that may exist.
TEST_F(PlansTest, RequestsOfManySizesAtTheSameTimeAreServed) {
  const Encoder encoder(1, 48);
  Load("encoder", encoder);
  std::vector<std::thread> clients;
  for (uint32_t i = 0; i < 48; ++i) {
    clients.emplace_back([&, i] {
      const auto client = client::Client::Connect(daemon_.address()).value();
      client::Models models(*client);
      std::mt19937 random(i);
      for (int round = 0; round < 3; ++round) {
        const absl::Status status =
            Serves(models, "encoder", encoder, 1 + random() % 3, 1 + (i + round * 5) % 48, i);
        EXPECT_TRUE(status.ok()) << status;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_LE(Plans("encoder").size(), 32u);
}

// Requests of equal sizes are combined, beside those of other sizes.
TEST_F(PlansTest, RequestsOfEqualSizesRunTogether) {
  const Encoder encoder(1, 8);
  v1::LoadModelHeader header = encoder.Header("encoder");
  header.set_instances(1);
  AddWarmup(header, {1, 4, kIn});
  AddWarmup(header, {1, 8, kIn});
  Load(header, encoder);
  const auto combined = [&] {
    const v1::ModelVersion version = Version("encoder");
    return version.requests() > version.executions() && version.plans_size() == 2;
  };
  Traffic traffic(/*threads=*/16, [&](std::mt19937& random) {
    const absl::Status status =
        Serves(*models_, "encoder", encoder, 1, random() % 2 == 0 ? 4 : 8, random());
    EXPECT_TRUE(status.ok()) << status;
    return 0u;
  });
  EXPECT_TRUE(Eventually(combined));
}

TEST_F(PlansTest, APlanThatCannotBeMadeFailsOnlyItsRequests) {
  onnx::ModelMaker maker;
  maker.Input("x", {"batch", "seq", absl::StrCat(kIn)});
  maker.Integers("halves", {0, 2, -1});
  maker.Node("Reshape", {"x", "halves"}, {"y"});
  maker.Output("y");
  const std::string model = maker.Bytes();
  v1::LoadModelHeader header = Encoder(1, 1).Header("halves");
  auto& sizes = *header.mutable_onnx()->mutable_max_sizes();
  // A product of kIn is always even.
  sizes["seq"] = 9;
  ASSERT_EQ(models_->Load(header, {{"model.onnx", model}})->version(), 1u);
  EXPECT_TRUE(models_->Run(CallOf("halves", Values(3 * kIn), 1, 3)).ok());

  onnx::ModelMaker pairs;
  pairs.Input("x", {"batch", "seq", "1"});
  pairs.Integers("halves", {0, 2, -1});
  pairs.Node("Reshape", {"x", "halves"}, {"y"});
  pairs.Output("y");
  header.set_name("pairs");
  sizes["seq"] = 8;
  ASSERT_EQ(models_->Load(header, {{"model.onnx", pairs.Bytes()}})->version(), 1u);
  const auto run = [&](int64_t seq) {
    v1::ModelCall call = CallOf("pairs", Values(seq), 1, seq);
    call.mutable_inputs(0)->set_shape(2, 1);
    return models_->Run(call).status();
  };
  EXPECT_TRUE(run(4).ok()) << run(4);
  const absl::Status odd = run(3);
  EXPECT_EQ(odd.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(odd.message()), HasSubstr("the plan of the model for seq=3: MODEL_E"));
  EXPECT_TRUE(run(6).ok());
  EXPECT_TRUE(run(4).ok());
  EXPECT_THAT(Plans("pairs"), ElementsAre(4, 6));
  // The half of the sequence is no dimension of the model.
  EXPECT_THAT(Version("pairs").outputs(0).shape(), ElementsAre(-1, 2, -1));
  EXPECT_THAT(Version("pairs").outputs(0).most(), ElementsAre(64, 2, 4));
}

// A model whose import takes a while.
class SlowPlansTest : public PlansTest {
 protected:
  SlowPlansTest() {
    v1::LoadModelHeader header = encoder_.Header("encoder");
    header.mutable_onnx()->set_max_batch(2);
    AddWarmup(header, {1, 4, kIn});
    Load(header, encoder_);
  }
  // Sends a request of another size from another thread, and returns when its plan is being made.
  std::thread StartMiss(int64_t seq, absl::Status* status) {
    std::thread thread([this, seq, status] {
      const auto client = client::Client::Connect(daemon_.address()).value();
      client::Models models(*client);
      *status = Serves(models, "encoder", encoder_, 1, seq);
    });
    while (Version("encoder").plan_misses() == 0) {
    }
    return thread;
  }

  const Encoder encoder_{1, 16, /*extra=*/2048};
};

TEST_F(SlowPlansTest, OtherRequestsDoNotWaitForAPlan) {
  bool beside = false;
  for (int64_t seq = 5; !beside; ++seq) {
    ASSERT_LE(seq, 16) << "no request was served while a plan was made";
    absl::Status miss;
    std::atomic<bool> ended = false;
    std::thread thread([&] {
      const auto client = client::Client::Connect(daemon_.address()).value();
      client::Models models(*client);
      miss = Serves(models, "encoder", encoder_, 1, seq);
      ended = true;
    });
    while (!ended && !beside) {
      const std::vector<pid_t> before = Importers(daemon_.pid());
      ExpectServes("encoder", encoder_, 1, 4);
      beside = !before.empty() && Importers(daemon_.pid()) == before;
    }
    thread.join();
    EXPECT_TRUE(miss.ok()) << miss;
  }
}

TEST_F(SlowPlansTest, ARequestThatEndsMeanwhileLeavesThePlan) {
  std::mt19937 random(1);
  const auto late =
      models_->Run(CallOf("encoder", RandomValues(random, 5 * kIn), 1, 5), absl::Milliseconds(1));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded) << late.status();
  EXPECT_TRUE(Eventually([&] { return Plans("encoder").size() == 2; }));
  ExpectServes("encoder", encoder_, 2, 5);
  EXPECT_EQ(Version("encoder").plan_misses(), 1u);
}

TEST_F(SlowPlansTest, AModelThatIsRemovedServesWhatItHasAdmitted) {
  absl::Status miss;
  std::thread thread = StartMiss(6, &miss);
  ASSERT_TRUE(models_->Remove("encoder").ok());
  thread.join();
  EXPECT_TRUE(miss.ok()) << miss;
  EXPECT_TRUE(models_->List()->empty());
  EXPECT_TRUE(Eventually([&] { return daemon_.Device().buffers() == 0; }));
}

TEST_F(SlowPlansTest, AnImporterThatIsKilledFailsTheRequestsOfItsPlan) {
  absl::Status miss;
  std::atomic<bool> done = false;
  std::thread killer([&] {
    while (!done) {
      for (const pid_t importer : Importers(daemon_.pid())) kill(importer, SIGKILL);
    }
  });
  std::thread thread = StartMiss(6, &miss);
  thread.join();
  done = true;
  killer.join();
  EXPECT_EQ(miss.code(), absl::StatusCode::kInvalidArgument) << miss;
  EXPECT_THAT(std::string(miss.message()), HasSubstr("the process that imports the model"));
  ExpectServes("encoder", encoder_, 1, 4);
  EXPECT_TRUE(Eventually([&] { return Serves(*models_, "encoder", encoder_, 1, 6).ok(); }));
}

// It may finish what it has admitted, or end the import.
TEST_F(SlowPlansTest, ADaemonThatEndsDoesNotLeaveAnImport) {
  absl::Status miss;
  std::thread thread = StartMiss(6, &miss);
  const pid_t daemon = daemon_.pid();
  daemon_.Kill(SIGTERM);
  const auto exit = daemon_.Wait();
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->status, 0) << exit->ToString();
  thread.join();
  EXPECT_TRUE(miss.ok() || absl::IsUnavailable(miss) || absl::IsCancelled(miss)) << miss;
  EXPECT_TRUE(Importers(daemon).empty());
}

TEST_F(SlowPlansTest, WeightsAreOnTheDeviceOnce) {
  // The large one has 16 MiB.
  for (int64_t seq = 1; seq <= 16; ++seq) ExpectServes("encoder", encoder_, 1, seq);
  EXPECT_EQ(Plans("encoder").size(), 16u);
  uint64_t memory = 0;
  const v1::ModelVersion version = Version("encoder");
  for (const v1::ModelPlan& plan : version.plans()) memory += plan.memory_bytes();
  const uint64_t weights = version.weight_bytes();
  EXPECT_GE(weights, 16u << 20);
  const uint64_t used = daemon_.Device().memory_used_bytes();
  EXPECT_GE(used, weights);
  EXPECT_LE(used, weights + memory + (1 << 20));
}

TEST_F(PlansTest, PlansServeAgainAfterTheirEngineEnded) {
  const Encoder encoder(1, 16);
  Load("encoder", encoder);
  for (int round = 0; round < 2; ++round) {
    for (const int64_t seq : {3, 9, 12}) ExpectServes("encoder", encoder, 2, seq);
    const pid_t engine = daemon_.engine_pid();
    ASSERT_EQ(kill(engine, SIGKILL), 0);
    ASSERT_TRUE(daemon_.AwaitAnotherEngine(engine));
  }
  for (const int64_t seq : {12, 3, 5}) ExpectServes("encoder", encoder, 2, seq);
  EXPECT_THAT(Plans("encoder"), ElementsAre(5, 3, 12, 9));
  EXPECT_EQ(Version("encoder").plan_misses(), 4u);
}

TEST_F(PlansTest, VersionsChangeUnderLoad) {
  const Encoder first(1, 16), second(2, 12);
  Load("encoder", first);
  Load("encoder", second);
  Traffic traffic(/*threads=*/4, [&](std::mt19937& random) {
    const int64_t seq = 1 + random() % 12;
    const Values x = RandomValues(random, seq * kIn);
    const auto result = models_->Run(CallOf("encoder", x, 1, seq));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return 0u;
    const Encoder& encoder = result->version() == 1 ? first : second;
    const std::vector<double> expected = encoder.Reference(x, 1, seq);
    const Values got = FromBytes<float>(result->outputs(0));
    for (size_t k = 0; k < got.size(); ++k) EXPECT_NEAR(got[k], expected.at(k), 1e-4);
    return result->version();
  });
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(models_->Rollback("encoder").ok());
}

// A daemon is killed and started again in the same folder.
TEST(PlansRestartTest, PlansAreMadeAgainAfterARestart) {
  const TempFolder folder("model-plans");
  const Encoder encoder(1, 16);
  for (int round = 0; round < 2; ++round) {
    Daemon daemon({absl::StrCat("--state_dir=", folder.path())});
    const auto client = client::Client::Connect(daemon.address()).value();
    client::Models models(*client);
    if (round == 0) {
      ASSERT_EQ(models.Load(encoder.Header("encoder"), {{"model.onnx", encoder.model}})->version(),
                1u);
    }
    const v1::ModelVersion version = models.List("encoder")->at(0).versions(0);
    EXPECT_EQ(version.unavailable(), "");
    EXPECT_EQ(version.dimensions_size(), 1);
    EXPECT_THAT(version.inputs(0).shape(), ElementsAre(-1, -1, kIn));
    for (const int64_t seq : {4, 16, 5 + round}) {
      const absl::Status status = Serves(models, "encoder", encoder, 2, seq);
      EXPECT_TRUE(status.ok()) << status;
    }
    const absl::Status above = Serves(models, "encoder", encoder, 1, 17);
    EXPECT_THAT(std::string(above.message()), HasSubstr("seq is 17"));
    daemon.Kill(SIGKILL);
    ASSERT_TRUE(daemon.Wait().has_value());
  }
}

// Memory for the weights, and for the plans of a few sizes.
class SmallDeviceTest : public PlansTest {
 protected:
  SmallDeviceTest() : PlansTest({"--device_memory_mib=16"}) {}

  // Leaves too little memory for another plan.
  void TakeMemory() {
    const v1::DeviceStatus device = daemon_.Device();
    const uint64_t left = device.memory_total_bytes() - device.memory_used_bytes();
    for (uint64_t taken = 0; taken + (1 << 20) < left; taken += 256 << 10) {
      auto buffer = client_->Allocate<uint8_t>({256 << 10});
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      buffers_.push_back(*std::move(buffer));
    }
  }

 private:
  std::vector<client::Buffer<uint8_t>> buffers_;
};

TEST_F(SmallDeviceTest, PlansThatNoRequestUsesGiveWayForMemory) {
  const Encoder encoder(1, 512);
  Load("encoder", encoder);
  // Each needs between one and two MiB, and together they keep four.
  for (int64_t seq = 490; seq <= 512; ++seq) ExpectServes("encoder", encoder, 1, seq);
  uint64_t memory = 0;
  const v1::ModelVersion version = Version("encoder");
  for (const v1::ModelPlan& plan : version.plans()) memory += plan.memory_bytes();
  EXPECT_GE(version.plans_size(), 2);
  EXPECT_LE(memory, 6u << 20);
  ExpectServes("encoder", encoder, 64, 500);
}

// Of the memory that is left beside a buffer.
TEST_F(SmallDeviceTest, AnotherPlanGetsTheMemoryOfOneThatNoRequestUses) {
  const Encoder encoder(1, 512);
  Load("encoder", encoder);
  ExpectServes("encoder", encoder, 1, 512);
  TakeMemory();
  ExpectServes("encoder", encoder, 1, 511);
  EXPECT_THAT(Plans("encoder"), ElementsAre(511));
}

// The plan that was used longest ago, whichever model it is of; a model with one plan keeps it, and
// makes its instance again.
TEST_F(SmallDeviceTest, PlansOfOtherModelsGiveWayForMemory) {
  const Encoder single(1, 512), first(2, 512), second(3, 512);
  v1::LoadModelHeader header = single.Header("single");
  header.mutable_onnx()->clear_max_sizes();
  (*header.mutable_onnx()->mutable_sizes())["seq"] = 512;
  Load(header, single);
  Load("first", first);
  Load("second", second);
  ExpectServes("first", first, 1, 512);
  TakeMemory();
  EXPECT_EQ(Version("single").instances(), 1u);
  ExpectServes("second", second, 1, 511);
  EXPECT_EQ(Version("single").instances(), 0u);
  EXPECT_THAT(Plans("first"), ElementsAre(512));
  ExpectServes("single", single, 1, 512);
  EXPECT_TRUE(Plans("first").empty());
  EXPECT_THAT(Plans("second"), ElementsAre(511));
  ExpectServes("first", first, 64, 510);
  EXPECT_TRUE(Plans("second").empty());
  EXPECT_EQ(Version("single").instances(), 1u);
}

}  // namespace
}  // namespace resident::testing
