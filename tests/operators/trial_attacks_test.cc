// Attacks on a version that is on trial, from both sides: clients without the role `install` that
// send what a shadow must not run, or more than it can; and versions that misbehave only on trial.
// Other clients' answers must be right, the memory of trials is bounded and returns, a trial is
// judged by what its version did, and an engine that a version ends is replaced.
#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/operators.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/messages.h"
#include "tests/operators/lifecycle.h"

namespace resident::testing {
namespace {

using client::ChangeOptions;
using client::Installation;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;

// Keeps a worker busy for some milliseconds in each element.
constexpr char kSlow[] =
    "volatile float slow = 0; for (int k = 0; k < 3000000; ++k) slow = slow + 1;";

constexpr uint64_t kMib = uint64_t{1} << 20;
// kMaxShadowBytes: the outputs of all twins of a device.
constexpr uint64_t kTwinBytes = 64 * kMib;

class TrialAttacksTest : public LifecycleTest {
 protected:
  explicit TrialAttacksTest(std::vector<std::string> flags = {})
      : LifecycleTest([&] {
          flags.insert(flags.end(), {"--task_time_limit=3s", "--park_after=0"});
          return flags;
        }()) {}

  // Version 1 multiplies by 2 and serves; this one is on trial.
  void BeginTrial(const Installation& second, double shadow, double traffic = 0,
                  const ChangeOptions& options = Unwatched()) {
    MustInstall(Times("times", 2));
    MustInstall(second, v1::VERSION_STATE_LOADED);
    const auto promoted = operators_->Promote("times", shadow, traffic, options);
    ASSERT_TRUE(promoted.ok()) << promoted.status();
  }

  static ChangeOptions Unwatched() {
    ChangeOptions options;
    options.bake.set_action(v1::BakeOptions::ACTION_OFF);
    return options;
  }
  static ChangeOptions RollBackAfter(uint64_t tasks) {
    ChangeOptions options;
    options.bake.set_action(v1::BakeOptions::ACTION_ROLL_BACK);
    options.bake.set_min_tasks(tasks);
    options.bake.set_time_ms(600'000);
    return options;
  }

  void ExpectCompared(uint64_t tasks, uint64_t mismatches) {
    const v1::Trial trial = Describe("times").trial();
    EXPECT_EQ(trial.shadow_tasks(), tasks);
    EXPECT_EQ(trial.shadow_mismatches(), mismatches);
  }

  uint64_t CountTasks(uint32_t version) {
    const v1::Operator op = Describe("times");
    for (const v1::OperatorVersion& candidate : op.versions()) {
      if (candidate.version() == version) return candidate.tasks();
    }
    return 0;
  }

  uint64_t MustAllocate(const Client& client, uint64_t floats) {
    uint64_t buffer = 0;
    EXPECT_TRUE(client.Allocate(floats, &buffer).ok());
    return buffer;
  }

  std::vector<float> Read(uint64_t buffer) {
    std::string bytes;
    EXPECT_TRUE(Download(client_, buffer, &bytes).ok());
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  void Write(uint64_t buffer, const std::vector<float>& values) {
    const std::string bytes(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(float));
    EXPECT_TRUE(Upload(client_, buffer, bytes).ok());
  }

  void ExpectNoHostMemoryUsed() {
    for (const std::string purpose : {"requests", "batches", "answers"}) {
      const std::string figure =
          absl::StrCat("resident_host_memory_used_bytes{purpose=\"", purpose, "\"}");
      EXPECT_TRUE(Eventually([&] { return daemon_.Figure(figure) == 0; }))
          << figure << " " << daemon_.Figure(figure);
    }
  }

  // The version on trial has ended the engine: the trial is over, and version 1 serves.
  void ExpectQuarantined(pid_t engine) {
    ASSERT_TRUE(daemon_.AwaitAnotherEngine(engine));
    EXPECT_EQ(ReadState("times", 2), "quarantined");
    EXPECT_EQ(Describe("times").trial().version(), 0u);
    for (int i = 0; i < 10; ++i) ExpectServes("times", 1, 2);
    EXPECT_EQ(operators_->Promote("times", 100, 0).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
};

// --- Clients ------------------------------------------------------------------------

// The twin reads what the active version has written already.
TEST_F(TrialAttacksTest, TasksWhoseOutputsAreTheirInputsAreNoEvidence) {
  BeginTrial(Times("times", 2, "// The same function with different text."), 100);
  const uint64_t buffer = MustAllocate(client_, 256);
  Write(buffer, std::vector<float>(256, 1));
  v1::Batch in_place = Tasks("times", 1);
  Buffers(in_place, {buffer});
  Buffers(in_place, {buffer});
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(client_.Run(in_place).all_ok());
  EXPECT_THAT(Read(buffer), Each(Eq(256.0f)));
  // All tasks of this batch write to one buffer.
  v1::Batch one_output = Tasks("times", 100);
  Inline(one_output, {1}, Counted(100));
  Buffers(one_output, {buffer})->add_shape(1);
  ASSERT_TRUE(client_.Run(one_output).all_ok());
  EXPECT_EQ(Describe("times").trial().shadow_mismatches(), 0u);
}

TEST_F(TrialAttacksTest, DifferencesThatBuffersReproduceAreEvidence) {
  BeginTrial(Times("times", 3), 100);
  const std::vector<uint64_t> buffers = {MustAllocate(client_, 256), MustAllocate(client_, 256)};
  Write(buffers[0], Counted(256));
  v1::Batch batch = Tasks("times", 1);
  for (const uint64_t buffer : buffers) Buffers(batch, {buffer});
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(client_.Run(batch).all_ok());
  EXPECT_EQ(Read(buffers[1]), Multiplied(Counted(256), 2));
  ExpectCompared(5, 5);
}

TEST_F(TrialAttacksTest, ValuesAndViewsOfAnyKindAreCompared) {
  BeginTrial(Times("times", 2, "// The same function with different text."), 100);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {nan, -nan, infinity, -infinity, -0.0f, 1e38f, -3e38f, 1e-45f}) {
    const RunOutcome outcome = client_.Run(Call("times", x));
    ASSERT_TRUE(outcome.all_ok()) << outcome.message();
  }
  ExpectCompared(8, 0);
  // Tensors without elements, of many dimensions, and tasks that overlap.
  const uint64_t buffer = MustAllocate(client_, 4096);
  v1::Batch empty = Tasks("times", 10);
  Inline(empty, {0, 1u << 30}, {});
  Returned(empty, {0, 1u << 30});
  EXPECT_TRUE(client_.Run(empty).all_ok());
  v1::Batch deep = Tasks("times", 16);
  v1::BufferColumn* const x = Buffers(deep, {buffer});
  x->set_stride_bytes(4);
  for (int d = 0; d < 8; ++d) x->add_shape(2);
  Returned(deep, std::vector<uint64_t>(8, 2));
  EXPECT_TRUE(client_.Run(deep).all_ok());
  ExpectCompared(8 + 10 + 16, 0);
}

// Only what the active version did is done again.
TEST_F(TrialAttacksTest, TasksThatDidNotRunHaveNoTwin) {
  BeginTrial(Times("times", 2, "// The same function with different text."), 100);
  constexpr int kTasks = 100'000;
  uint64_t ran = 0, skipped = 0;
  for (uint64_t timeout_us = 1000; timeout_us <= 20'000; timeout_us += 1000) {
    v1::Batch late = Calls("times", std::vector<float>(kTasks, 1));
    late.mutable_options()->set_timeout_us(timeout_us);
    const RunOutcome outcome = client_.Run(late);
    ASSERT_TRUE(outcome.call.ok()) << outcome.message();
    for (int i = 0; i < kTasks; ++i) {
      ++(outcome.status(i) == v1::TASK_STATUS_OK ? ran : skipped);
    }
  }
  std::printf("%llu tasks ran, %llu did not\n", static_cast<unsigned long long>(ran),
              static_cast<unsigned long long>(skipped));
  EXPECT_GT(skipped, 0u);
  EXPECT_LE(CountTasks(2), ran);
}

TEST_F(TrialAttacksTest, CancelledCallsEndedSessionsAndFreedBuffersLeaveNothing) {
  BeginTrial(Times("times", 2, kSlow), 100);
  ExpectServes("times", 1, 2);
  const uint64_t tasks_before = Describe("times").trial().shadow_tasks();
  for (int round = 0; round < 12; ++round) {
    const auto attacker = std::make_unique<Client>(daemon_, "attacker");
    const std::vector<uint64_t> buffers = {MustAllocate(*attacker, 8), MustAllocate(*attacker, 8)};
    v1::Batch batch = Tasks("times", 1);
    for (const uint64_t buffer : buffers) Buffers(batch, {buffer});
    const auto context = attacker->Context();
    std::thread run([&] {
      v1::RunResponse response;
      v1::RunRequest request;
      *request.mutable_batch() = batch;
      attacker->executor().Run(context.get(), request, &response);
    });
    // The twin runs, or has run.
    EXPECT_TRUE(Eventually([&] { return daemon_.Device().ring().in_flight() > 0; }));
    if (round % 3 == 0) context->TryCancel();
    if (round % 3 == 1) {
      for (const uint64_t buffer : buffers) {
        const auto free = attacker->Context();
        v1::FreeRequest request;
        request.set_buffer_id(buffer);
        v1::FreeResponse response;
        attacker->buffers().Free(free.get(), request, &response);
      }
    }
    if (round % 3 == 2) context->TryCancel();
    run.join();
  }
  ExpectServes("times", 1, 2);
  EXPECT_GT(Describe("times").trial().shadow_tasks(), tasks_before);
  EXPECT_EQ(Describe("times").trial().shadow_mismatches(), 0u);
  EXPECT_TRUE(Eventually([&] {
    const v1::DeviceStatus device = daemon_.Device();
    return device.buffers() == 0 && device.memory_used_bytes() == 0 && device.queued_tasks() == 0 &&
           device.ring().in_flight() == 0;
  })) << daemon_.Device().DebugString();
  ExpectNoHostMemoryUsed();
}

class TrialFloodTest : public TrialAttacksTest {
 protected:
  TrialFloodTest() : TrialAttacksTest({"--device_memory_mib=512", "--max_host_mib=256"}) {}
};

// Many clients whose outputs are large, so that twins of different clients could be made at one
// time; others that send as many tasks as the limits allow.
TEST_F(TrialFloodTest, TrialsTakeBoundedMemoryAndDoNotDisturbOthers) {
  BeginTrial(Times("times", 2, "// The same function with different text."), 100);
  constexpr int kAttackers = 10;
  constexpr uint64_t kFloats = (16 * kMib) / sizeof(float);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> done{0};
  std::vector<std::thread> attackers;
  for (int a = 0; a < kAttackers; ++a) {
    attackers.emplace_back([&, a] {
      const Client attacker(daemon_, "attacker");
      const uint64_t buffer = MustAllocate(attacker, kFloats);
      v1::Batch large = Tasks("times", 1);
      Buffers(large, {buffer});
      Buffers(large, {buffer});
      const v1::Batch many = Calls("times", Counted(50'000));
      while (!stop) {
        const RunOutcome outcome = attacker.Run(a % 5 == 0 ? many : large);
        done += outcome.all_ok();
      }
    });
  }
  const uint64_t buffers = kAttackers * kFloats * sizeof(float);
  uint64_t peak = 0;
  for (int i = 0; i < 25 || done < 100; ++i) {
    ExpectBatchServes(Calls("times", Counted(300)), 1, 2);
    for (int look = 0; look < 4; ++look) {
      // A part of the memory that trials could take otherwise.
      const uint64_t buffer = MustAllocate(client_, 128 * kMib / sizeof(float));
      peak = std::max(peak, daemon_.Device().memory_used_bytes());
      const auto context = client_.Context();
      v1::FreeRequest request;
      request.set_buffer_id(buffer);
      v1::FreeResponse response;
      EXPECT_TRUE(client_.buffers().Free(context.get(), request, &response).ok());
    }
  }
  stop = true;
  for (std::thread& attacker : attackers) attacker.join();
  std::printf("%llu batches; device memory of trials: at peak %llu MiB\n",
              static_cast<unsigned long long>(done),
              static_cast<unsigned long long>((peak - 128 * kMib - buffers) / kMib));
  EXPECT_LE(peak, buffers + 128 * kMib + kTwinBytes);
  EXPECT_GT(Describe("times").trial().shadow_tasks(), 0u);
  EXPECT_EQ(Describe("times").trial().shadow_mismatches(), 0u);
  EXPECT_TRUE(Eventually([&] { return daemon_.Device().memory_used_bytes() == 0; }));
  ExpectNoHostMemoryUsed();
}

// --- Versions -----------------------------------------------------------------------

std::string WhenPoisoned(const std::string& misbehave) {
  return absl::StrCat("if (x[i] == ", kPoison, ".0f) { ", misbehave, " }");
}

TEST_F(TrialAttacksTest, AShadowThatFaultsIsQuarantinedAndTheAnswerIsRight) {
  BeginTrial(Times("times", 2, WhenPoisoned("*reinterpret_cast<volatile float*>(16) = 1;")), 100);
  const pid_t engine = daemon_.engine_pid();
  ExpectBatchServes(Calls("times", Counted(10)), 1, 2);
  EXPECT_EQ(daemon_.engine_pid(), engine);
  ExpectBatchServes(Calls("times", {1, kPoison, 3}), 1, 2);
  ExpectQuarantined(engine);
}

TEST_F(TrialAttacksTest, AShadowThatNeverReturnsIsQuarantinedAndTheAnswerIsRight) {
  BeginTrial(Times("times", 2, WhenPoisoned(kForever)).Isolation(v1::ISOLATION_TRUSTED), 100);
  const pid_t engine = daemon_.engine_pid();
  ExpectBatchServes(Calls("times", {1, kPoison, 3}), 1, 2);
  ExpectQuarantined(engine);
}

TEST_F(TrialAttacksTest, AShadowThatAltersItsInputsChangesNoAnswer) {
  BeginTrial(Times("times", 2, WhenPoisoned("const_cast<float&>(x[i]) = -1; out[i] = 0; return;")),
             100);
  for (int i = 0; i < 5; ++i) ExpectBatchServes(Calls("times", {1, kPoison, 3}), 1, 2);
  ExpectCompared(15, 5);
}

TEST_F(TrialAttacksTest, AShadowWithOtherResultsIsRolledBack) {
  BeginTrial(Times("times", 3), 100, 0, RollBackAfter(20));
  ASSERT_TRUE(Eventually([&] {
    ExpectServes("times", 1, 2);
    return Describe("times").trial().version() == 0;
  }));
  v1::OperatorEvent event;
  ASSERT_TRUE(HasEvent("times", v1::OperatorEvent::KIND_ROLLED_BACK, &event));
  EXPECT_THAT(event.message(), HasSubstr("shadowed tasks differ"));
  for (int i = 0; i < 10; ++i) ExpectServes("times", 1, 2);
}

TEST_F(TrialAttacksTest, ASlowShadowIsRolledBack) {
  MustInstall(Times("times", 2));
  MustInstall(Times("times", 2, kSlow), v1::VERSION_STATE_LOADED);
  for (int i = 0; i < 50; ++i) ExpectServes("times", 1, 2);  // The duration to compare with.
  ASSERT_TRUE(operators_->Promote("times", 100, 0, RollBackAfter(20)).ok());
  ASSERT_TRUE(Eventually([&] {
    ExpectServes("times", 1, 2);
    return Describe("times").trial().version() == 0;
  }));
  v1::OperatorEvent event;
  ASSERT_TRUE(HasEvent("times", v1::OperatorEvent::KIND_ROLLED_BACK, &event));
  EXPECT_THAT(event.message(), HasSubstr("p99 of the device time"));
}

// Half of the traffic runs on the version: its tasks end with its engine, and no others.
TEST_F(TrialAttacksTest, ACanaryThatFaultsIsQuarantinedAndLosesOnlyItsTasks) {
  BeginTrial(Times("times", 2, WhenPoisoned("*reinterpret_cast<volatile float*>(16) = 1;")), 0, 50);
  const pid_t engine = daemon_.engine_pid();
  RunOutcome outcome;
  for (int i = 0; i < 2; ++i) {
    outcome = client_.Run(Call("times", kPoison));
    ASSERT_TRUE(outcome.call.ok()) << outcome.message();
    if (outcome.result.version() == 2) break;
    EXPECT_EQ(Floats(outcome.result), std::vector<float>{2 * kPoison});
  }
  EXPECT_EQ(outcome.result.version(), 2u);
  EXPECT_EQ(outcome.status(0), v1::TASK_STATUS_ABORTED);
  ExpectQuarantined(engine);
}

}  // namespace
}  // namespace resident::testing
