// Tests the life cycle of an installed operator in a real daemon: loaded, active, on trial,
// rolled back, quarantined and removed. Every answer must contain the version that computed
// it.
#include "tests/operators/lifecycle.h"

#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/operators.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using client::ChangeOptions;
using client::Installation;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFailsSometimes[] =
    "if (x[i] == 42.0f) block.fail(resident::CompletionStatus::kInternal);";

TEST_F(LifecycleTest, ALoadedVersionServesOnlyAfterItIsActivated) {
  const auto loaded = MustInstall(Times("times", 2), v1::VERSION_STATE_LOADED);
  EXPECT_EQ(loaded.version(), 1u);
  const RunOutcome early = client_.Run(Call("times", 3));
  EXPECT_EQ(early.call.error_code(), grpc::StatusCode::UNAVAILABLE) << early.message();

  const auto active = operators_->Activate("times");
  ASSERT_TRUE(active.ok()) << active.status();
  EXPECT_EQ(active->version(), 1u);
  ExpectServes("times", 1, 2);

  MustInstall(Times("times", 3));
  ExpectServes("times", 2, 3);
  ExpectServes("times", 1, 2, /*requested=*/1);  // By its number, while the kernel contains it.
  const auto back = operators_->Rollback("times");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->version(), 1u);
  EXPECT_EQ(back->from_version(), 2u);
  ExpectServes("times", 1, 2);
}

TEST_F(LifecycleTest, ACompileErrorNamesTheUsersLine) {
  std::string log;
  Installation broken = Times("broken", 1, "int unfinished = ;");
  const auto installed = operators_->Install(broken, [&](const v1::InstallResponse& progress) {
    log += progress.log();
    return true;
  });
  EXPECT_EQ(installed.status().code(), absl::StatusCode::kInvalidArgument);
  // The line of the submitted file, in the format of g++ or of NVRTC.
  EXPECT_THAT(log, AnyOf(HasSubstr("times.cc:5"), HasSubstr("times.cc(5)")));
  EXPECT_FALSE(connection_->DescribeOperator("broken").ok());
  v1::OperatorEvent rejected;
  EXPECT_TRUE(HasEvent("broken", v1::OperatorEvent::KIND_REJECTED, &rejected));
}

TEST_F(LifecycleTest, AWrongResultIsFoundBeforeTheVersionServes) {
  Installation wrong = Times("wrong", 3);
  wrong.Add(client::Example().Value(std::vector<float>{1, 2}).Value(std::vector<float>{2, 4}));
  const auto installed = operators_->Install(wrong);
  EXPECT_EQ(installed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(installed.status().message()),
              HasSubstr("'out' differs from what the example expects"));
}

TEST_F(LifecycleTest, AnExampleWithoutOutputsIsComparedWithTheActiveVersion) {
  MustInstall(Times("same", 2));
  Installation other = Times("same", 3);
  other.Add(client::Example().Value(std::vector<float>{1, 2}).Output(v1::DTYPE_F32, {2}));
  EXPECT_EQ(operators_->Install(other).status().code(), absl::StatusCode::kInvalidArgument);
  Installation equal = Times("same", 2, "// The same function with different text.");
  equal.Add(client::Example().Value(std::vector<float>{1, 2}).Output(v1::DTYPE_F32, {2}));
  EXPECT_EQ(MustInstall(equal).version(), 2u);
}

TEST_F(LifecycleTest, TheExpectedDataOfAnInoutIsCompared) {
  Installation doubles = Installation::Source("doubles", "doubles.cc", {{"doubles.cc", R"(
RESIDENT_OPERATOR(doubles)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<float>(0);
  block.for_each(block.share(x.size()), [&](resident::i64 i) { x[i] = 2.0f * x[i]; });
}
)"}});
  doubles.Signature("x: inout f32[N]");
  Installation wrong = doubles;
  wrong.Add(client::Example().InOut(std::vector<float>{1, 2}, std::vector<float>{2, 5}));
  const auto refused = operators_->Install(wrong);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("validation"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("'x'"));
  Installation right = doubles;
  right.Add(client::Example().InOut(std::vector<float>{1, 2}, std::vector<float>{2, 4}));
  EXPECT_EQ(MustInstall(right).version(), 1u);
  // Only the data of an inout may have twice the size.
  Installation times = Times("times", 2);
  times.Add(client::Example()
                .InOut(std::vector<float>{1, 2}, std::vector<float>{2, 4})
                .Output(v1::DTYPE_F32, {2}));
  const auto not_an_inout = operators_->Install(times);
  EXPECT_EQ(not_an_inout.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(not_an_inout.status().message()), HasSubstr("takes 8 bytes"));
}

TEST_F(LifecycleTest, AStaleRevisionIsAborted) {
  const auto first = MustInstall(Times("times", 2));
  const auto second = MustInstall(Times("times", 3));
  ASSERT_LT(first.revision(), second.revision());
  Installation late = Times("times", 4);
  late.ExpectRevision(first.revision());
  EXPECT_EQ(operators_->Install(late).status().code(), absl::StatusCode::kAborted);
  ChangeOptions stale;
  stale.expected_revision = first.revision();
  EXPECT_EQ(operators_->Activate("times", stale).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(operators_->Rollback("times", first.revision()).status().code(),
            absl::StatusCode::kAborted);
  ExpectServes("times", 2, 3);
}

TEST_F(LifecycleTest, BuiltInOperatorsDoNotChange) {
  EXPECT_EQ(operators_->Install(Times("add", 2)).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(operators_->Rollback("add").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(operators_->Remove("add").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client_.Run(SmallAdd()).all_ok());
}

TEST_F(LifecycleTest, ConcurrentInstallsAllSucceed) {
  constexpr int kCount = 6;
  std::vector<std::thread> threads;
  std::vector<absl::Status> outcomes(kCount);
  for (int i = 0; i < kCount; ++i) {
    threads.emplace_back([&, i] {
      Installation times = Times(absl::StrCat("times_", i), i);
      times.WaitFor(v1::VERSION_STATE_ACTIVE);
      outcomes[i] = operators_->Install(times).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kCount; ++i) {
    EXPECT_TRUE(outcomes[i].ok()) << outcomes[i];
    ExpectServes(absl::StrCat("times_", i), 1, static_cast<float>(i));
  }
}

TEST_F(LifecycleTest, ARemovedOperatorDoesNotServeAndItsNameIsFree) {
  MustInstall(Times("times", 2));
  const auto removed = operators_->Remove("times");
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(client_.Run(Call("times", 1)).call.error_code(), grpc::StatusCode::NOT_FOUND);
  // Version numbers are never reused.
  EXPECT_EQ(MustInstall(Times("times", 5)).version(), 2u);
  ExpectServes("times", 2, 5);
}

TEST_F(LifecycleTest, BytecodeCanBeInstalled) {
  const std::string program({0x22, 0, 0, 0, 0x00});  // MUL R0, R0, R0; HALT.
  Installation flux = Installation::Bytecode("square", program);
  flux.WaitFor(v1::VERSION_STATE_ACTIVE);
  const auto installed = operators_->Install(flux);
  ASSERT_TRUE(installed.ok()) << installed.status();
  v1::Batch batch;
  batch.mutable_programs()->set_operator_("square");
  const int32_t six = 6;
  batch.mutable_programs()->set_initial(&six, sizeof(six));
  batch.mutable_programs()->set_initial_width(1);
  const RunOutcome outcome = client_.Run(batch);
  ASSERT_TRUE(outcome.all_ok()) << outcome.message();
  EXPECT_EQ(outcome.result.version(), 1u);
  EXPECT_EQ(Integers(outcome.result.flux().registers()), std::vector<int32_t>{36});
}

TEST_F(LifecycleTest, TheStandbyReceivesExactlyItsShareOfTraffic) {
  MustInstall(Times("times", 2));
  MustInstall(Times("times", 3), v1::VERSION_STATE_LOADED);
  const auto promoted = operators_->Promote("times", /*shadow=*/0, /*traffic=*/25);
  ASSERT_TRUE(promoted.ok()) << promoted.status();
  int standby = 0;
  for (int i = 0; i < 100; ++i) {
    const RunOutcome outcome = client_.Run(Call("times", 1));
    ASSERT_TRUE(outcome.all_ok()) << outcome.message();
    EXPECT_EQ(Floats(outcome.result)[0], outcome.result.version() == 1 ? 2 : 3);
    standby += outcome.result.version() == 2;
  }
  EXPECT_EQ(standby, 25);
  ASSERT_TRUE(operators_->Promote("times", 0, 0).ok());
  for (int i = 0; i < 20; ++i) ExpectServes("times", 1, 2);
}

TEST_F(LifecycleTest, AShadowResultIsComparedAndNeverReturned) {
  MustInstall(Times("times", 2));
  MustInstall(Times("times", 2, "if (x[i] > 100.0f) { out[i] = 0; return; }"),
              v1::VERSION_STATE_LOADED);
  ChangeOptions never;
  never.bake.set_action(v1::BakeOptions::ACTION_OFF);
  ASSERT_TRUE(operators_->Promote("times", /*shadow=*/100, /*traffic=*/0, never).ok());
  for (const float x : {1.0f, 200.0f, 3.0f, 400.0f}) {
    const RunOutcome outcome = client_.Run(Call("times", x));
    ASSERT_TRUE(outcome.all_ok()) << outcome.message();
    EXPECT_EQ(outcome.result.version(), 1u);
    EXPECT_EQ(Floats(outcome.result)[0], 2 * x);
  }
  // The contents of buffers are also compared, and the buffer keeps the active version's
  // result.
  uint64_t buffer = 0;
  ASSERT_TRUE(client_.Allocate(1, &buffer).ok());
  v1::Batch batch = Tasks("times", 1);
  Inline(batch, {1}, {500});
  Buffers(batch, {buffer});
  ASSERT_TRUE(client_.Run(batch).all_ok());
  std::string bytes;
  ASSERT_TRUE(Download(client_, buffer, &bytes).ok());
  EXPECT_EQ(*reinterpret_cast<const float*>(bytes.data()), 1000.0f);

  const v1::Trial trial = Describe("times").trial();
  EXPECT_EQ(trial.shadow_tasks(), 5u);
  EXPECT_EQ(trial.shadow_mismatches(), 3u);
}

TEST_F(LifecycleTest, ABatchMayRequireTheIsolationOfItsVersion) {
  MustInstall(Times("times", 2));
  MustInstall(Times("times", 3).Isolation(v1::ISOLATION_TRUSTED), v1::VERSION_STATE_LOADED);
  v1::Batch batch = Call("times", 3);
  batch.mutable_options()->set_require_isolation(v1::ISOLATION_STOPPABLE);
  ChangeOptions never;
  never.bake.set_action(v1::BakeOptions::ACTION_OFF);
  // A trusted version does not shadow it.
  ASSERT_TRUE(operators_->Promote("times", /*shadow=*/100, /*traffic=*/0, never).ok());
  const RunOutcome stoppable = client_.Run(batch);
  ASSERT_TRUE(stoppable.all_ok()) << stoppable.message();
  EXPECT_EQ(stoppable.result.version(), 1u);
  EXPECT_EQ(Describe("times").trial().shadow_tasks(), 0u);
  ASSERT_TRUE(operators_->Activate("times", never).ok());
  const auto refused = [&](const std::string& message) {
    const RunOutcome outcome = client_.Run(batch);
    EXPECT_EQ(outcome.call.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(outcome.message(), HasSubstr(message));
  };
  refused("version 2 of operator 'times' is trusted, and the batch requires stoppable");
  batch.mutable_tasks()->set_version(1);
  EXPECT_TRUE(client_.Run(batch).all_ok());
  batch.mutable_options()->set_require_isolation(v1::ISOLATION_CONFINED);
  refused("version 1 of operator 'times' is stoppable");
  // Built-in operators are trusted.
  batch = SmallAdd();
  batch.mutable_options()->set_require_isolation(v1::ISOLATION_TRUSTED);
  EXPECT_TRUE(client_.Run(batch).all_ok());
  batch.mutable_options()->set_require_isolation(v1::ISOLATION_STOPPABLE);
  refused("of operator 'add' is trusted");
}

TEST_F(LifecycleTest, TheStandbyReceivesExactlyItsShareOfRanges) {
  MustInstall(Times("times", 2));
  MustInstall(Times("times", 3), v1::VERSION_STATE_LOADED);
  ASSERT_TRUE(operators_->Promote("times", /*shadow=*/0, /*traffic=*/25).ok());
  for (const size_t count : {256, 1000, 5000}) {
    const std::vector<float> values = Counted(count);
    int standby = 0;
    for (int i = 0; i < 40; ++i) {
      const RunOutcome outcome = client_.Run(Calls("times", values));
      ASSERT_TRUE(outcome.all_ok()) << outcome.message();
      EXPECT_EQ(outcome.result.device_ns_size(), 1) << "not a range";
      const uint32_t version = outcome.result.version();
      ASSERT_THAT(version, AnyOf(1u, 2u));
      // All tasks of a range ran on the version that the answer names.
      ASSERT_EQ(Floats(outcome.result), Multiplied(values, version == 1 ? 2 : 3)) << count;
      standby += version == 2;
    }
    EXPECT_EQ(standby, 10) << count << " tasks";
  }
  ASSERT_TRUE(operators_->Promote("times", 0, 0).ok());
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(ExpectBatchServes(Calls("times", Counted(300)), 1, 2)) << "not a range";
  }
}

TEST_F(LifecycleTest, AShadowOfARegularBatchIsComparedTaskByTaskAndNeverReturned) {
  MustInstall(Times("times", 2));
  // Wrong for 200 of 300 tasks, of which 100 fail.
  MustInstall(Times("times", 2,
                    "if (x[i] > 200.0f) block.fail(resident::CompletionStatus::kInternal);\n"
                    "    if (x[i] > 100.0f) { out[i] = 0; return; }"),
              v1::VERSION_STATE_LOADED);
  ChangeOptions never;
  never.bake.set_action(v1::BakeOptions::ACTION_OFF);
  ASSERT_TRUE(operators_->Promote("times", /*shadow=*/100, /*traffic=*/0, never).ok());
  const std::vector<float> values = Counted(300);
  for (int i = 0; i < 3; ++i) ExpectBatchServes(Calls("times", values), 1, 2);
  v1::Trial trial = Describe("times").trial();
  EXPECT_EQ(trial.shadow_tasks(), 900u);
  EXPECT_EQ(trial.shadow_mismatches(), 600u);

  // The outputs in a buffer are also compared, and remain those of the active version.
  uint64_t buffer = 0;
  ASSERT_TRUE(client_.Allocate(values.size(), &buffer).ok());
  v1::Batch batch = Tasks("times", static_cast<uint32_t>(values.size()));
  Inline(batch, {1}, values);
  v1::BufferColumn* const out = Buffers(batch, {buffer});
  out->add_shape(1);
  out->set_stride_bytes(sizeof(float));
  const RunOutcome outcome = client_.Run(batch);
  ASSERT_TRUE(outcome.all_ok()) << outcome.message();
  EXPECT_EQ(outcome.result.version(), 1u);
  std::string bytes;
  ASSERT_TRUE(Download(client_, buffer, &bytes).ok());
  std::vector<float> stored(values.size());
  std::memcpy(stored.data(), bytes.data(), bytes.size());
  EXPECT_EQ(stored, Multiplied(values, 2));
  trial = Describe("times").trial();
  EXPECT_EQ(trial.shadow_tasks(), 1200u);
  EXPECT_EQ(trial.shadow_mismatches(), 800u);
}

TEST_F(LifecycleTest, RegularBatchesHaveAShadowInItsShareOfRequests) {
  MustInstall(Times("times", 2));
  MustInstall(Times("times", 3), v1::VERSION_STATE_LOADED);
  ChangeOptions never;
  never.bake.set_action(v1::BakeOptions::ACTION_OFF);
  ASSERT_TRUE(operators_->Promote("times", /*shadow=*/25, /*traffic=*/0, never).ok());
  int ranges = 0;
  for (int i = 0; i < 40; ++i) ranges += ExpectBatchServes(Calls("times", Counted(256)), 1, 2);
  EXPECT_GE(ranges, 30);  // All without a shadow.
  const v1::Trial trial = Describe("times").trial();
  EXPECT_EQ(trial.shadow_tasks(), 10u * 256);
  EXPECT_EQ(trial.shadow_mismatches(), 10u * 256);
}

TEST_F(LifecycleTest, AVersionThatFailsTasksIsRolledBackAutomatically) {
  MustInstall(Times("times", 2));
  MustInstall(Times("times", 3, kFailsSometimes), v1::VERSION_STATE_LOADED);
  ChangeOptions bake;
  bake.bake.set_action(v1::BakeOptions::ACTION_ROLL_BACK);
  bake.bake.set_min_tasks(20);
  ASSERT_TRUE(operators_->Activate("times", bake).ok());
  ASSERT_TRUE(Eventually([&] {
    client_.Run(Call("times", kPoison));
    return Describe("times").active_version() == 1;
  }));
  v1::OperatorEvent event;
  ASSERT_TRUE(HasEvent("times", v1::OperatorEvent::KIND_ROLLED_BACK, &event));
  EXPECT_EQ(event.actor(), "residentd");
  EXPECT_THAT(event.message(), HasSubstr("did not end OK"));
  ExpectServes("times", 1, 2);
}

TEST_F(LifecycleTest, ARegressionOnlyWarnsIfSoConfigured) {
  MustInstall(Times("times", 2));
  MustInstall(Times("times", 3, kFailsSometimes), v1::VERSION_STATE_LOADED);
  ChangeOptions bake;
  bake.bake.set_action(v1::BakeOptions::ACTION_WARN);
  bake.bake.set_min_tasks(20);
  ASSERT_TRUE(operators_->Activate("times", bake).ok());
  ASSERT_TRUE(Eventually([&] {
    client_.Run(Call("times", kPoison));
    return HasEvent("times", v1::OperatorEvent::KIND_REGRESSED);
  }));
  EXPECT_EQ(Describe("times").active_version(), 2u);
}

// While a task of another operator runs, the generation of the device cannot change.
class ParkDeadlineTest : public LifecycleTest {
 protected:
  ParkDeadlineTest() : LifecycleTest({"--park_deadline=300ms", "--task_time_limit=0"}) {}
};

TEST_F(ParkDeadlineTest, AVersionThatIsNotLoadedInTimeIsNotRejected) {
  uint64_t buffer = 0;
  ASSERT_TRUE(client_.Allocate(1, &buffer).ok());
  RunOutcome blocked;
  std::thread runs([&] { blocked = client_.Run(FloatTasks("test.never_returns", buffer, 0, 1)); });
  ASSERT_TRUE(Eventually([&] { return daemon_.Device().ring().in_flight() == 1; }));
  std::vector<v1::VersionState> states;
  const auto installed =
      operators_->Install(Times("times", 2), [&](const v1::InstallResponse& progress) {
        states.push_back(progress.state());
        return true;
      });
  EXPECT_EQ(installed.status().code(), absl::StatusCode::kDeadlineExceeded) << installed.status();
  EXPECT_THAT(std::string(installed.status().message()), HasSubstr("--park_deadline"));
  EXPECT_THAT(states, Contains(v1::VERSION_STATE_VALIDATED));
  EXPECT_THAT(states, Not(Contains(v1::VERSION_STATE_REJECTED)));
  EXPECT_FALSE(HasEvent("times", v1::OperatorEvent::KIND_REJECTED));
  kill(daemon_.engine_pid(), SIGKILL);
  runs.join();
  EXPECT_FALSE(blocked.all_ok());
}

// Only the cancellation of the install can end this validation within a minute.
class HangingValidationTest : public LifecycleTest {
 protected:
  HangingValidationTest() : LifecycleTest({"--drain_timeout=1h"}) {}
};

TEST_F(HangingValidationTest, AStoppingDaemonDoesNotWaitForAValidation) {
  Installation hangs = Times("hangs", 1, kForever);
  const auto installed = operators_->Install(hangs, [&](const v1::InstallResponse& progress) {
    if (progress.state() == v1::VERSION_STATE_INSPECTED) daemon_.Kill(SIGTERM);
    return true;
  });
  EXPECT_EQ(installed.status().code(), absl::StatusCode::kUnavailable) << installed.status();
  EXPECT_THAT(std::string(installed.status().message()), HasSubstr("draining"));
  const auto exit = daemon_.Wait();
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->status, 0) << exit->ToString();
}

class ProductionFaultTest : public LifecycleTest {
 protected:
  ProductionFaultTest() : LifecycleTest({"--task_time_limit=3s", "--park_after=0"}) {}

  // Installs a good version and a version that misbehaves only for kPoison.
  void InstallGoodAndBad(const std::string& misbehave,
                         v1::Isolation isolation = v1::ISOLATION_UNSPECIFIED) {
    MustInstall(Times("times", 2));
    MustInstall(Times("times", 3, absl::StrCat("if (x[i] == ", kPoison, ".0f) { ", misbehave, " }"))
                    .Isolation(isolation));
    ExpectServes("times", 2, 3);
  }

  void ExpectQuarantined() {
    const pid_t engine = daemon_.engine_pid();
    const RunOutcome faulted = client_.Run(Call("times", kPoison));
    ASSERT_TRUE(faulted.call.ok()) << faulted.message();
    EXPECT_EQ(faulted.status(0), v1::TASK_STATUS_ABORTED) << faulted.message();
    EXPECT_EQ(faulted.result.version(), 2u);
    ASSERT_TRUE(daemon_.AwaitAnotherEngine(engine));
    ExpectServes("times", 1, 2);
    EXPECT_EQ(ReadState("times", 2), "quarantined");
    v1::OperatorEvent event;
    ASSERT_TRUE(HasEvent("times", v1::OperatorEvent::KIND_QUARANTINED, &event));
    EXPECT_EQ(event.version(), 2u);
    EXPECT_THAT(event.message(), HasSubstr("arguments"));

    EXPECT_EQ(operators_->Activate("times").status().code(), absl::StatusCode::kFailedPrecondition);
    ChangeOptions force;
    force.force = true;
    const auto forced = operators_->Activate("times", force);
    ASSERT_TRUE(forced.ok()) << forced.status();
    ExpectServes("times", 2, 3);
  }
};

TEST_F(ProductionFaultTest, AVersionThatStoresToABadAddressIsQuarantined) {
  InstallGoodAndBad("*reinterpret_cast<volatile float*>(16) = 1;");
  ExpectQuarantined();
}

TEST_F(ProductionFaultTest, ATrustedVersionThatNeverReturnsIsQuarantined) {
  InstallGoodAndBad(kForever, v1::ISOLATION_TRUSTED);
  ExpectQuarantined();
}

// An install that names no level gives a version whose tasks are stopped alone.
TEST_F(ProductionFaultTest, ATaskThatNeverReturnsEndsAlone) {
  InstallGoodAndBad(kForever);
  const v1::Operator op = Describe("times");
  for (const v1::OperatorVersion& version : op.versions()) {
    EXPECT_EQ(version.isolation(), v1::ISOLATION_STOPPABLE) << version.isolation_reason();
  }
  const pid_t engine = daemon_.engine_pid();
  const RunOutcome stopped = client_.Run(Call("times", kPoison));
  ASSERT_TRUE(stopped.call.ok()) << stopped.message();
  EXPECT_EQ(stopped.status(0), v1::TASK_STATUS_ABORTED) << stopped.message();
  EXPECT_THAT(stopped.message(), HasSubstr("ran longer than"));
  ExpectServes("times", 2, 3);
  EXPECT_EQ(daemon_.engine_pid(), engine);
  EXPECT_FALSE(HasEvent("times", v1::OperatorEvent::KIND_QUARANTINED));
}

TEST_F(ProductionFaultTest, WithoutAnEarlierVersionTheErrorIsQuarantined) {
  MustInstall(Times(
      "times", 3,
      absl::StrCat("if (x[i] == ", kPoison, ".0f) *reinterpret_cast<volatile float*>(16) = 1;")));
  const pid_t engine = daemon_.engine_pid();
  client_.Run(Call("times", kPoison));
  ASSERT_TRUE(daemon_.AwaitAnotherEngine(engine));
  const RunOutcome after = client_.Run(Call("times", 1));
  EXPECT_EQ(after.call.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(after.message(), HasSubstr("quarantined"));
  // Other operators still serve.
  EXPECT_TRUE(client_.Run(SmallAdd()).all_ok());
}

TEST_F(ProductionFaultTest, AKilledEngineIsReplacedWithTheSameVersions) {
  MustInstall(Times("times", 2));
  MustInstall(Times("times", 3));
  const pid_t engine = daemon_.engine_pid();
  kill(engine, SIGKILL);
  ASSERT_TRUE(daemon_.AwaitAnotherEngine(engine));
  ExpectServes("times", 2, 3);
  EXPECT_FALSE(HasEvent("times", v1::OperatorEvent::KIND_QUARANTINED));
}

}  // namespace
}  // namespace resident::testing
