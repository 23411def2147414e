// Images of later generations need no GPU to be linked and looked at: the kernel, the
// built-in operators, a jump table and a unit.
#include "runtime/engine/image/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kernels/resident/kernel_parameters.h"
#include "runtime/engine/image/cubin.h"
#include "runtime/engine/image/first_generation.h"
#include "tests/units/versions.h"

namespace resident {
namespace {

using ::testing::HasSubstr;
using testing::kFirstFreeSlot;
using testing::VersionsGeneration;
using testing::VersionSymbol;

std::map<std::string, FunctionResources> Functions(const std::string& image) {
  auto functions = ReadCubin(image);
  EXPECT_TRUE(functions.ok()) << functions.status();
  return *std::move(functions);
}

class LinkTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(LinkTest, ImageHoldsTheKernelAndTheUnitsOperators) {
  const auto generation =
      VersionsGeneration(2, GetParam(), {{kFirstFreeSlot, 0}, {kFirstFreeSlot + 1, 9}});
  const auto functions = Functions(*generation->image);
  ASSERT_TRUE(functions.contains(kResidentKernelName));
  ASSERT_TRUE(functions.contains("resident_operator_add"));
  ASSERT_TRUE(functions.contains(VersionSymbol(0)));
  ASSERT_TRUE(functions.contains(VersionSymbol(9)));
  EXPECT_GT(functions.at(VersionSymbol(9)).code_bytes, 100u);
}

// What a later generation costs the kernel: no more registers than the first, so that as
// many blocks fit.
TEST_P(LinkTest, KernelNeedsWhatItNeedsInTheFirstGeneration) {
  const int architecture = static_cast<int>(GetParam());
  const auto first = Functions(*FirstGenerationImage(architecture / 10, architecture % 10));
  std::map<uint32_t, uint32_t> all;
  for (uint32_t k = 0; k < testing::kVersions; ++k) all[kFirstFreeSlot + 2 * k] = k;
  for (const auto& versions : {std::map<uint32_t, uint32_t>{}, all}) {
    const auto later = Functions(*VersionsGeneration(2, GetParam(), versions)->image);
    const FunctionResources& before = first.at(kResidentKernelName);
    const FunctionResources& after = later.at(kResidentKernelName);
    EXPECT_EQ(after.registers, before.registers);
    EXPECT_LE(after.registers, kMaxRegisters);
    EXPECT_EQ(after.stack_bytes, before.stack_bytes);
    EXPECT_EQ(after.code_bytes, before.code_bytes);
  }
}

TEST_P(LinkTest, TableNamesOfAFunctionThatIsNotThereFail) {
  GenerationObjects objects =
      FirstGenerationObjects(static_cast<int>(GetParam() / 10), static_cast<int>(GetParam() % 10));
  const std::string table = JumpTablePtx({{kFirstFreeSlot, "resident_op_missing", nullptr}});
  objects.inputs.push_back({"table.ptx", table, /*is_ptx=*/true});
  const auto image = LinkImage(objects.inputs, objects.architecture);
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(std::string(image.status().message()), HasSubstr("resident_op_missing"));
}

INSTANTIATE_TEST_SUITE_P(Architectures, LinkTest, ::testing::Values(80, 90, 100));

TEST(GenerationObjectsTest, LaterMinorTakesTheObjectsOfAnEarlierOne) {
  EXPECT_EQ(FirstGenerationObjects(8, 7).architecture, 86);
  EXPECT_EQ(FirstGenerationObjects(9, 0).architecture, 90);
}

TEST(GenerationObjectsTest, UnknownArchitectureLinksFromPtx) {
  GenerationObjects objects = FirstGenerationObjects(11, 0);
  EXPECT_EQ(objects.architecture, 110);
  const std::string table = JumpTablePtx({});
  objects.inputs.push_back({"table.ptx", table, /*is_ptx=*/true});
  const auto image = LinkImage(objects.inputs, objects.architecture);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_TRUE(Functions(*image).contains(kResidentKernelName));
}

}  // namespace
}  // namespace resident
