// What the tests of models that are graphs share: a daemon, a perceptron, and requests to it.
#ifndef RESIDENT_TESTS_MODELS_MODELS_FIXTURE_H_
#define RESIDENT_TESTS_MODELS_MODELS_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/models.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_maker.h"
#include "tests/graph/graph_runs.h"

namespace resident::testing {

using Values = std::vector<float>;
using Weights = std::map<std::string, std::string_view>;

inline constexpr int64_t kRows = 6;  // At most.
inline constexpr int64_t kIn = 5;
inline constexpr int64_t kHidden = 7;
inline constexpr int64_t kOut = 3;

// y = relu(x w1' + b1) w2', for up to kRows rows of x; s = scale * y.
struct Mlp {
  explicit Mlp(uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> value(-1, 1);
    for (const auto& [values, size] :
         {std::pair{&w1, kHidden * kIn}, {&b1, kHidden}, {&w2, kOut * kHidden}}) {
      for (int64_t i = 0; i < size; ++i) values->push_back(value(random));
    }
  }

  static GraphMaker Graph() {
    GraphMaker g;
    g.Scalar("n", 1, kRows).Scalar("scale", -8, 8, v1::DTYPE_F32);
    g.graph.mutable_scalars(1)->set_initial(2);
    g.Weight("w1", {D(kHidden), D(kIn)})
        .Weight("b1", {D(kHidden)})
        .Weight("w2", {D(kOut), D(kHidden)});
    g.Input("x", {D("n"), D(kIn)});
    g.Activation("h", {D("n"), D(kHidden)}).Activation("r", {D("n"), D(kHidden)});
    g.Output("y", {D("n"), D(kOut)}).Output("s", {D("n"), D(kOut)});
    g.Call("gemv", {"x", "w1", "b1", "h"}).Call("relu", {"h", "r"});
    g.Call("gemv", {"r", "w2", None(), "y"}).Call("scale", {"y", "s", S("scale")});
    return g;
  }

  std::string bytes(const Values& values) const { return ToBytes(values); }
  // The result in double precision.
  std::vector<double> Reference(const Values& x) const {
    std::vector<double> y;
    for (size_t row = 0; row < x.size() / kIn; ++row) {
      std::vector<double> h(kHidden);
      for (int64_t i = 0; i < kHidden; ++i) {
        h[i] = b1[i];
        for (int64_t k = 0; k < kIn; ++k) h[i] += double{w1[i * kIn + k]} * x[row * kIn + k];
        h[i] = std::max(h[i], 0.0);
      }
      for (int64_t i = 0; i < kOut; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < kHidden; ++k) sum += double{w2[i * kHidden + k]} * h[k];
        y.push_back(sum);
      }
    }
    return y;
  }

  Values w1, b1, w2;
};

inline Values RandomValues(std::mt19937& random, int64_t count) {
  std::uniform_real_distribution<float> value(-2, 2);
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(value(random));
  return values;
}

inline v1::ModelCall CallOf(const std::string& model, const Values& x, uint32_t version = 0) {
  v1::ModelCall call;
  call.set_model(model);
  call.set_version(version);
  v1::ModelTensor& tensor = *call.add_inputs();
  tensor.set_name("x");
  tensor.set_dtype(v1::DTYPE_F32);
  tensor.add_shape(x.size() / kIn);
  tensor.add_shape(kIn);
  tensor.set_data(ToBytes(x));
  return call;
}

inline bool IsClose(const std::string& bytes, const std::vector<double>& expected,
                    double factor = 1, double error = 1e-4) {
  const Values got = FromBytes<float>(bytes);
  if (got.size() != expected.size()) return false;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(got[i] - factor * expected[i]) <= error)) return false;
  }
  return true;
}

// A daemon, and models with the weights of an Mlp.
class ModelsTest : public ::testing::Test {
 protected:
  explicit ModelsTest(const std::vector<std::string>& flags = {}) : daemon_(flags) {
    auto client = client::Client::Connect(daemon_.address());
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    models_ = std::make_unique<client::Models>(*client_);
  }

  static v1::LoadModelHeader Header(const std::string& name, const v1::Graph& graph) {
    v1::LoadModelHeader header;
    header.set_name(name);
    *header.mutable_graph() = graph;
    header.set_activate(true);
    return header;
  }
  absl::StatusOr<v1::LoadModelResponse> Load(const std::string& name, const Mlp& mlp,
                                             uint32_t instances = 0, bool activate = true) {
    v1::LoadModelHeader header = Header(name, Mlp::Graph().graph);
    header.set_instances(instances);
    header.set_activate(activate);
    const std::string w1 = ToBytes(mlp.w1), b1 = ToBytes(mlp.b1), w2 = ToBytes(mlp.w2);
    return models_->Load(header, {{"w1", w1}, {"b1", b1}, {"w2", w2}});
  }
  uint32_t MustLoad(const std::string& name, const Mlp& mlp, uint32_t instances = 0,
                    bool activate = true) {
    const auto loaded = Load(name, mlp, instances, activate);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->version() : 0;
  }
  // A model whose node takes `ms` milliseconds.
  void MustLoadSlow(const std::string& name, int64_t ms, uint32_t instances) {
    GraphMaker g;
    g.Output("y", {D(int64_t{1})}).Call("test.spin", {"y", I(ms * 1'000'000)});
    v1::LoadModelHeader header = Header(name, g.graph);
    header.set_instances(instances);
    const auto loaded = models_->Load(header, Weights());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_NE(loaded->version(), 0u) << FindingsText(loaded->report());
  }
  static v1::ModelCall SlowCall(const std::string& name) {
    v1::ModelCall call;
    call.set_model(name);
    return call;
  }
  v1::ModelVersion Describe(const std::string& name, uint32_t version) {
    const auto models = models_->List(name);
    EXPECT_TRUE(models.ok()) << models.status();
    for (const v1::ModelVersion& each : models->at(0).versions()) {
      if (each.version() == version) return each;
    }
    return {};
  }
  static void ExpectError(const absl::Status& status, absl::StatusCode code,
                          const std::string& part) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
    EXPECT_NE(status.message().find("Fix: "), std::string::npos) << status;
  }

  Daemon daemon_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Models> models_;
  std::mt19937 random_{std::random_device{}()};
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_MODELS_MODELS_FIXTURE_H_
