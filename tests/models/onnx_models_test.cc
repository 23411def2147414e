// Models in the form of ONNX on a real daemon: files are sent, imported in a process of its own,
// and serve; files that cannot be imported are refused with their findings.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/models.h"
#include "resident/v1/models.grpc.pb.h"
#include "server/onnx/model_maker_for_test.h"
#include "tests/daemon/daemon.h"
#include "tests/graph/graph_runs.h"
#include "tests/models/importers.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<float>;
using Files = std::map<std::string, std::string_view>;

constexpr int64_t kIn = 5;
constexpr int64_t kHidden = 7;
constexpr int64_t kOut = 3;

// y = tanh(relu(x w1' + b1) w2), with w1 in the file "w1.bin".
struct Perceptron {
  explicit Perceptron(uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> value(-1, 1);
    for (const auto& [values, size] :
         {std::pair{&w1, kHidden * kIn}, {&b1, kHidden}, {&w2, kOut * kHidden}}) {
      for (int64_t i = 0; i < size; ++i) values->push_back(value(random));
    }
    onnx::ModelMaker maker;
    maker.Input("x", {"batch", absl::StrCat(kIn)});
    onnx::TensorProto& weight = maker.Weight("w1", onnx::Sizes64{kHidden, kIn});
    weight.clear_raw_data();
    weight.set_data_location(1);
    onnx::StringStringEntryProto& entry = *weight.add_external_data();
    entry.set_key("location");
    entry.set_value("w1.bin");
    maker.Weight("b1", onnx::Constant::Reals({kHidden}, {b1.begin(), b1.end()}));
    maker.Weight("w2", onnx::Constant::Reals({kHidden, kOut}, {w2.begin(), w2.end()}));
    maker.Node("Gemm", {"x", "w1", "b1"}, {"h"}, {onnx::IntAttribute("transB", 1)});
    maker.Node("Relu", {"h"}, {"r"});
    maker.Node("MatMul", {"r", "w2"}, {"s"});
    maker.Node("Tanh", {"s"}, {"y"});
    maker.Output("y");
    model = maker.Bytes();
    data = ToBytes(w1);
  }

  Files files() const { return {{"model.onnx", model}, {"w1.bin", data}}; }
  // In double precision.
  std::vector<double> Reference(const Values& x) const {
    std::vector<double> y;
    for (size_t row = 0; row < x.size() / kIn; ++row) {
      std::vector<double> sums(kOut);
      for (int64_t j = 0; j < kHidden; ++j) {
        double h = b1[j];
        for (int64_t k = 0; k < kIn; ++k) h += double{w1[j * kIn + k]} * x[row * kIn + k];
        for (int64_t i = 0; i < kOut; ++i) sums[i] += std::max(h, 0.0) * w2[j * kOut + i];
      }
      for (const double sum : sums) y.push_back(std::tanh(sum));
    }
    return y;
  }

  Values w1, b1, w2;
  std::string model, data;
};

v1::LoadModelHeader Header(const std::string& name) {
  v1::LoadModelHeader header;
  header.set_name(name);
  header.set_activate(true);
  header.mutable_onnx()->set_file("model.onnx");
  return header;
}

class OnnxModelsTest : public ::testing::Test {
 protected:
  explicit OnnxModelsTest(const std::vector<std::string>& flags = {}) : daemon_(flags) {
    auto client = client::Client::Connect(daemon_.address());
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    models_ = std::make_unique<client::Models>(*client_);
  }

  void ExpectServes(const std::string& name, const Perceptron& perceptron, uint64_t rows) {
    v1::ModelCall call;
    call.set_model(name);
    v1::ModelTensor& tensor = *call.add_inputs();
    tensor.set_name("x");
    tensor.set_dtype(v1::DTYPE_F32);
    tensor.add_shape(rows);
    tensor.add_shape(kIn);
    std::uniform_real_distribution<float> value(-2, 2);
    Values x;
    for (uint64_t i = 0; i < rows * kIn; ++i) x.push_back(value(random_));
    tensor.set_data(ToBytes(x));
    const auto result = models_->Run(call);
    ASSERT_TRUE(result.ok()) << result.status();
    const Values y = FromBytes<float>(result->outputs(0));
    const std::vector<double> expected = perceptron.Reference(x);
    ASSERT_EQ(y.size(), expected.size());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-5);
  }
  // The code of the finding for which the model is refused.
  void ExpectRefused(const v1::LoadModelHeader& header, const Files& files, const std::string& code,
                     const std::string& part) {
    const auto loaded = models_->Load(header, files);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->version(), 0u);
    EXPECT_FALSE(loaded->report().accepted());
    EXPECT_EQ(loaded->report().errors(), 1u);
    ASSERT_EQ(loaded->report().findings_size(), 1);
    EXPECT_EQ(loaded->report().findings(0).code(), code);
    EXPECT_THAT(loaded->report().findings(0).message(), HasSubstr(part));
  }
  void ExpectError(const v1::LoadModelHeader& header, const Files& files, const std::string& part) {
    const absl::Status status = models_->Load(header, files).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
  }

  Daemon daemon_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Models> models_;
  std::mt19937 random_{std::random_device{}()};
};

TEST_F(OnnxModelsTest, AFileServesRequestsOfEachSize) {
  const Perceptron first(random_()), second(random_());
  const auto loaded = models_->Load(Header("mlp"), first.files());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(loaded->version(), 1u) << loaded->report().DebugString();
  for (const uint64_t rows : {1, 2, 63, 64}) ExpectServes("mlp", first, rows);
  EXPECT_TRUE(models_->Load(Header("mlp"), first.files())->already_loaded());
  ASSERT_EQ(models_->Load(Header("mlp"), second.files())->version(), 2u);
  ExpectServes("mlp", second, 7);
  ASSERT_TRUE(models_->Rollback("mlp").ok());
  ExpectServes("mlp", first, 7);
  const v1::ModelVersion version = models_->List("mlp")->at(0).versions(0);
  EXPECT_EQ(version.inputs(0).shape(0), -1);
  EXPECT_EQ(version.inputs(0).max(), 64u);
  EXPECT_EQ(version.max_batch(), 64u) << version.not_batched();
  EXPECT_EQ(version.outputs(0).name(), "y");
}

TEST_F(OnnxModelsTest, SizesMayBeGiven) {
  const Perceptron perceptron(random_());
  v1::LoadModelHeader header = Header("eight");
  header.mutable_onnx()->set_max_batch(8);
  ASSERT_EQ(models_->Load(header, perceptron.files())->version(), 1u);
  EXPECT_EQ(models_->List("eight")->at(0).versions(0).inputs(0).max(), 8u);
  for (const uint64_t rows : {1, 8}) ExpectServes("eight", perceptron, rows);
  header = Header("three");
  (*header.mutable_onnx()->mutable_sizes())["batch"] = 3;
  ASSERT_EQ(models_->Load(header, perceptron.files())->version(), 1u);
  EXPECT_EQ(models_->List("three")->at(0).versions(0).inputs(0).shape(0), 3);
  ExpectServes("three", perceptron, 3);
}

TEST_F(OnnxModelsTest, ModelsThatCannotBeImportedAreRefusedWithTheirFindings) {
  const Perceptron perceptron(random_());
  ExpectRefused(Header("mlp"), {{"model.onnx", "not a model"}}, "MODEL_E101", "");
  {
    // The text of an attribute is not UTF-8.
    onnx::ModelMaker maker;
    maker.Input("x", {"4"});
    maker.Node("Pad", {"x"}, {"y"}, {onnx::StringAttribute("mode", "r\xf1x")});
    maker.Output("y");
    const auto loaded = models_->Load(Header("mlp"), {{"model.onnx", maker.Bytes()}});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->version(), 0u);
    EXPECT_GE(loaded->report().errors(), 1u);
  }
  ExpectRefused(Header("mlp"), {{"model.onnx", perceptron.model}}, "MODEL_E107", "w1.bin");
  v1::LoadModelHeader header = Header("mlp");
  (*header.mutable_onnx()->mutable_fixed_inputs())["z"] = "1";
  ExpectRefused(header, perceptron.files(), "MODEL_E108", "z");
  header = Header("mlp");
  (*header.mutable_onnx()->mutable_sizes())["batch"] = UINT64_MAX;
  ExpectRefused(header, perceptron.files(), "MODEL_E108", "batch");
  {
    onnx::ModelMaker maker;
    maker.Input("x", {"4"});
    maker.Node("Unknown", {"x"}, {"y"}).set_name("the node");
    maker.Output("y");
    ExpectRefused(Header("mlp"), {{"model.onnx", maker.Bytes()}}, "MODEL_E301", "Unknown");
  }
  {
    onnx::ModelMaker maker;
    maker.Input("a", {"n", "4"});
    maker.Input("b", {"m", "4"});
    maker.Node("Relu", {"a"}, {"y"});
    maker.Node("Relu", {"b"}, {"z"});
    maker.Output("y");
    maker.Output("z");
    const std::string bytes = maker.Bytes();
    ExpectRefused(Header("mlp"), {{"model.onnx", bytes}}, "MODEL_E404", "only one");
    v1::LoadModelHeader one = Header("pair");
    (*one.mutable_onnx()->mutable_sizes())["m"] = 2;
    EXPECT_EQ(models_->Load(one, {{"model.onnx", bytes}})->version(), 1u);
  }
  EXPECT_EQ(models_->List()->size(), 1u);
}

TEST_F(OnnxModelsTest, FilesThatDoNotFitTheHeaderAreRefused) {
  const Perceptron perceptron(random_());
  Files files = perceptron.files();
  v1::LoadModelHeader header = Header("mlp");
  header.mutable_onnx()->set_file("a/model.onnx");
  ExpectError(header, files, "cannot be called 'a/model.onnx'");
  ExpectError(Header("mlp"), {{"other.onnx", perceptron.model}}, "no file 'model.onnx' was sent");
  files["../w1.bin"] = "1234";
  ExpectError(Header("mlp"), files, "cannot be called '../w1.bin'");

  // As other clients may send it: other sizes than announced, and parts of the other kind.
  const auto channel = daemon_.Connect();
  const auto send = [&](uint64_t announced, const v1::LoadModelRequest& second) {
    const auto stub = v1::Models::NewStub(channel);
    grpc::ClientContext context;
    const auto stream = stub->Load(&context);
    v1::LoadModelRequest request;
    *request.mutable_header() = Header("mlp");
    request.mutable_header()->mutable_onnx()->set_file_bytes(announced);
    stream->Write(request);
    stream->Write(second);
    stream->WritesDone();
    v1::LoadModelResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish().error_message();
  };
  v1::LoadModelRequest file;
  file.mutable_file()->set_name("model.onnx");
  file.mutable_file()->set_data("1234");
  EXPECT_THAT(send(3, file), HasSubstr("announces 3 bytes of files, and 4 were sent"));
  EXPECT_THAT(send(5, file), HasSubstr("announces 5 bytes of files, and 4 were sent"));
  EXPECT_THAT(send(UINT64_MAX, file), HasSubstr("may have at most"));
  v1::LoadModelRequest weight;
  weight.mutable_weight()->set_tensor("w1");
  EXPECT_THAT(send(4, weight), HasSubstr("a part of a weight does not belong"));
  EXPECT_TRUE(models_->List()->empty());
  ASSERT_EQ(models_->Load(Header("mlp"), perceptron.files())->version(), 1u);
  ExpectServes("mlp", perceptron, 2);
}

// A request with fewer rows must not get rows of an earlier one.
TEST_F(OnnxModelsTest, ARowThatASmallBatchDoesNotHaveIsRefused) {
  for (const bool slice : {false, true}) {
    onnx::ModelMaker maker;
    maker.Input("x", {"batch", "4"});
    if (slice) {
      for (const auto& [name, value] : {std::pair{"first", 1}, {"last", 2}, {"axis", 0}}) {
        maker.Integers(name, {value});
      }
      maker.Node("Slice", {"x", "first", "last", "axis"}, {"y"});
    } else {
      maker.Integers("index", {1});
      maker.Node("Gather", {"x", "index"}, {"y"});
    }
    maker.Output("y");
    const std::string bytes = maker.Bytes();
    v1::LoadModelHeader header = Header(absl::StrCat("row", slice));
    ExpectRefused(header, {{"model.onnx", bytes}}, slice ? "MODEL_E404" : "MODEL_E302", "");
    // Each request of this one has the row.
    (*header.mutable_onnx()->mutable_sizes())["batch"] = 2;
    EXPECT_EQ(models_->Load(header, {{"model.onnx", bytes}})->version(), 1u) << slice;
  }
}

// A model of 64 MiB, so that its import takes a while.
std::string LargeModel() {
  onnx::ModelMaker maker;
  constexpr int64_t kSize = 4096;
  maker.Input("x", {"batch", absl::StrCat(kSize)});
  maker.Weight("w", onnx::Sizes64{kSize, kSize});
  maker.Node("MatMul", {"x", "w"}, {"y"});
  maker.Output("y");
  return maker.Bytes();
}

TEST_F(OnnxModelsTest, AnImporterThatIsKilledEndsOnlyItsLoad) {
  const Perceptron perceptron(random_());
  ASSERT_EQ(models_->Load(Header("mlp"), perceptron.files())->version(), 1u);
  const std::string large = LargeModel();
  std::atomic<bool> done = false;
  std::thread killer([&] {
    while (!done) {
      for (const pid_t importer : Importers(daemon_.pid())) kill(importer, SIGKILL);
    }
  });
  absl::Status status;
  while (status.ok()) {
    const auto loaded = models_->Load(Header("large"), {{"model.onnx", large}});
    status = loaded.status();
  }
  done = true;
  killer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the process that imports the model"));
  ExpectServes("mlp", perceptron, 5);
}

TEST_F(OnnxModelsTest, AnImportIsEndedWithItsCall) {
  const std::string large = LargeModel();
  const auto stub = v1::Models::NewStub(daemon_.Connect());
  // Until a call was cancelled while its model was imported.
  for (bool imported = false; !imported;) {
    grpc::ClientContext context;
    const auto stream = stub->Load(&context);
    v1::LoadModelRequest request;
    *request.mutable_header() = Header(absl::StrCat("large", random_()));
    request.mutable_header()->mutable_onnx()->set_file_bytes(large.size());
    stream->Write(request);
    for (size_t at = 0; at < large.size(); at += 1 << 20) {
      request.mutable_file()->set_name("model.onnx");
      request.mutable_file()->set_data(large.substr(at, 1 << 20));
      stream->Write(request);
    }
    stream->WritesDone();
    v1::LoadModelResponse response;
    stream->Read(&response);  // Everything has arrived.
    while (!imported && Importers(daemon_.pid()).empty() && models_->List()->empty()) {
    }
    imported = !Importers(daemon_.pid()).empty();
    context.TryCancel();
    while (stream->Read(&response)) {
    }
    stream->Finish();
  }
  EXPECT_TRUE(Eventually([&] { return Importers(daemon_.pid()).empty(); }));
  const Perceptron perceptron(random_());
  ASSERT_NE(models_->Load(Header("mlp"), perceptron.files())->version(), 0u);
  ExpectServes("mlp", perceptron, 5);
}

// A daemon is killed and started again in the same folder.
TEST(OnnxModelsRestartTest, AnImportedModelServesAfterARestart) {
  const TempFolder folder("onnx-models");
  const Perceptron perceptron(7);
  for (int round = 0; round < 2; ++round) {
    Daemon daemon({absl::StrCat("--state_dir=", folder.path())});
    const auto client = client::Client::Connect(daemon.address()).value();
    client::Models models(*client);
    if (round == 0) {
      ASSERT_EQ(models.Load(Header("mlp"), perceptron.files())->version(), 1u);
    }
    const auto list = models.List().value();
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0].versions(0).unavailable(), "");
    v1::ModelCall call;
    call.set_model("mlp");
    v1::ModelTensor& tensor = *call.add_inputs();
    tensor.set_name("x");
    tensor.set_dtype(v1::DTYPE_F32);
    tensor.add_shape(1);
    tensor.add_shape(kIn);
    const Values x(kIn, 0.5f);
    tensor.set_data(ToBytes(x));
    const auto result = models.Run(call);
    ASSERT_TRUE(result.ok()) << result.status();
    const Values y = FromBytes<float>(result->outputs(0));
    const std::vector<double> expected = perceptron.Reference(x);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(y.at(i), expected[i], 1e-5);
    daemon.Kill(SIGKILL);
    ASSERT_TRUE(daemon.Wait().has_value());
  }
}

}  // namespace
}  // namespace resident::testing
