#include "runtime/operators/install/claim_table.h"

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/fake_time.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::string kA(64, 'a');
const std::string kB(64, 'b');
constexpr std::chrono::milliseconds kTtl(30'000);

class ClaimTableTest : public ::testing::Test {
 protected:
  ClaimTableTest() { Open(); }

  void Open() {
    table_.reset();
    state_.reset();
    state_ = *StateStore::Open({.directory = folder_.path()});
    table_ = std::make_unique<ClaimTable>(registry_.get(), state_.get(), &time_);
  }
  static PlanClaim MakeClaim(const std::string& plan, uint64_t lease = 0) {
    PlanClaim claim;
    claim.plan = plan;
    claim.set = "ranking";
    claim.holder = "somebody";
    claim.ttl = kTtl;
    claim.names = {"swish", "rule"};
    claim.lease = lease;
    return claim;
  }
  // Makes a version with this content hash the active one.
  void Activate(const std::string& name, const std::string& hash) {
    VersionSpec spec;
    spec.kind = OperatorKind::kBytecode;
    spec.bytecode = std::make_shared<const std::string>("\0");
    spec.content_hash = hash;
    const Registry::Commit commit = [this](const RegistryChange&) { return ++revision_; };
    auto reserved = registry_->Reserve(name, spec, std::nullopt, absl::InfiniteFuture());
    ASSERT_TRUE(registry_->Load(*std::move(reserved), std::nullopt, commit, "").ok());
    ASSERT_TRUE(registry_->Activate(name, 0, std::nullopt, false, commit).ok());
  }
  absl::Status Check(const std::string& plan, uint64_t lease = 0,
                     const std::string& name = "swish") const {
    return table_->Check(name, {.plan = plan, .set = "ranking", .lease = lease});
  }

  const testing::TempFolder folder_{"claims"};
  FakeTime time_;
  uint64_t revision_ = 0;
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  std::unique_ptr<StateStore> state_;
  std::unique_ptr<ClaimTable> table_;
};

TEST_F(ClaimTableTest, AClaimRecordsWhatIsActiveAndKeepsOthersOut) {
  Activate("swish", "first");
  const auto claimed = table_->Claim(MakeClaim(kA));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_FALSE(claimed->resumed);
  EXPECT_THAT(claimed->record.before, ElementsAre(Pair("swish", "first"), Pair("rule", "")));

  EXPECT_TRUE(Check(kA, claimed->lease).ok());
  EXPECT_TRUE(Check(kA).ok());  // A lease is checked only if it is named.
  EXPECT_TRUE(Check("", 0, "other").ok());
  for (const std::string& plan : {std::string(), kB}) {
    const absl::Status refused = Check(plan);
    EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
    for (const char* text :
         {"'swish'", "'somebody'", "aaaaaaaaaaaa", "'ranking'", "0 ago", "Fix: "}) {
      EXPECT_THAT(std::string(refused.message()), HasSubstr(text));
    }
  }
  const absl::Status other = table_->Claim(MakeClaim(kB)).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(other.message()), HasSubstr("'somebody'"));
}

TEST_F(ClaimTableTest, AClaimIsALease) {
  const uint64_t lease = table_->Claim(MakeClaim(kA))->lease;
  time_.Advance(kTtl - std::chrono::seconds(1));
  ASSERT_TRUE(table_->Claim(MakeClaim(kA, lease)).ok());
  time_.Advance(kTtl - std::chrono::seconds(1));
  EXPECT_FALSE(Check("").ok());
  EXPECT_EQ(table_->plans().lease, lease);
  time_.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(Check("").ok());
  EXPECT_EQ(table_->plans().lease, 0u);
  // What still has the old lease may not change anything, until it has renewed it.
  EXPECT_EQ(Check(kA, lease).code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(table_->Claim(MakeClaim(kA, lease)).ok());
  EXPECT_TRUE(Check(kA, lease).ok());
  time_.Advance(kTtl);
  ASSERT_TRUE(table_->Claim(MakeClaim(kB)).ok());
  EXPECT_EQ(table_->Claim(MakeClaim(kA, lease)).status().code(), absl::StatusCode::kAborted);
}

TEST_F(ClaimTableTest, TheSamePlanTakesItsClaimOverWithTheOriginalRecord) {
  Activate("swish", "first");
  const uint64_t lease = table_->Claim(MakeClaim(kA))->lease;
  Activate("swish", "second");
  const auto next = table_->Claim(MakeClaim(kA));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(next->resumed);
  EXPECT_THAT(next->record.before, ElementsAre(Pair("swish", "first"), Pair("rule", "")));
  EXPECT_NE(next->lease, lease);
  EXPECT_EQ(Check(kA, lease).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(table_->Claim(MakeClaim(kA, lease)).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(table_->Release(kA, lease, PlanState::kDone).code(), absl::StatusCode::kAborted);
}

TEST_F(ClaimTableTest, AnotherPlanCanStealAClaim) {
  const uint64_t lease = table_->Claim(MakeClaim(kA))->lease;
  PlanClaim steal = MakeClaim(kB);
  steal.steal = true;
  ASSERT_TRUE(table_->Claim(steal).ok());
  EXPECT_EQ(Check(kA, lease).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Check(kB).ok());
}

TEST_F(ClaimTableTest, ARestartKeepsTheClaimForItsWholeLeaseAndTheRecords) {
  Activate("swish", "first");
  const uint64_t lease = table_->Claim(MakeClaim(kA))->lease;
  PlanClaim failed = MakeClaim(kA, lease);
  failed.state = PlanState::kFailed;
  ASSERT_TRUE(table_->Claim(failed).ok());
  time_.Advance(kTtl - std::chrono::seconds(1));
  Open();
  time_.Advance(kTtl - std::chrono::seconds(1));
  EXPECT_FALSE(Check("").ok());
  EXPECT_TRUE(Check(kA, lease).ok());
  EXPECT_EQ(table_->Claim(MakeClaim(kB)).status().code(), absl::StatusCode::kAborted);
  const auto again = table_->Claim(MakeClaim(kA));
  EXPECT_TRUE(again->resumed);
  EXPECT_EQ(again->record.state, PlanState::kFailed);
  EXPECT_THAT(again->record.before, ElementsAre(Pair("swish", "first"), Pair("rule", "")));
  ASSERT_TRUE(table_->Release(kA, again->lease, PlanState::kDone).ok());
  Open();
  EXPECT_TRUE(Check("").ok());
  ASSERT_EQ(table_->plans().plans.size(), 1u);
  EXPECT_EQ(table_->plans().plans[0].state, PlanState::kDone);
}

TEST_F(ClaimTableTest, APlanThatEndedStartsAnew) {
  const auto claim = [&](std::optional<PlanState> state) {
    PlanClaim claim = MakeClaim(kA);
    claim.state = state;
    return *table_->Claim(claim);
  };
  Activate("swish", "first");
  ASSERT_TRUE(table_->Release(kA, claim({}).lease, PlanState::kDone).ok());
  Activate("swish", "second");
  EXPECT_EQ(claim(PlanState::kDone).record.before[0].second, "first");    // Kept on request.
  EXPECT_EQ(claim(PlanState::kFailed).record.before[0].second, "first");  // For the way back.
  EXPECT_EQ(claim({}).record.before[0].second, "first");                  // A failed plan stays.
  const ClaimedPlan anew = claim(PlanState::kRunning);
  EXPECT_FALSE(anew.resumed);
  EXPECT_EQ(anew.record.before[0].second, "second");
  EXPECT_EQ(anew.record.state, PlanState::kRunning);
  ASSERT_TRUE(table_->Release(kA, anew.lease, PlanState::kDone).ok());
  Activate("swish", "third");
  EXPECT_EQ(claim({}).record.before[0].second, "third");
}

TEST_F(ClaimTableTest, APlanOfItsSetThatBeganLaterSupersedesTheFolder) {
  const std::string c(64, 'c');
  FolderRecord folder{.digest = "1", .plan = kA, .set = "ranking"};
  const auto run = [&](const std::string& plan, PlanState ended) {
    PlanClaim claim = MakeClaim(plan);
    claim.state = PlanState::kRunning;
    ASSERT_TRUE(table_->Release(plan, table_->Claim(claim)->lease, ended).ok());
  };
  const auto superseded_by = [&] { return table_->plans().folder.superseded_by; };
  run(kB, PlanState::kDone);  // There is no folder.
  EXPECT_EQ(superseded_by(), "");
  ASSERT_TRUE(table_->RecordFolder(folder).ok());
  run(kB, PlanState::kFailed);
  run(kA, PlanState::kDone);  // What the folder says itself.
  EXPECT_EQ(superseded_by(), "");
  run(kB, PlanState::kDone);
  EXPECT_EQ(superseded_by(), kB);
  // It is kept, whatever is recorded about these contents.
  folder.applied = true;
  ASSERT_TRUE(table_->RecordFolder(folder).ok());
  Open();
  EXPECT_EQ(superseded_by(), kB);
  EXPECT_NEAR(table_->plans().folder.superseded_ms, absl::ToUnixMillis(absl::Now()), 60'000);
  EXPECT_TRUE(table_->plans().folder.applied);
  run(c, PlanState::kFailed);  // Another one that was undone.
  EXPECT_EQ(superseded_by(), kB);
  run(kB, PlanState::kFailed);
  EXPECT_EQ(superseded_by(), "");
  // A plan that had its claim when the folder changed began before it.
  const uint64_t lease = table_->Claim(MakeClaim(c))->lease;
  ASSERT_TRUE(table_->RecordFolder({.digest = "2", .plan = kA, .set = "ranking"}).ok());
  EXPECT_FALSE(table_->plans().folder.applied);
  ASSERT_TRUE(table_->Release(c, lease, PlanState::kDone).ok());
  EXPECT_EQ(superseded_by(), "");
  run(c, PlanState::kDone);
  EXPECT_EQ(superseded_by(), c);
  ASSERT_TRUE(table_->RecordFolder({.digest = "3", .plan = kA, .set = "other"}).ok());
  run(kB, PlanState::kDone);  // Of another set.
  EXPECT_EQ(superseded_by(), "");
}

TEST_F(ClaimTableTest, WhatAFolderListsIsChangedByPlansOrWithDrift) {
  EXPECT_TRUE(table_->CheckListed("swish", "x", {}).ok());
  table_->ListFolder("ranking", {{"swish", "wanted"}});
  for (const char* hash : {"x", ""}) {
    const absl::Status refused = table_->CheckListed("swish", hash, {});
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("operator 'swish' is in the set 'ranking'"));
    EXPECT_TRUE(table_->CheckListed("swish", hash, {.drift = true}).ok());
    EXPECT_TRUE(table_->CheckListed("swish", hash, {.plan = kA}).ok());
  }
  EXPECT_TRUE(table_->CheckListed("other", "x", {}).ok());
  table_->ListFolder("ranking", {{"other", "wanted"}});
  EXPECT_TRUE(table_->CheckListed("swish", "x", {}).ok());
}

TEST_F(ClaimTableTest, WhatAFolderWantsNeedsNoPlanUnlessItIsSuperseded) {
  table_->ListFolder("ranking", {{"swish", "wanted"}});
  ASSERT_TRUE(table_->RecordFolder({.digest = "1", .plan = kA, .set = "ranking"}).ok());
  EXPECT_TRUE(table_->CheckListed("swish", "wanted", {}).ok());
  ASSERT_TRUE(table_->Release(kB, table_->Claim(MakeClaim(kB))->lease, PlanState::kDone).ok());
  EXPECT_EQ(table_->CheckListed("swish", "wanted", {}).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(table_->RecordFolder({.digest = "2", .plan = kA, .set = "ranking"}).ok());
  EXPECT_TRUE(table_->CheckListed("swish", "wanted", {}).ok());
}

TEST_F(ClaimTableTest, TheLastEightPlansAreKept) {
  for (char c = '0'; c <= '9'; ++c) {
    const std::string plan(64, c);
    ASSERT_TRUE(
        table_->Release(plan, table_->Claim(MakeClaim(plan))->lease, PlanState::kDone).ok());
  }
  ASSERT_EQ(table_->plans().plans.size(), kMaxPlanRecords);
  EXPECT_EQ(table_->plans().plans[0].plan, std::string(64, '2'));
  // A plan that changed nothing leaves no record; one that was not continued loses it.
  ASSERT_TRUE(table_->Release(kA, table_->Claim(MakeClaim(kA))->lease, PlanState::kRunning).ok());
  EXPECT_EQ(table_->plans().plans.back().plan, std::string(64, '9'));
  ASSERT_TRUE(table_->Release(kA, table_->Claim(MakeClaim(kA))->lease, std::nullopt).ok());
  EXPECT_EQ(table_->plans().plans.back().plan, kA);
  ASSERT_TRUE(table_->Claim(MakeClaim(kB)).ok());
  for (const PlanRecord& plan : table_->plans().plans) EXPECT_NE(plan.plan, kA);
}

}  // namespace
}  // namespace resident
