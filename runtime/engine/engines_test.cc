#include "runtime/engine/engines.h"

#include <cstring>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/engine/cpu/cpu_registration.h"
#include "runtime/engine/cuda/cuda_registration.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(EnginesTest, RowsAreCompleteAndHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (const EngineType& type : EngineTypes()) {
    EXPECT_TRUE(names.insert(type.name).second) << type.name << " stands twice";
    EXPECT_STRNE(type.name, "");
    EXPECT_STRNE(type.device_label, "");
    EXPECT_NE(type.create, nullptr) << type.name;
    // --devices takes "NAME", "NAME:ORDINAL", "ORDINAL" and "all", separated by commas.
    EXPECT_EQ(std::strpbrk(type.name, ":,"), nullptr) << type.name;
    EXPECT_FALSE(absl::ascii_isdigit(static_cast<unsigned char>(type.name[0]))) << type.name;
    EXPECT_STRNE(type.name, "all");
    const auto found = FindEngineType(type.name);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, &type);
  }
}

TEST(EnginesTest, EveryMachineHasADeviceOfTheLastRow) {
  ASSERT_FALSE(EngineTypes().empty());
  EXPECT_EQ(EngineTypes().back().list_devices, nullptr);
}

TEST(EnginesTest, UnknownNameIsRefusedWithTheNamesThereAre) {
  for (const char* name : {"", "abacus", "CPU", "cpu ", "cuda:0"}) {
    const auto found = FindEngineType(name);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(found.status().message()),
                AllOf(HasSubstr(std::string("'") + name + "'"), HasSubstr("Fix: "),
                      HasSubstr("cuda, cpu")));
  }
}

TEST(EnginesTest, TraitsNameTheRowAndSizeTasks) {
  for (const EngineTraits& traits :
       {CpuTraits(), CudaTraits(90, 256, 132), CudaTraits(80, 32, 0)}) {
    EXPECT_TRUE(FindEngineType(traits.engine).ok()) << traits.engine;
    EXPECT_FALSE(traits.compile_target.empty());
    EXPECT_FALSE(traits.work_units.empty());
    EXPECT_GT(traits.instructions_per_ms, traits.divergence_slowdown);
    EXPECT_GT(traits.run_instructions_per_ms, traits.divergence_slowdown);
    EXPECT_GT(traits.max_operations_per_ms, 0u);
    EXPECT_GT(traits.max_elements_per_ms, 0u);
    EXPECT_GT(traits.max_scattered_elements_per_ms, 0u);
    EXPECT_GE(traits.lockstep_runs, 1u);
    EXPECT_GE(traits.max_task_time, std::chrono::seconds(1));
  }
  EXPECT_EQ(CudaTraits(90, 256, 0).compile_target, "sm_90");
  EXPECT_FALSE(CudaTraits(90, 256, 0).executes_graphs);
  EXPECT_TRUE(CudaTraits(90, 256, 132).executes_graphs);
  EXPECT_EQ(CudaTraits(90, 256, 132).graph_workers, 132u);
}

TEST(EnginesTest, DevicesAreNumberedWhereThereCanBeSeveral) {
  EXPECT_EQ((EngineChoice{*FindEngineType("cuda"), 3}.Label()), "GPU 3");
  EXPECT_EQ((EngineChoice{*FindEngineType("cpu"), 0}.Label()), "CPU");
}

}  // namespace
}  // namespace resident
