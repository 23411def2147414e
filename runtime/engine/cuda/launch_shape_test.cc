#include "runtime/engine/cuda/launch_shape.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/resident/kernel_parameters.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A block of the default size on an SM of an H200.
constexpr BlockFootprint kBlock = {288, 96, 43'544};
constexpr SmResources kSm = {2'048, 65'536, 233'472, 32};

std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(LaunchShapeTest, ThreadsAreWholeWarpsThatTheKernelWasCompiledFor) {
  EXPECT_EQ(*ComputeThreads(0), 256u);
  for (const uint32_t threads : {32u, 96u, 128u, 256u}) {
    EXPECT_EQ(*ComputeThreads(threads), threads);
  }
  for (const uint32_t threads : {1u, 31u, 33u, 100u, 257u, 288u, 512u, 4'294'967'264u}) {
    EXPECT_THAT(Refusal(ComputeThreads(threads).status()),
                AllOf(HasSubstr("--threads_per_block=" + std::to_string(threads)),
                      HasSubstr("a multiple of 32 from 32 to 256"), HasSubstr("Fix:")));
  }
}

TEST(LaunchShapeTest, BlocksAreAddedUpTo512ThreadsThatRunOperators) {
  EXPECT_EQ(*BlocksPerSm(0, 2, kBlock, kSm), 2u);
  EXPECT_EQ(*BlocksPerSm(0, 5, kBlock, kSm), 2u);
  EXPECT_EQ(*BlocksPerSm(0, 1, kBlock, kSm), 1u);
  EXPECT_EQ(*BlocksPerSm(0, 4, {160, 96, 43'544}, kSm), 4u);
  EXPECT_EQ(*BlocksPerSm(0, 5, {96, 96, 43'544}, kSm), 5u);
  EXPECT_EQ(*BlocksPerSm(0, 99, {64, 96, 1'024}, kSm), 16u);
}

TEST(LaunchShapeTest, ASettingIsAcceptedUpToWhatFits) {
  EXPECT_EQ(*BlocksPerSm(1, 2, kBlock, kSm), 1u);
  EXPECT_EQ(*BlocksPerSm(5, 5, kBlock, kSm), 5u);
  EXPECT_THAT(Refusal(BlocksPerSm(3, 2, kBlock, kSm).status()),
              AllOf(HasSubstr("--blocks_per_sm=3 does not fit"),
                    HasSubstr("288 threads, 96 registers a thread and 43544 + 1024 bytes"),
                    HasSubstr("2048 threads, 65536 registers, 233472 bytes and room for 32 blocks"),
                    HasSubstr("which is 2 such blocks"),
                    HasSubstr("Fix: set --blocks_per_sm to at most 2")));
  // Not even one.
  EXPECT_THAT(Refusal(BlocksPerSm(0, 0, kBlock, kSm).status()),
              AllOf(HasSubstr("which is 0 such blocks. Fix: set --threads_per_block lower")));
}

TEST(LaunchShapeTest, AtLeastOneSmIsLeftForTheKernel) {
  EXPECT_TRUE(CheckSmsFree(0, 132).ok());
  EXPECT_TRUE(CheckSmsFree(131, 132).ok());
  EXPECT_THAT(Refusal(CheckSmsFree(132, 132)),
              AllOf(HasSubstr("--sms_free=132 leaves none of the 132 SMs"),
                    HasSubstr("leave at most 131 free")));
}

TEST(LaunchShapeTest, ThereAreAtLeastAPollingAndAWorkingBlock) {
  EXPECT_EQ(*CountBlocks(132, 2, 0), 264u);
  EXPECT_EQ(*CountBlocks(132, 2, 4), 4u);
  EXPECT_EQ(*CountBlocks(1, 2, 0), 2u);
  EXPECT_EQ(*CountBlocks(300, 16, 0), 2'048u);  // As many as have breadcrumbs.
  EXPECT_THAT(Refusal(CountBlocks(1, 1, 0).status()),
              AllOf(HasSubstr("two blocks"), HasSubstr("1 SMs with 1 each")));
  EXPECT_FALSE(CountBlocks(132, 2, 1).ok());
}

TEST(LaunchShapeTest, TheGraphKernelHasABlockOnEachSmAndLeavesHalf) {
  EXPECT_EQ(GraphBlocks(264, 2), 132u);
  EXPECT_EQ(GraphBlocks(131, 1), 65u);
  EXPECT_EQ(GraphBlocks(660, 5), 132u);
  EXPECT_EQ(GraphBlocks(6, 4), 2u);
  EXPECT_EQ(GraphBlocks(4, 2), 2u);
  EXPECT_EQ(GraphBlocks(3, 2), 1u);
  EXPECT_EQ(GraphBlocks(3, 16), 1u);
  EXPECT_EQ(GraphBlocks(2, 1), 0u);
  EXPECT_EQ(GraphBlocks(1200, 2), kMaxGraphWorkers);
}

TEST(LaunchShapeTest, AGraphBlockFitsInPlaceOfABlock) {
  const BlockFootprint graph = {288, 96, 47'500};
  EXPECT_TRUE(FitsBeside(graph, kBlock, 1, kSm));
  EXPECT_TRUE(FitsBeside(graph, kBlock, 2, kSm));
  EXPECT_TRUE(FitsBeside({288, 104, 47'500}, kBlock, 2, kSm));
  // Nine warps are three for one of the four schedulers, which has a quarter of the registers: 128
  // and 96 for a thread, 64,512 of 65,536 in all, do not fit.
  EXPECT_FALSE(FitsBeside({288, 128, 47'500}, kBlock, 2, kSm));
  // Registers are allocated in multiples of eight: 105 are as many as 112.
  EXPECT_FALSE(FitsBeside({288, 105, 47'500}, kBlock, 2, kSm));
  // With a loader, and a ring of pages.
  EXPECT_TRUE(FitsBeside({320, kGraphRegisters, 48'000 + kRingBytes}, kBlock, 2, kSm));
  EXPECT_FALSE(FitsBeside({320, kGraphRegisters + 8, 48'000 + kRingBytes}, kBlock, 2, kSm));
  EXPECT_FALSE(FitsBeside({320, kGraphRegisters, 90'000 + kRingBytes}, kBlock, 2, kSm));
  const SmResources small = {2'048, 65'536, 102'400, 32};
  EXPECT_TRUE(FitsBeside(graph, kBlock, 2, small));
  EXPECT_FALSE(FitsBeside({288, 96, 57'000}, kBlock, 2, small));
  EXPECT_FALSE(FitsBeside(graph, {992, 16, 1'024}, 3, kSm));
}

TEST(LaunchShapeTest, SharedMemoryIsAsMuchAsTheBlocksNeed) {
  EXPECT_EQ(SharedMemoryPercent(2, kBlock, kSm), 39u);  // 89,136 of 233,472 bytes.
  EXPECT_EQ(SharedMemoryPercent(5, kBlock, kSm), 96u);
  EXPECT_EQ(SharedMemoryPercent(30, kBlock, kSm), 100u);
  const BlockFootprint graph = {320, 104, kBlock.shared_bytes + kRingBytes};
  EXPECT_EQ(SharedMemoryPercentBeside(graph, kBlock, 2, kSm), 81u);  // 188,464 bytes.
  EXPECT_EQ(SharedMemoryPercentBeside({288, 96, 20'000}, kBlock, 1, kSm), 10u);
}

}  // namespace
}  // namespace resident
