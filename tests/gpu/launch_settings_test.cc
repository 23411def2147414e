// Launch settings of the resident kernel, as an operator of the daemon sets them: valid
// ones serve, others are refused with the numbers. Needs a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/daemon/client.h"
#include "tests/daemon/daemon.h"

namespace resident::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Settings {
  uint32_t threads_per_block;
  uint32_t blocks_per_sm;
  uint32_t sms_free;

  std::vector<std::string> flags() const {
    return {"--threads_per_block=" + std::to_string(threads_per_block),
            "--blocks_per_sm=" + std::to_string(blocks_per_sm),
            "--sms_free=" + std::to_string(sms_free)};
  }
};

class LaunchSettingsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(OnGpu()) << "Fix: run it through tests/gpu/run"; }
};

// Runs single tasks, batches and chunks.
void ExpectServesLoneAndMany(const Daemon& daemon) {
  constexpr uint32_t kTasks = 2'000;
  const Client client(daemon);
  const Counters counters(client, kTasks);
  const RunOutcome lone = client.Run(counters.Batch(0, 1));
  EXPECT_TRUE(lone.all_ok()) << lone.message();
  const RunOutcome rest = client.Run(counters.Batch(1, kTasks - 1));
  EXPECT_TRUE(rest.all_ok()) << rest.message();
  for (uint32_t i = 0; i < kTasks; ++i) ASSERT_EQ(counters.value(i), 1.0f) << "task " << i;
}

TEST_F(LaunchSettingsTest, TheKernelHasTheRequestedBlocksAndThreads) {
  const Daemon whole;
  const uint32_t all = whole.Device().blocks();
  EXPECT_EQ(whole.Device().threads_per_block(), 256u);
  ASSERT_EQ(all % 2, 0u);
  const uint32_t sms = all / 2;
  for (const Settings& settings :
       {Settings{256, 1, 0}, {128, 4, 0}, {96, 4, 0}, {64, 1, 0}, {32, 4, 0}}) {
    SCOPED_TRACE(::testing::PrintToString(settings.flags()));
    const Daemon daemon(settings.flags());
    const v1::DeviceStatus device = daemon.Device();
    EXPECT_EQ(device.threads_per_block(), settings.threads_per_block);
    EXPECT_EQ(device.blocks(), sms * settings.blocks_per_sm);
    ExpectServesLoneAndMany(daemon);
  }
}

TEST_F(LaunchSettingsTest, AsManySmallBlocksAreLaunchedAsFit) {
  const Daemon whole;
  const Daemon halves({"--threads_per_block=128"});
  EXPECT_EQ(halves.Device().blocks(), 2 * whole.Device().blocks());
  ExpectServesLoneAndMany(halves);
}

TEST_F(LaunchSettingsTest, SmsAreLeftFree) {
  const uint32_t all = Daemon().Device().blocks();
  const Daemon daemon({"--sms_free=8", "--threads_per_block=128", "--blocks_per_sm=2"});
  // The driver splits SMs in groups: at least the requested number is free.
  EXPECT_LE(daemon.Device().blocks(), all - 16);
  EXPECT_GE(daemon.Device().blocks(), all / 2);
  ExpectServesLoneAndMany(daemon);
}

TEST_F(LaunchSettingsTest, InvalidSettingsAreRefusedWithTheNumbers) {
  const auto refusal = [](const std::string& flag) {
    const Daemon::Failure failure = Daemon::StartExpectingFailure({flag});
    EXPECT_THAT(failure.exit.status, ::testing::Optional(::testing::Ne(0)));
    return failure.output;
  };
  EXPECT_THAT(refusal("--blocks_per_sm=99"),
              AllOf(HasSubstr("--blocks_per_sm=99 does not fit"), HasSubstr("288 threads"),
                    HasSubstr("registers"), HasSubstr("bytes of shared memory"),
                    HasSubstr("Fix: set --blocks_per_sm to at most ")));
  EXPECT_THAT(refusal("--threads_per_block=100"),
              AllOf(HasSubstr("--threads_per_block=100"), HasSubstr("a multiple of 32")));
  EXPECT_THAT(refusal("--threads_per_block=512"), HasSubstr("from 32 to 256"));
  EXPECT_THAT(refusal("--sms_free=4000"), HasSubstr("--sms_free=4000 leaves none of the"));
}

}  // namespace
}  // namespace resident::testing
