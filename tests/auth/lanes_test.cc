// Local lanes if callers have identities: quotas, rights, and what happens when they are withdrawn.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/auth/auth_support.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/lane.h"
#include "tests/support/eventually.h"

namespace resident::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kToken[] = "alice-token";
constexpr char kOtherToken[] = "viewer-token";

std::string Policy(const std::string& alice) {
  return absl::StrCat(R"({"identities": {"alice": )", alice,
                      R"(, "viewer": {"roles": ["admin"]}}})");
}

class LanesOfIdentitiesTest : public ::testing::Test {
 protected:
  void Start(const std::string& alice) {
    policy_ = folder_.Write("policy", Policy(alice));
    tokens_ = folder_.Write("tokens", Tokens(true));
    daemon_ = std::make_unique<Daemon>(std::vector<std::string>{
        "--policy=" + policy_, "--token_file=" + tokens_, "--local_address=" + path_});
    client::Options options;
    options.credentials.token = kToken;
    auto client = client::Client::Connect(daemon_->address(), options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto buffer = client_->Upload(std::vector<float>(16, 1.0f));
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    buffer_ = std::make_unique<client::Buffer<float>>(*std::move(buffer));
  }
  static std::string Tokens(bool alice) {
    return (alice ? TokenLine("alice", kToken) : "") + TokenLine("viewer", kOtherToken);
  }
  void Reload() { daemon_->Kill(SIGHUP); }
  std::unique_ptr<TestLane> NewLane(const std::string& token = kToken) {
    return std::make_unique<TestLane>(
        daemon_->Connect(),
        TestLane::Metadata{{"authorization", absl::StrCat("Bearer ", token)},
                           {"resident-session", client_->SessionId().value_or("")}});
  }
  std::unique_ptr<TestLane> OpenLane(uint32_t slots = 64) {
    auto lane = NewLane();
    const grpc::Status opened = lane->Open(slots);
    EXPECT_TRUE(opened.ok()) << opened.error_message();
    EXPECT_TRUE(lane->Attach(path_)) << lane->attach_error();
    EXPECT_TRUE(lane->Bind({buffer_->id()}, nullptr).ok());
    return lane;
  }

  const Folder folder_{"/tmp"};
  const std::string path_ = folder_.Path("socket");
  std::string policy_;
  std::string tokens_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Buffer<float>> buffer_;
};

TEST_F(LanesOfIdentitiesTest, ALaneHoldsItsSlotsOfTheQuota) {
  Start(R"({"roles": ["submit"], "quotas": {"tasks_in_flight": 1000}})");
  const auto too_many = NewLane();
  const grpc::Status refused = too_many->Open(1024);
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("1000"));
  auto lane = OpenLane(512);
  EXPECT_EQ(NewLane()->Open(512).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_TRUE(lane->Prepare(AddCall(buffer_->id(), 4), nullptr).ok());
  EXPECT_EQ(lane->Call(0, {0, 0, 0}).status, kLaneOk);
  lane.reset();
  // They are free again once the lane has ended.
  EXPECT_TRUE(Eventually([&] { return NewLane()->Open(512).ok(); }));
}

TEST_F(LanesOfIdentitiesTest, WithoutTheRoleOrWithAnotherIdentityThereIsNoLane) {
  Start(R"({"roles": ["submit"]})");
  // Another identity with the session's id: its role is missing, and the session is not its own.
  EXPECT_EQ(NewLane(kOtherToken)->Open(64).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(NewLane("unknown")->Open(64).error_code(), StatusCode::UNAUTHENTICATED);
}

TEST_F(LanesOfIdentitiesTest, OnlyOperatorsOfThePolicyCanBePreparedAndCalled) {
  Start(R"({"roles": ["submit"], "operators": {"submit": ["add", "mul"]}})");
  const auto lane = OpenLane();
  v1::PrepareLaneRequest sub = AddCall(buffer_->id(), 4);
  sub.mutable_tasks()->set_operator_("sub");
  EXPECT_EQ(lane->Prepare(sub, nullptr).error_code(), StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(lane->Prepare(AddCall(buffer_->id(), 4), nullptr).ok());
  v1::PrepareLaneRequest mul = AddCall(buffer_->id(), 4);
  mul.mutable_tasks()->set_operator_("mul");
  ASSERT_TRUE(lane->Prepare(mul, nullptr).ok());
  ASSERT_EQ(lane->Call(0, {0, 0, 0}).status, kLaneOk);
  // The right for one of them is withdrawn: the lane stays open.
  folder_.Write("policy", Policy(R"({"roles": ["submit"], "operators": {"submit": ["mul"]}})"));
  Reload();
  EXPECT_TRUE(Eventually([&] {
    const LaneEnd end = lane->Call(0, {0, 0, 0});
    return end.status == kLaneRefused && end.detail == kLaneRefusedPermission;
  }));
  EXPECT_THAT(lane->refusal(), HasSubstr("policy"));
  EXPECT_EQ(lane->Call(1, {0, 0, 0}).status, kLaneOk);
}

TEST_F(LanesOfIdentitiesTest, TheLaneEndsWhenTheCredentialIsWithdrawn) {
  Start(R"({"roles": ["submit"]})");
  const auto lane = OpenLane();
  ASSERT_TRUE(lane->Prepare(AddCall(buffer_->id(), 4), nullptr).ok());
  ASSERT_EQ(lane->Call(0, {0, 0, 0}).status, kLaneOk);
  folder_.Write("tokens", Tokens(false));
  Reload();
  EXPECT_EQ(lane->Finish().error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Eventually([&] { return lane->state() == kLaneClosed; }));
  // What is published afterwards is not read.
  const uint64_t completed = lane->completed();
  lane->Submit(0, {0, 0, 0});
  EXPECT_EQ(lane->completed(), completed);
}

TEST_F(LanesOfIdentitiesTest, TheLaneEndsWhenTheRoleIsWithdrawn) {
  Start(R"({"roles": ["submit"]})");
  const auto lane = OpenLane();
  folder_.Write("policy", Policy(R"({"roles": ["install"]})"));
  Reload();
  EXPECT_EQ(lane->Finish().error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Eventually([&] { return lane->state() == kLaneClosed; }));
}

}  // namespace
}  // namespace resident::testing
