#include "server/workload/flux_programs.h"

#include <chrono>
#include <string>

#include "gtest/gtest.h"
#include "runtime/engine/cuda/cuda_registration.h"

namespace resident {
namespace {

using std::chrono::milliseconds;

EngineInfo Gpu() {
  EngineInfo info;
  info.traits = CudaTraits(90, 256, 0);
  info.workers = 264;
  info.threads_per_block = 256;
  return info;
}

// Two programs of one instruction each.
v1::FluxPrograms TwoPrograms() {
  v1::FluxPrograms message;
  message.set_bytecode(std::string("\x00\x01", 2));
  for (const uint32_t offset : {0, 1, 2}) message.add_offsets(offset);
  return message;
}

// A message without a limit of cycles must not be refused because of the daemon's default.
TEST(FluxProgramsTest, DefaultLimitOfCyclesIsLoweredToWhatTheDeviceExecutesInTime) {
  const v1::FluxPrograms message = TwoPrograms();
  FluxPrograms programs(message, nullptr);
  ASSERT_TRUE(programs.Check(Limits()).ok());
  const FluxSplit split = programs.Split(Gpu(), milliseconds(1000));
  ASSERT_LT(split.max_cycles_of_run, 1'000'000u);
  EXPECT_TRUE(programs.CheckSplit(split).ok()) << programs.CheckSplit(split);
}

TEST(FluxProgramsTest, ExplicitLimitOfCyclesThatIsTooHighIsRefused) {
  v1::FluxPrograms message = TwoPrograms();
  message.set_max_cycles(1'000'000);
  FluxPrograms programs(message, nullptr);
  ASSERT_TRUE(programs.Check(Limits()).ok());
  const absl::Status refused = programs.CheckSplit(programs.Split(Gpu(), milliseconds(1000)));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(refused.message()).find("--task_time_limit"), std::string::npos);
}

}  // namespace
}  // namespace resident
