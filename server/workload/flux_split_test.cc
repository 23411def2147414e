#include "server/workload/flux_split.h"

#include <chrono>
#include <cstdint>

#include "gtest/gtest.h"
#include "runtime/engine/cpu/cpu_registration.h"
#include "runtime/engine/cuda/cuda_registration.h"

namespace resident {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDefaultLimit{10'000};
constexpr uint64_t kMaxCycles = 100'000'000;  // --flux_max_cycles by default.
constexpr uint64_t kDefaultCycles = 1'000'000;

EngineInfo Cpu(uint32_t workers) {
  EngineInfo info;
  info.traits = CpuTraits();
  info.workers = workers;
  return info;
}

EngineInfo Gpu(uint32_t blocks, uint32_t threads = 256) {
  EngineInfo info;
  info.traits = CudaTraits(90, threads, 0);
  info.workers = blocks;
  info.threads_per_block = threads;
  return info;
}

TEST(FluxSplitTest, OneCpuWorkerEndsAnyTaskInTime) {
  // Half of the measured speed of a worker.
  constexpr uint64_t kInstructionsOfSecond = 150'000'000;
  for (const uint32_t workers : {1u, 2u, 16u, 64u}) {
    for (const uint64_t programs : {1u, 64u}) {
      for (const int64_t limit_ms : {500, 10'000, 60'000}) {
        for (const uint64_t cycles :
             {uint64_t{0}, uint64_t{3000}, kDefaultCycles, uint64_t{5'000'000}, kMaxCycles}) {
          const FluxSplit split =
              SplitFlux({64, programs, cycles}, Cpu(workers), milliseconds(limit_ms));
          ASSERT_GE(split.runs_of_task, 1u);
          ASSERT_GE(split.runs_of_chunk, 1u);
          if (split.runs_of_task == 1) continue;  // One run is the minimum.
          EXPECT_LT(split.runs_of_task * cycles * 1000 / kInstructionsOfSecond,
                    static_cast<uint64_t>(limit_ms))
              << workers << " workers, " << cycles << " cycles";
        }
      }
    }
  }
  EXPECT_EQ(SplitFlux({64, 1, kMaxCycles}, Cpu(2), kDefaultLimit).runs_of_task, 1u);
  EXPECT_EQ(SplitFlux({64, 1, kMaxCycles / 2}, Cpu(2), kDefaultLimit).runs_of_task, 2u);
}

TEST(FluxSplitTest, TaskOfFewLongRunsIsSharedByTheWorkers) {
  const FluxSplit split = SplitFlux({64, 1, kMaxCycles}, Cpu(4), kDefaultLimit);
  EXPECT_EQ(split.chunks(split.runs_of_task), split.runs_of_task);
}

TEST(FluxSplitTest, OrdinaryBatchIsOneTaskOfLargeChunks) {
  const FluxSplit cpu = SplitFlux({32'768, 1, 3003}, Cpu(2), kDefaultLimit);
  EXPECT_EQ(cpu.tasks(32'768), 1u);
  EXPECT_EQ(cpu.runs_of_chunk, 4096u);
  const FluxSplit gpu = SplitFlux({65'536, 1, 3003}, Gpu(264), kDefaultLimit);
  EXPECT_EQ(gpu.tasks(65'536), 1u);
  EXPECT_EQ(gpu.runs_of_chunk, 256u);
}

TEST(FluxSplitTest, DefaultLimitKeepsAGpuBusy) {
  for (const uint64_t programs : {uint64_t{1}, uint64_t{1} << 20}) {
    const FluxSplit split = SplitFlux({1 << 20, programs, kDefaultCycles}, Gpu(264), kDefaultLimit);
    EXPECT_EQ(split.runs_of_chunk % 256, 0u);
    EXPECT_GE(split.chunks(split.runs_of_task), 264u);
  }
}

TEST(FluxSplitTest, LongRunsOnAGpuAreTasksOfAWarp) {
  for (const uint64_t programs : {1u, 64u}) {
    const FluxSplit split = SplitFlux({64, programs, kMaxCycles}, Gpu(264), kDefaultLimit);
    EXPECT_TRUE(split.long_tasks);
    EXPECT_EQ(split.runs_of_chunk, 32u);
    EXPECT_EQ(split.runs_of_task, 32u);
  }
  EXPECT_EQ(SplitFlux({64, 64, UINT32_MAX}, Gpu(1), milliseconds(1)).runs_of_task, 32u);
}

TEST(FluxSplitTest, OnlyRunsThatMayDelayOthersAreLong) {
  const auto is_long = [](const EngineInfo& engine, uint64_t programs, uint64_t cycles) {
    return SplitFlux({64, programs, cycles}, engine, kDefaultLimit).long_tasks;
  };
  EXPECT_FALSE(is_long(Gpu(264), 1, kDefaultCycles));
  EXPECT_TRUE(is_long(Gpu(264), 1, 20'000'000));
  EXPECT_FALSE(is_long(Gpu(264), 64, kDefaultCycles));
  EXPECT_FALSE(is_long(Cpu(16), 1, kDefaultCycles));
  EXPECT_TRUE(is_long(Cpu(16), 1, kMaxCycles));
}

TEST(FluxSplitTest, NoTimeLimitIsTreatedAsTheLongest) {
  const FluxSplit none = SplitFlux({64, 1, kMaxCycles}, Cpu(2), milliseconds(0));
  EXPECT_EQ(none.runs_of_task, SplitFlux({64, 1, kMaxCycles}, Cpu(2), kDefaultLimit).runs_of_task);
}

TEST(FluxSplitTest, SmallerBlocksGetFewerRuns) {
  const FluxWork work = {1 << 24, 1, kDefaultCycles};
  const uint64_t whole = SplitFlux(work, Gpu(264), kDefaultLimit).runs_of_task;
  const uint64_t quarter = SplitFlux(work, Gpu(264, 64), kDefaultLimit).runs_of_task;
  EXPECT_LE(quarter, whole / 4);
  EXPECT_GE(quarter, whole / 4 - 256);
}

TEST(FluxSplitTest, TheBoundOfATaskFollowsFromItsCyclesAndNotFromUsualDurations) {
  // 50,000 instructions in a millisecond of a CPU's worker.
  const FluxWork alone = {1, 1, kMaxCycles};
  EXPECT_EQ(SplitFlux(alone, Cpu(2), kDefaultLimit).task_bound_ns(alone), 2'000'000'000u);
  const FluxWork many = {1 << 20, 1, kDefaultCycles};
  EXPECT_EQ(SplitFlux(many, Cpu(2), kDefaultLimit).task_bound_ns(many), 2'000'000'000u);
  const FluxWork largest = {UINT32_MAX, 1, UINT32_MAX};
  EXPECT_GE(SplitFlux(largest, Gpu(1), milliseconds(0)).task_bound_ns(largest), 10'000'000'000u);
}

TEST(FluxSplitTest, TheCyclesOfARunAreLimitedToWhatEndsInTime) {
  const auto max_cycles = [](uint64_t programs, const EngineInfo& engine, int64_t limit_ms) {
    return SplitFlux({64, programs, 1}, engine, milliseconds(limit_ms)).max_cycles_of_run;
  };
  EXPECT_EQ(max_cycles(1, Cpu(2), 10'000), 500'000'000u);
  EXPECT_EQ(max_cycles(64, Cpu(2), 10'000), 500'000'000u);
  EXPECT_EQ(max_cycles(1, Gpu(264), 10'000), 25'000'000u);
  EXPECT_EQ(max_cycles(64, Gpu(264), 10'000), 3'120'000u);
  EXPECT_EQ(max_cycles(1, Gpu(264), 60'000), 150'000'000u);
  EXPECT_EQ(max_cycles(1, Gpu(264), 0), UINT64_MAX);
}

TEST(FluxSplitTest, ChunksOfOneProgramHaveTwoRunsForEachThreadWhereAllBlocksHaveThem) {
  const auto chunk = [](uint64_t runs, uint64_t programs, bool grouped) {
    return SplitFlux({runs, programs, 3003, grouped}, Gpu(264), kDefaultLimit).runs_of_chunk;
  };
  EXPECT_EQ(chunk(65'536, 1, false), 256u);
  EXPECT_EQ(chunk(264 * 512, 1, false), 512u);
  EXPECT_EQ(chunk(264 * 512, 16, true), 512u);
  EXPECT_EQ(chunk(264 * 512, 16, false), 256u);
  EXPECT_EQ(chunk(1 << 24, 16, true), 1024u);
  // A chunk whose programs may all differ still ends in time.
  const FluxSplit slow = SplitFlux({1 << 20, 16, kDefaultCycles, true}, Gpu(264), kDefaultLimit);
  EXPECT_EQ(slow.runs_of_chunk,
            SplitFlux({1 << 20, 16, kDefaultCycles}, Gpu(264), kDefaultLimit).runs_of_chunk);
}

}  // namespace
}  // namespace resident
