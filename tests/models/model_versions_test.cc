// Versions of models on a real daemon: they change under load, share requests, are compared with
// the one before, are removed, and survive a restart.
//
// RESIDENT_TEST_MODEL_SCALE multiplies the requests that are sent while versions change (default 1;
// 1000: a million).
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/models.h"
#include "client/operators.h"
#include "tests/daemon/daemon.h"
#include "tests/graph/graph_maker.h"
#include "tests/graph/graph_runs.h"
#include "tests/models/models_fixture.h"
#include "tests/models/traffic.h"
#include "tests/support/eventually.h"
#include "tests/support/lane_tests.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

class VersionsOfModelsTest : public ModelsTest {
 protected:
  // Sends a request to the model "rank" that names no version, and returns the version that has
  // answered. `versions`: from version 1 on.
  uint32_t AskAnyVersion(const std::vector<Mlp>& versions, std::mt19937& random) {
    const Values x = RandomValues(random, kIn * (1 + random() % kRows));
    const auto result = models_->Run(CallOf("rank", x));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return 0;
    const uint32_t version = result->version();
    EXPECT_TRUE(version >= 1 && version <= versions.size() &&
                IsClose(result->outputs(0), versions[version - 1].Reference(x)))
        << "version " << version;
    return version;
  }
};

TEST_F(VersionsOfModelsTest, EachAnswerIsThatOfTheVersionItNamesWhileVersionsChange) {
  const Mlp first(4), second(5);
  ASSERT_EQ(MustLoad("rank", first, 4), 1u);
  ASSERT_EQ(MustLoad("rank", second, 4), 2u);
  Traffic traffic(/*threads=*/6, [&](std::mt19937& random) {
    return AskAnyVersion({first, second}, random);
  });
  const uint64_t wanted = Scaled(1000, "RESIDENT_TEST_MODEL_SCALE");
  for (int i = 0; i < 200 || traffic.served() < wanted; ++i) {
    if (HasFailure()) break;
    const auto change = i % 2 == 0 ? models_->Rollback("rank") : models_->Activate("rank", 2);
    ASSERT_TRUE(change.ok()) << change.status();
    EXPECT_EQ(change->version(), i % 2 == 0 ? 1u : 2u);
    // The next request is served by the new version.
    const Values x = RandomValues(random_, kIn);
    const auto result = models_->Run(CallOf("rank", x));
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->version(), change->version());
  }
  traffic.Stop();
  EXPECT_GT(traffic.served(1), 0u);
  EXPECT_GT(traffic.served(2), 0u);
  EXPECT_EQ(Describe("rank", 1).failed() + Describe("rank", 2).failed(), 0u);
}

TEST_F(VersionsOfModelsTest, AHundredRequestsInFlightAreServedWhileVersionsAndSharesChange) {
  const std::vector<Mlp> versions = {Mlp(31), Mlp(32), Mlp(33)};
  for (const Mlp& each : versions) MustLoad("rank", each, /*instances=*/2);
  Traffic traffic(/*threads=*/100,
                  [&](std::mt19937& random) { return AskAnyVersion(versions, random); });
  const uint64_t wanted = Scaled(2000, "RESIDENT_TEST_MODEL_SCALE");
  for (uint32_t i = 0; i < 60 || traffic.served() < wanted; ++i) {
    if (HasFailure()) break;
    const uint32_t active = 1 + i % 3, shared = 1 + (i + 1) % 3;
    ASSERT_TRUE(models_->Activate("rank", active).ok());
    ASSERT_TRUE(models_->Share("rank", shared, 10.0 * (i % 10)).ok());
    if (i % 4 == 0) {
      ASSERT_TRUE(models_->Rollback("rank").ok());
    }
    const uint64_t before = traffic.served();
    EXPECT_TRUE(Eventually([&] { return HasFailure() || traffic.served() > before + 20; }));
  }
  traffic.Stop();
  for (const uint32_t version : {1, 2, 3}) {
    EXPECT_GT(traffic.served(version), 0u);
    EXPECT_EQ(Describe("rank", version).failed(), 0u);
  }
}

TEST_F(VersionsOfModelsTest, AShareOfTheRequestsGoesToAnotherVersion) {
  const Mlp first(34), second(35);
  MustLoad("rank", first);
  MustLoad("rank", second, /*instances=*/0, /*activate=*/false);
  const Values x = RandomValues(random_, kIn);
  const auto count = [&](uint32_t version) {
    int counted = 0;
    for (int i = 0; i < 100; ++i) {
      const auto result = models_->Run(CallOf("rank", x));
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok() && result->version() == version) ++counted;
    }
    return counted;
  };
  EXPECT_EQ(count(2), 0);
  const auto share = models_->Share("rank", 2, 25);
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ(share->version(), 1u);
  EXPECT_EQ(count(2), 25);
  EXPECT_EQ(models_->List("rank")->at(0).share_version(), 2u);
  EXPECT_EQ(models_->List("rank")->at(0).share_percent(), 25);
  // A request that names a version gets that one.
  EXPECT_EQ(models_->Run(CallOf("rank", x, 1))->version(), 1u);
  ASSERT_TRUE(models_->Share("rank", 2, 0).ok());
  EXPECT_EQ(count(2), 0);
  ASSERT_TRUE(models_->Share("rank", 2, 100).ok());
  EXPECT_EQ(count(2), 100);
  ASSERT_TRUE(models_->Activate("rank", 2).ok());
  EXPECT_EQ(models_->List("rank")->at(0).share_version(), 0u) << "the activation ends it";
  ASSERT_TRUE(models_->Share("rank", 1, 50).ok());
  ASSERT_TRUE(models_->Remove("rank", 1).ok());
  EXPECT_EQ(count(2), 100);
  ExpectError(models_->Share("rank", 2, 50).status(), absl::StatusCode::kFailedPrecondition,
              "version 2 of model rank is active");
  ExpectError(models_->Share("rank", 9, 50).status(), absl::StatusCode::kNotFound, "no version 9");
  ExpectError(models_->Share("rank", 2, 101).status(), absl::StatusCode::kInvalidArgument,
              "101 percent");
  ExpectError(models_->Share("rank", 2, std::nan("")).status(), absl::StatusCode::kInvalidArgument,
              "percent");
}

// A model of one lookup in a table of this many rows.
v1::LoadModelHeader LookupHeader(int64_t rows) {
  GraphMaker g;
  g.Weight("table", {D(rows), D(int64_t{2})});
  g.Tensor(v1::GraphTensor::KIND_INPUT, "ids", {D(int64_t{1})}, v1::DTYPE_I64);
  g.Output("y", {D(int64_t{1}), D(int64_t{2})}).Call("embedding", {"ids", "table", "y"});
  v1::LoadModelHeader header;
  header.set_name("lookup");
  *header.mutable_graph() = g.graph;
  return header;
}

TEST_F(VersionsOfModelsTest, AVersionThatFailsInItsBakeIsRolledBack) {
  const std::string table(4 * 2 * sizeof(float), '\0');
  for (const int64_t rows : {4, 2}) {
    const std::string part = table.substr(0, rows * 2 * sizeof(float));
    const auto loaded = models_->Load(LookupHeader(rows), {{"table", part}});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
  }
  ASSERT_TRUE(models_->Activate("lookup", 1).ok());
  v1::BakeOptions bake;
  bake.set_max_error_rate(2);
  ExpectError(models_->Activate("lookup", 2, std::nullopt, bake).status(),
              absl::StatusCode::kInvalidArgument, "max_error_rate");
  v1::ModelCall call;
  call.set_model("lookup");
  v1::ModelTensor& ids = *call.add_inputs();
  ids.set_name("ids");
  ids.set_dtype(v1::DTYPE_I64);
  ids.add_shape(1);
  ids.set_data(ToBytes<int64_t>({3}));
  ASSERT_TRUE(models_->Run(call).ok());
  bake.set_max_error_rate(0.1);
  bake.set_min_tasks(20);
  bake.set_time_ms(3'600'000);
  bake.set_action(v1::BakeOptions::ACTION_WARN);
  ASSERT_TRUE(models_->Activate("lookup", 2, std::nullopt, bake).ok());
  client::Operators operators(*client_);
  // The newest event of the model.
  const auto event = [&] {
    const auto audit = operators.Audit("lookup");
    EXPECT_TRUE(audit.ok()) << audit.status();
    v1::OperatorEvent newest;
    for (const v1::OperatorEvent& each : audit->events()) {
      if (each.revision() > newest.revision()) newest = each;
    }
    return newest;
  };
  EXPECT_EQ(event().kind(), v1::OperatorEvent::KIND_ACTIVATED);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_FALSE(models_->Run(call).ok());
    return event().kind() == v1::OperatorEvent::KIND_REGRESSED;
  }));
  EXPECT_EQ(Describe("lookup", 2).state(), v1::ModelVersion::STATE_ACTIVE) << "only warned";
  ASSERT_TRUE(models_->Rollback("lookup").ok());
  bake.set_action(v1::BakeOptions::ACTION_ROLL_BACK);
  ASSERT_TRUE(models_->Activate("lookup", 2, std::nullopt, bake).ok());
  EXPECT_TRUE(Eventually([&] { return models_->Run(call).ok(); }));
  EXPECT_EQ(Describe("lookup", 1).state(), v1::ModelVersion::STATE_ACTIVE);
  EXPECT_TRUE(Eventually([&] { return event().kind() == v1::OperatorEvent::KIND_ROLLED_BACK; }));
  EXPECT_NE(event().message().find("rolled back automatically"), std::string::npos)
      << event().message();
}

TEST_F(VersionsOfModelsTest, ARemovedModelFinishesItsRequestsAndFreesItsMemory) {
  const uint64_t before = daemon_.Device().memory_used_bytes();
  MustLoadSlow("slow", /*ms=*/300, /*instances=*/1);
  std::thread running([&] { EXPECT_TRUE(models_->Run(SlowCall("slow")).ok()); });
  ASSERT_TRUE(Eventually([&] { return daemon_.Device().ring().in_flight() > 0; }));
  EXPECT_GT(daemon_.Device().memory_used_bytes(), before);
  ASSERT_TRUE(models_->Remove("slow").ok());
  ExpectError(models_->Run(SlowCall("slow")).status(), absl::StatusCode::kNotFound, "no model");
  running.join();
  EXPECT_TRUE(Eventually([&] { return daemon_.Device().memory_used_bytes() == before; }));
}

class ModelsRestartTest : public ::testing::Test {
 protected:
  std::string flag() const { return "--state_dir=" + folder_.path(); }

  const TempFolder folder_{"models"};
  std::mt19937 random_{std::random_device{}()};
};

// A daemon is killed and started again in the same folder.
TEST_F(ModelsRestartTest, ModelsServeAgainAfterAKilledDaemon) {
  const Mlp first(11), second(12);
  const std::string w1[] = {ToBytes(first.w1), ToBytes(second.w1)};
  const std::string b1[] = {ToBytes(first.b1), ToBytes(second.b1)};
  const std::string w2[] = {ToBytes(first.w2), ToBytes(second.w2)};
  const Values x = RandomValues(random_, 4 * kIn);
  uint64_t revision = 0;
  const auto expect = [&](client::Models& models, uint32_t version, const Mlp& mlp) {
    const auto result = models.Run(CallOf("rank", x));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->version(), version);
    EXPECT_TRUE(IsClose(result->outputs(0), mlp.Reference(x)));
  };
  {
    Daemon daemon({flag()});
    const auto client = client::Client::Connect(daemon.address()).value();
    client::Models models(*client);
    for (int i : {0, 1}) {
      v1::LoadModelHeader header;
      header.set_name("rank");
      header.set_activate(true);
      *header.mutable_graph() = Mlp::Graph().graph;
      ASSERT_TRUE(models.Load(header, {{"w1", w1[i]}, {"b1", b1[i]}, {"w2", w2[i]}}).ok());
      header.set_name("gone");
      ASSERT_TRUE(models.Load(header, {{"w1", w1[i]}, {"b1", b1[i]}, {"w2", w2[i]}}).ok());
    }
    ASSERT_TRUE(models.Remove("gone").ok());
    const auto back = models.Rollback("rank");
    ASSERT_TRUE(back.ok());
    revision = back->revision();
    expect(models, 1, first);
    daemon.Kill(SIGKILL);
    ASSERT_TRUE(daemon.Wait().has_value());
  }
  {
    Daemon daemon({flag()});
    const auto client = client::Client::Connect(daemon.address()).value();
    client::Models models(*client);
    const auto list = models.List().value();
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0].revision(), revision);
    ASSERT_EQ(list[0].versions_size(), 2);
    EXPECT_EQ(list[0].versions(0).state(), v1::ModelVersion::STATE_ACTIVE);
    EXPECT_EQ(list[0].versions(1).state(), v1::ModelVersion::STATE_PREVIOUS);
    EXPECT_EQ(list[0].versions(0).unavailable(), "");
    expect(models, 1, first);
    EXPECT_EQ(models.Rollback("rank").value().version(), 2u);
    expect(models, 2, second);
    ASSERT_TRUE(models.Share("rank", 1, 100).ok());
    daemon.Kill(SIGKILL);
    ASSERT_TRUE(daemon.Wait().has_value());
  }
  Daemon daemon({flag()});
  const auto client = client::Client::Connect(daemon.address()).value();
  client::Models models(*client);
  expect(models, 1, first);  // It has a share of all requests.
  ASSERT_TRUE(models.Share("rank", 1, 0).ok());
  expect(models, 2, second);
}

// A version whose operator is not there after a restart says so, and the others serve.
TEST_F(ModelsRestartTest, AVersionThatDoesNotFitTheOperatorsIsKeptWithItsReason) {
  {
    Daemon daemon({flag()});
    const auto client = client::Client::Connect(daemon.address()).value();
    client::Models models(*client);
    client::Operators operators(*client);
    auto twice = client::Installation::Expression("twice", "x * 2");
    twice.WaitFor(v1::VERSION_STATE_ACTIVE);
    ASSERT_TRUE(operators.Install(twice).ok());
    for (const char* op : {"relu", "twice"}) {
      GraphMaker g;
      g.Input("x", {D(int64_t{4})}).Output("y", {D(int64_t{4})}).Call(op, {"x", "y"});
      v1::LoadModelHeader header;
      header.set_name("m");
      header.set_activate(true);
      *header.mutable_graph() = g.graph;
      ASSERT_TRUE(models.Load(header, Weights()).ok());
    }
    ASSERT_TRUE(operators.Remove("twice").ok());
    daemon.Kill(SIGKILL);
    ASSERT_TRUE(daemon.Wait().has_value());
  }
  Daemon daemon({flag()});
  const auto client = client::Client::Connect(daemon.address()).value();
  client::Models models(*client);
  v1::ModelCall call;
  call.set_model("m");
  v1::ModelTensor& x = *call.add_inputs();
  x.set_name("x");
  x.set_dtype(v1::DTYPE_F32);
  x.add_shape(4);
  x.set_data(ToBytes<float>({-1, 2, -3, 4}));
  const auto refused = models.Run(call);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable) << refused.status();
  EXPECT_NE(refused.status().message().find("twice"), std::string::npos) << refused.status();
  EXPECT_NE(models.List("m").value()[0].versions(1).unavailable(), "");
  ASSERT_TRUE(models.Rollback("m").ok());
  const auto served = models.Run(call);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(FromBytes<float>(served->outputs(0)), (Values{0, 2, 0, 4}));
}

}  // namespace
}  // namespace resident::testing
