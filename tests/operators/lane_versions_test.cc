// Versions of an operator that a local lane calls: which one a submission runs after a change has
// returned, shares of a trial, versions that are quarantined or removed.
#include <memory>
#include <string>
#include <vector>

#include "client/operators.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/lane.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using client::Installation;
using ::testing::HasSubstr;

class LaneVersionsTest : public ::testing::Test {
 protected:
  LaneVersionsTest() : daemon_({"--local_address=" + path_}) {
    auto client = client::Client::Connect(daemon_.address());
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    operators_ = std::make_unique<client::Operators>(*client_);
    auto buffer = client_->Upload(std::vector<float>(64, 3.0f));
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    buffer_ = std::make_unique<client::Buffer<float>>(*std::move(buffer));
    lane_ = std::make_unique<TestLane>(
        daemon_.Connect(),
        TestLane::Metadata{{"resident-session", client_->SessionId().value_or("")}});
    EXPECT_TRUE(lane_->Open(256).ok());
    EXPECT_TRUE(lane_->Attach(path_));
    EXPECT_TRUE(lane_->Bind({buffer_->id()}, nullptr).ok());
  }
  void Install(const std::string& expression, const std::string& label = "") {
    const auto installed = operators_->Install(Installation::Expression("scaled", expression)
                                                   .Label(label)
                                                   .WaitFor(v1::VERSION_STATE_ACTIVE));
    ASSERT_TRUE(installed.ok()) << installed.status();
  }
  // A call of `scaled`; the out is a place.
  uint16_t Prepare(uint32_t version = 0) {
    v1::OperatorTasks tasks;
    tasks.set_version(version);
    return PrepareNamed(tasks);
  }
  // The same; `named` has the version.
  uint16_t PrepareNamed(const v1::OperatorTasks& named) {
    v1::PrepareLaneRequest request;
    *request.mutable_tasks() = named;
    request.mutable_tasks()->set_operator_("scaled");
    request.mutable_tasks()->set_count(1);
    for (int a = 0; a < 2; ++a) {
      v1::BufferColumn& column = *request.mutable_tasks()->add_arguments()->mutable_buffer();
      column.add_buffer_ids(buffer_->id());
      column.add_shape(4);
      if (a == 1) column.add_offsets(128);
    }
    request.add_words()->mutable_place()->set_argument(1);
    v1::PrepareLaneResponse response;
    const grpc::Status status = lane_->Prepare(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return static_cast<uint16_t>(response.call());
  }
  LaneEnd Call(uint16_t call) { return lane_->Call(call, {lane_place(0, 128)}); }

  const TempFolder folder_{"resident-lanes", "/tmp"};
  const std::string path_ = folder_.path() + "/socket";
  const Daemon daemon_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Operators> operators_;
  std::unique_ptr<client::Buffer<float>> buffer_;
  std::unique_ptr<TestLane> lane_;
};

TEST_F(LaneVersionsTest, ASubmissionAfterAChangeReturnedRunsTheNewVersion) {
  Install("2 * x");
  const uint16_t call = Prepare();
  EXPECT_EQ(Call(call).version, 1u);
  Install("3 * x");
  EXPECT_EQ(Call(call).version, 2u);
  const uint16_t pinned = Prepare(1);
  for (uint32_t i = 0; i < 100; ++i) {
    const uint32_t wanted = i % 2 + 1;
    const auto changed = operators_->Activate("scaled", {.version = wanted});
    ASSERT_TRUE(changed.ok()) << changed.status();
    // Also while others are still under way.
    for (int burst = 0; burst < 20; ++burst) lane_->Submit(call, {lane_place(0, 128)});
    const LaneEnd end = Call(call);
    ASSERT_EQ(end.status, kLaneOk);
    ASSERT_EQ(end.version, wanted);
    ASSERT_EQ(Call(pinned).version, 1u);
  }
}

TEST_F(LaneVersionsTest, ACallRunsTheVersionWithItsHashOrLabelWhateverServes) {
  Install("2 * x", "stable");
  const auto described = client_->DescribeOperator("scaled");
  ASSERT_TRUE(described.ok()) << described.status();
  v1::OperatorTasks by_hash, by_label;
  by_hash.set_content_hash(described->versions(0).content_hash().substr(0, 12));
  by_label.set_label("stable");
  const uint16_t hash = PrepareNamed(by_hash), label = PrepareNamed(by_label);
  Install("3 * x");
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(operators_->Activate("scaled", {.version = i % 2 + 1}).ok());
    ASSERT_EQ(Call(hash).version, 1u);
    ASSERT_EQ(Call(label).version, 1u);
  }
  // Version 2 serves; version 1 leaves the kernel, and version 3 takes its label.
  Install("5 * x", "stable");
  EXPECT_EQ(Call(label).version, 3u);
  EXPECT_EQ(Call(hash).detail, kLaneRefusedPrepareAgain);
  EXPECT_THAT(lane_->refusal(), HasSubstr("version 3 (active, label 'stable')"));
}

TEST_F(LaneVersionsTest, EachSubmissionCountsForTheSharesOfATrial) {
  Install("2 * x");
  const uint16_t call = Prepare();
  const auto loaded = operators_->Install(Installation::Expression("scaled", "x + x"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto promoted = operators_->Promote("scaled", /*shadow_percent=*/0, /*traffic_percent=*/25);
  ASSERT_TRUE(promoted.ok()) << promoted.status();
  uint64_t on_trial = 0;
  const uint64_t first = lane_->next();
  for (int i = 0; i < 200; ++i) lane_->Submit(call, {lane_place(0, 128)});
  for (uint64_t s = first; s < first + 200; ++s) on_trial += lane_->Await(s).version == 2;
  EXPECT_EQ(on_trial, 50u);
}

TEST_F(LaneVersionsTest, ARemovalDoesNotWaitForAnIdleLaneAndItsCallsAreRefused) {
  Install("2 * x");
  const uint16_t call = Prepare(), pinned = Prepare(1);
  ASSERT_EQ(Call(call).status, kLaneOk);
  ASSERT_EQ(Call(pinned).status, kLaneOk);
  const auto removed = operators_->Remove("scaled");
  ASSERT_TRUE(removed.ok()) << removed.status();
  for (const uint16_t one : {call, pinned}) {
    const LaneEnd end = Call(one);
    EXPECT_EQ(end.status, kLaneRefused);
    EXPECT_EQ(end.detail, kLaneRefusedPrepareAgain);
  }
  // An operator of the same name is another one.
  Install("5 * x");
  EXPECT_EQ(Call(call).detail, kLaneRefusedPrepareAgain);
  EXPECT_THAT(lane_->refusal(), HasSubstr("prepare the call again"));
  EXPECT_EQ(Call(Prepare()).status, kLaneOk);
}

}  // namespace
}  // namespace resident::testing
