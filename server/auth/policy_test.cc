#include "server/auth/policy.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace resident {
namespace {

using ::testing::HasSubstr;

TEST(PolicyTest, ReadsRolesPrefixesAndQuotas) {
  const auto policy = ParsePolicy(R"({
    // Comments are fine.
    "identities": {
      "ranking": {"roles": ["submit"], "operators": {"submit": ["rank.", "add"]},
                  "quotas": {"tasks_in_flight": 7, "buffer_mib": 2, "installs_per_minute": 0}},
      "spiffe://corp/deployer": {"roles": ["install", "admin"]},
      "anonymous": {"roles": []}
    }})");
  ASSERT_TRUE(policy.ok()) << policy.status();
  const Rights& ranking = policy->identities.at("ranking");
  EXPECT_EQ(ranking.roles, RoleSet(Role::kSubmit));
  EXPECT_EQ(*ranking.submit_prefixes, (std::vector<std::string>{"rank.", "add"}));
  EXPECT_FALSE(ranking.install_prefixes.has_value());
  EXPECT_EQ(ranking.tasks_in_flight, 7u);
  EXPECT_EQ(ranking.buffer_bytes, 2u << 20);
  EXPECT_EQ(ranking.installs_per_minute, 0u);
  EXPECT_FALSE(ranking.sessions.has_value());
  EXPECT_EQ(policy->identities.at("spiffe://corp/deployer").roles,
            RoleSet(Role::kInstall) | Role::kAdmin);
  EXPECT_TRUE(policy->identities.at("anonymous").roles.empty());
}

TEST(PolicyTest, ReadsQuotasOfConcurrentObjects) {
  const auto policy = ParsePolicy(R"({"identities": {
      "a": {"roles": [], "quotas": {"sessions": 1, "watches": 2, "installs": 0}}}})");
  ASSERT_TRUE(policy.ok()) << policy.status();
  const Account account("a", policy->identities.at("a"));
  EXPECT_EQ(account.session_quota(), 1u);
  EXPECT_EQ(account.watch_quota(), 2u);
  EXPECT_EQ(account.install_quota(), 0u);
  EXPECT_FALSE(Account("b", {}).session_quota().has_value());
}

struct BadPolicy {
  const char* text;
  const char* message;
};

class BadPolicyTest : public ::testing::TestWithParam<BadPolicy> {};

TEST_P(BadPolicyTest, IsRefusedWithItsPosition) {
  const auto policy = ParsePolicy(GetParam().text);
  ASSERT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(policy.status().message());
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, HasSubstr("Fix: "));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPolicyTest,
    ::testing::Values(
        BadPolicy{"", "line 1"}, BadPolicy{"{\n\"identities\": {\n\"a\" {}}}", "line 3"},
        BadPolicy{"[]", "policy: is not an object"}, BadPolicy{"{}", "identities: is missing"},
        BadPolicy{R"({"identities": [1]})", "identities: is missing or not an object"},
        BadPolicy{R"({"identities": {}, "identity": {}})", "policy.identity: no such field"},
        // A spelling mistake must not grant a right to everyone.
        BadPolicy{R"({"identities": {"a": {"roles": ["submit"], "operator": {}}}})",
                  "identities.a.operator: no such field"},
        BadPolicy{R"({"identities": {"a": {"roles": ["submit"], "quotas": {"task": 1}}}})",
                  "identities.a.quotas.task: no such field"},
        // The parser would silently use the second key.
        BadPolicy{R"({"identities": {"a": {"roles": []}, "a": {"roles": ["admin"]}}})",
                  "identities.a: is repeated"},
        BadPolicy{R"({"identities": {"a": {}}})", "identities.a.roles: is missing"},
        BadPolicy{R"({"identities": {"a": {"roles": "submit"}}})",
                  "identities.a.roles: is not a list of strings"},
        BadPolicy{R"({"identities": {"a": {"roles": ["Submit"]}}})", "unknown role 'Submit'"},
        BadPolicy{R"({"identities": {"a": {"roles": [], "operators": {"submit": [""]}}}})",
                  "has an empty prefix"},
        BadPolicy{R"({"identities": {"a": {"roles": [], "quotas": {"buffer_mib": -1}}}})",
                  "identities.a.quotas.buffer_mib: is -1"},
        BadPolicy{R"({"identities": {"a": {"roles": [], "quotas": {"buffer_mib": 1.5}}}})",
                  "is 1.5"},
        BadPolicy{R"({"identities": {"residentd": {"roles": []}}})", "the daemon's own name"},
        BadPolicy{R"({"identities": {"a b": {"roles": []}}})", "is not a valid name"},
        BadPolicy{R"({"identities": {"": {"roles": []}}})", "is not a valid name"},
        BadPolicy{"[[[[[[[[[[[[[[[[[[[[", "nested too deeply"}));

TEST(TokenFileTest, ReadsNamesAndHashes) {
  const std::string hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
  const auto file = ParseTokenFile("# all of them\n\nranking " + hash + "  # \"test\"\r\n");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->names.size(), 1u);
  EXPECT_EQ(file->names.begin()->second, "ranking");
  // The hash is computed from the token's text.
  EXPECT_EQ(file->names.begin()->first, HashToken("test"));
}

TEST(TokenFileTest, BadLinesAreRefusedAndTokensNotRepeated) {
  const std::string hash(64, 'a');
  for (const auto& [text, message] :
       {std::pair<std::string, std::string>{"a\n", "line 1: 1 words"},
        {"\na secret-token\n", "line 2: the second word is not a SHA-256 hash"},
        {"a " + hash + "\nb " + hash + "\n", "line 2: the same token as that of 'a'"},
        {"residentd " + hash + "\n", "the daemon's own name"}}) {
    const auto file = ParseTokenFile(text);
    ASSERT_FALSE(file.ok()) << text;
    const std::string error(file.status().message());
    EXPECT_THAT(error, HasSubstr(message));
    EXPECT_THAT(error, ::testing::Not(HasSubstr("secret-token")));
  }
}

}  // namespace
}  // namespace resident
