#include "server/auth/access.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "inference/open_inference.pb.h"
#include "resident/v1/admin.pb.h"
#include "resident/v1/buffers.pb.h"
#include "resident/v1/executor.pb.h"
#include "resident/v1/graphs.pb.h"
#include "resident/v1/lanes.pb.h"
#include "resident/v1/models.pb.h"
#include "resident/v1/operators.pb.h"
#include "server/auth/method_roles.h"

namespace resident {
namespace {

using ::testing::HasSubstr;

constexpr char kRun[] = "/resident.v1.Executor/Run";
constexpr char kInstall[] = "/resident.v1.Operators/Install";
constexpr char kHealth[] = "/grpc.health.v1.Health/Check";

Presented Token(std::string_view authorization) {
  Presented presented;
  presented.authorization = authorization;
  presented.authorizations = 1;
  return presented;
}

Presented Certificate(std::string_view name) {
  Presented presented;
  presented.certificate = true;
  presented.certificate_name = name;
  presented.name_is_uri = name.find(':') != std::string_view::npos;
  return presented;
}

Policy MustParse(const std::string& text) {
  auto policy = ParsePolicy(text);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *policy;
}

TokenFile Tokens(const std::vector<std::pair<std::string, std::string>>& names_and_tokens) {
  TokenFile file;
  for (const auto& [name, token] : names_and_tokens) file.names[HashToken(token)] = name;
  return file;
}

void ExpectDenied(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
}

TEST(MethodRolesTest, EveryMethodOfEveryServiceIsListed) {
  std::set<std::string> methods;
  for (const auto* file :
       {v1::RunRequest::descriptor()->file(), v1::AllocateRequest::descriptor()->file(),
        v1::ActivateRequest::descriptor()->file(), v1::StatusRequest::descriptor()->file(),
        v1::ValidateGraphRequest::descriptor()->file(), v1::OpenLaneRequest::descriptor()->file(),
        v1::LoadModelRequest::descriptor()->file(),
        inference::ModelInferRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* const service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.insert("/" + service->full_name() + "/" + service->method(m)->name());
      }
    }
  }
  EXPECT_GE(methods.size(), 42u);
  // Like the health service.
  for (const char* probe : {"ServerLive", "ServerReady"}) {
    const std::string method = std::string("/inference.GRPCInferenceService/") + probe;
    EXPECT_TRUE(FindMethodRule(method).open_to_all);
    EXPECT_EQ(methods.erase(method), 1u);
  }
  for (const std::string& method : methods) {
    EXPECT_FALSE(FindMethodRule(method).roles.empty()) << method << " has no role";
    EXPECT_FALSE(FindMethodRule(method).open_to_all) << method;
  }
  for (const std::string_view listed : ListedMethods()) {
    if (listed.starts_with("/grpc.") || FindMethodRule(listed).open_to_all) continue;
    EXPECT_TRUE(methods.contains(std::string(listed))) << listed << " does not exist";
  }
}

TEST(AccessTest, WithoutAPolicyEveryCallerHasAllRights) {
  const Access access;
  EXPECT_TRUE(access.Admit(kInstall, {}).ok());
  EXPECT_EQ((*access.Identify({}))->name(), "anonymous");
  EXPECT_EQ((*access.Identify(Certificate("alice")))->name(), "alice");
  // Without a policy the token is ignored.
  EXPECT_EQ((*access.Identify(Token("Bearer what")))->name(), "anonymous");
  ExpectDenied(access.Admit("/resident.v1.Executor/New", {}), absl::StatusCode::kPermissionDenied,
               "not served");
}

class PolicyAccessTest : public ::testing::Test {
 protected:
  PolicyAccessTest() {
    access_.Load(MustParse(R"({"identities": {
        "worker": {"roles": ["submit"]}, "alice": {"roles": ["install"]}, "none": {"roles": []}}})"),
                 Tokens({{"worker", "w-token"}, {"stranger", "s-token"}, {"none", "n-token"}}));
  }
  Access access_;
};

TEST_F(PolicyAccessTest, CredentialsIdentifyTheCaller) {
  EXPECT_TRUE(access_.Admit(kRun, Token("Bearer w-token")).ok());
  EXPECT_TRUE(access_.Admit(kRun, Token("bEARER w-token")).ok());
  ExpectDenied(access_.Admit(kInstall, Token("Bearer w-token")),
               absl::StatusCode::kPermissionDenied,
               "identity 'worker' does not have the role 'install'");
  EXPECT_TRUE(access_.Admit(kInstall, Certificate("alice")).ok());
  ExpectDenied(access_.Admit(kRun, Certificate("bob")), absl::StatusCode::kPermissionDenied,
               "'bob'");
  ExpectDenied(access_.Admit(kRun, Token("Bearer s-token")), absl::StatusCode::kPermissionDenied,
               "'stranger'");
  ExpectDenied(access_.Admit(kRun, Token("Bearer n-token")), absl::StatusCode::kPermissionDenied,
               "'none'");
}

TEST_F(PolicyAccessTest, WithoutAValidCredentialOnlyHealthIsAllowed) {
  const absl::StatusCode code = absl::StatusCode::kUnauthenticated;
  ExpectDenied(access_.Admit(kRun, {}), code, "no credential");
  ExpectDenied(access_.Admit(kRun, Token("Bearer wrong")), code, "unknown token");
  ExpectDenied(access_.Admit(kRun, Token("Bearer ")), code, "no token");
  ExpectDenied(access_.Admit(kRun, Token("Basic dzp3")), code, "no token");
  ExpectDenied(access_.Admit(kRun, Token("")), code, "no token");
  const std::string huge = "Bearer " + std::string(100'000, 'x');
  ExpectDenied(access_.Admit(kRun, Token(huge)), code, "100000 bytes");
  ExpectDenied(access_.Admit(kRun, Certificate("")), code, "is not an identity");
  ExpectDenied(access_.Admit(kRun, Certificate("residentd")), code, "is not an identity");
  ExpectDenied(access_.Admit(kRun, Certificate("a\nb")), code, "is not an identity");
  Presented two = Token("Bearer w-token");
  two.authorizations = 2;
  ExpectDenied(access_.Admit(kRun, two), code, "more than once");
  // A valid certificate does not replace an invalid token.
  Presented both = Certificate("alice");
  both.authorization = "Bearer wrong";
  both.authorizations = 1;
  ExpectDenied(access_.Admit(kInstall, both), code, "unknown token");
  EXPECT_TRUE(access_.Admit(kHealth, {}).ok());
  EXPECT_TRUE(access_.Admit(kHealth, Token("Bearer wrong")).ok());
  ExpectDenied(access_.Admit("", Token("Bearer w-token")), absl::StatusCode::kPermissionDenied,
               "not served");
}

TEST_F(PolicyAccessTest, AReloadAppliesToExistingIdentities) {
  const auto worker = access_.Identify(Token("Bearer w-token"));
  ASSERT_TRUE(worker.ok());
  const std::shared_ptr<Account> account = (*worker)->account();
  ASSERT_TRUE(account->BeginTasks(5).ok());
  const Policy limited = MustParse(
      R"({"identities": {"worker": {"roles": ["submit"], "quotas": {"tasks_in_flight": 6}}}})");

  access_.Load(limited, Tokens({{"worker", "w-token"}, {"worker", "second"}}));
  EXPECT_TRUE((*worker)->Has(Role::kSubmit, kRun).ok());
  // Tasks in flight are counted per name, independent of the token.
  EXPECT_EQ((*access_.Identify(Token("Bearer second")))->account(), account);
  ExpectDenied(account->BeginTasks(2), absl::StatusCode::kResourceExhausted, "quota 6");
  EXPECT_TRUE(account->BeginTasks(1).ok());

  access_.Load(limited, Tokens({{"worker", "second"}}));
  ExpectDenied((*worker)->Has(Role::kSubmit, kRun), absl::StatusCode::kUnauthenticated,
               "removed from the token file");
  ExpectDenied(access_.Admit(kRun, Token("Bearer w-token")), absl::StatusCode::kUnauthenticated,
               "unknown token");
  EXPECT_TRUE(access_.Admit(kRun, Token("Bearer second")).ok());

  access_.Load(MustParse(R"({"identities": {}})"), Tokens({{"worker", "second"}}));
  ExpectDenied(account->MaySubmit("add"), absl::StatusCode::kPermissionDenied, "'worker'");
}

// A token that is assigned to another name is revoked for the first one.
TEST_F(PolicyAccessTest, ATokenAssignedToAnotherNameIsRevokedForTheFirst) {
  const auto worker = access_.Identify(Token("Bearer w-token"));
  access_.Load(MustParse(R"({"identities": {"worker": {"roles": ["submit"]}}})"),
               Tokens({{"other", "w-token"}}));
  EXPECT_EQ((*worker)->Has(Role::kSubmit, kRun).code(), absl::StatusCode::kUnauthenticated);
}

TEST(AccountTest, OperatorsAreMatchedByPrefix) {
  Rights rights;
  rights.roles = RoleSet::All();
  rights.submit_prefixes = {"rank.", "add"};
  rights.install_prefixes = std::vector<std::string>();
  const auto account = std::make_shared<Account>("a", rights);
  EXPECT_TRUE(account->MaySubmit("rank.score").ok());
  EXPECT_TRUE(account->MaySubmit("add").ok());
  ExpectDenied(account->MaySubmit("rank"), absl::StatusCode::kPermissionDenied,
               "identity 'a' may not run operator 'rank'");
  ExpectDenied(account->MaySubmit(""), absl::StatusCode::kPermissionDenied, "operators.submit");
  ExpectDenied(account->MayInstall("rank.score"), absl::StatusCode::kPermissionDenied,
               "may not change operator 'rank.score'");
}

TEST(AccountTest, QuotasAreReleased) {
  Rights rights;
  rights.roles = RoleSet::All();
  rights.tasks_in_flight = 10;
  rights.buffer_bytes = 100;
  const auto account = std::make_shared<Account>("a", rights);
  EXPECT_EQ(account->BeginTasks(11).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(account->BeginTasks(UINT64_MAX).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(account->BeginTasks(10).ok());
  EXPECT_EQ(account->BeginTasks(1).code(), absl::StatusCode::kResourceExhausted);
  account->EndTasks(10);
  EXPECT_EQ(account->tasks_in_flight(), 0u);
  {
    const auto held = account->ReserveBufferBytes(60);
    ASSERT_TRUE(held.ok());
    ExpectDenied(account->ReserveBufferBytes(41).status(), absl::StatusCode::kResourceExhausted,
                 "41 bytes with 60 in use");
    EXPECT_TRUE(account->ReserveBufferBytes(40).ok());
    EXPECT_EQ(account->ReserveBufferBytes(UINT64_MAX).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(account->buffer_bytes(), 0u);
}

TEST(AccountTest, InstallsAreCountedOverAMinute) {
  Rights rights;
  rights.roles = Role::kInstall;
  rights.installs_per_minute = 2;
  const auto account = std::make_shared<Account>("a", rights);
  const absl::Time start = absl::FromUnixSeconds(1'000'000);
  EXPECT_TRUE(account->BeginInstall("x", start).ok());
  EXPECT_TRUE(account->BeginInstall("x", start + absl::Seconds(30)).ok());
  ExpectDenied(account->BeginInstall("x", start + absl::Seconds(40)),
               absl::StatusCode::kResourceExhausted, "wait 20 s");
  EXPECT_TRUE(account->BeginInstall("x", start + absl::Seconds(60)).ok());
  EXPECT_FALSE(account->BeginInstall("x", start + absl::Seconds(60)).ok());
}

TEST(AccountTest, TasksOfManyThreadsNeverExceedTheQuota) {
  Rights rights;
  rights.roles = RoleSet::All();
  rights.tasks_in_flight = 3;
  const auto account = std::make_shared<Account>("a", rights);
  std::atomic<int> admitted{0};
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        if (!account->BeginTasks(2).ok()) continue;
        if (admitted.fetch_add(2) + 2 > 3) exceeded = true;
        admitted.fetch_sub(2);
        account->EndTasks(2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(account->tasks_in_flight(), 0u);
}

}  // namespace
}  // namespace resident
