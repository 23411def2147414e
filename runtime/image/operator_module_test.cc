// Links and reads modules of operators, which needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kernels/resident/kernel_parameters.h"
#include "runtime/image/cubin.h"
#include "runtime/image/first_generation.h"
#include "runtime/image/link.h"
#include "tests/units/versions.h"

namespace resident {
namespace {

using ::testing::HasSubstr;
using testing::VersionsUnit;
using testing::VersionSymbol;

class OperatorModuleTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(OperatorModuleTest, HoldsTheOperatorAndItsEntryAndNoKernel) {
  const auto module = LinkOperatorModule({VersionSymbol(9)}, VersionsUnit(GetParam()),
                                         static_cast<int>(GetParam()));
  ASSERT_TRUE(module.ok()) << module.status();
  const auto functions = ReadCubin(*module);
  ASSERT_TRUE(functions.ok()) << functions.status();
  ASSERT_TRUE(functions->contains(VersionSymbol(9)));
  EXPECT_GT(functions->at(VersionSymbol(9)).code_bytes, 100u);
  EXPECT_FALSE(functions->contains(kResidentKernelName));
  EXPECT_THAT(*module, HasSubstr(VersionSymbol(9) + kEntrySuffix));
}

// Divisions, for example, are calls of functions in the unit.
TEST_P(OperatorModuleTest, HoldsWhatTheOperatorCalls) {
  const std::string unit =
      ".version 9.0\n.target sm_80\n.address_size 64\n"
      ".visible .func called(.param .b64 p) { .reg .b64 %p; ld.param.b64 %p, [p];\n"
      "  st.b64 [%p], %p; ret; }\n"
      ".visible .func resident_op_a(.param .b64 state) .abi_preserve 2 {\n"
      "  .reg .b64 %b; ld.param.b64 %b, [state];\n"
      "  { .param .b64 p; st.param.b64 [p], %b; call called, (p); }\n  ret; }\n";
  const auto module = LinkOperatorModule({"resident_op_a"}, unit, static_cast<int>(GetParam()));
  ASSERT_TRUE(module.ok()) << module.status();
  EXPECT_TRUE(ReadCubin(*module)->contains("called"));
}

TEST_P(OperatorModuleTest, OperatorThatIsNotInTheUnitIsNamed) {
  const auto module = LinkOperatorModule({"resident_op_missing"}, VersionsUnit(GetParam()),
                                         static_cast<int>(GetParam()));
  ASSERT_FALSE(module.ok());
  EXPECT_THAT(std::string(module.status().message()), HasSubstr("resident_op_missing"));
}

INSTANTIATE_TEST_SUITE_P(Architectures, OperatorModuleTest, ::testing::Values(80, 90, 100));

TEST(OperatorModuleTest, PtxIsCompiledForTheArchitecture) {
  const std::string unit =
      ".version 9.0\n.target sm_80\n.address_size 64\n"
      ".visible .func resident_op_a(.param .b64 state) .abi_preserve 2 { ret; }\n";
  for (const int architecture : {80, 90, 103}) {
    const auto module = LinkOperatorModule({"resident_op_a"}, unit, architecture);
    ASSERT_TRUE(module.ok()) << module.status();
    EXPECT_TRUE(ReadCubin(*module)->contains("resident_op_a"));
  }
}

// A function may use the registers that the kernel was launched with, which are allocated in
// multiples of eight, and no more.
TEST(OperatorModuleTest, KernelsOfAllArchitecturesLeaveOperatorsAllRegisters) {
  for (const int architecture : ImageArchitectures()) {
    const auto functions = ReadCubin(*FirstGenerationImage(architecture / 10, architecture % 10));
    ASSERT_TRUE(functions.ok()) << functions.status();
    const uint32_t registers = functions->at(kResidentKernelName).registers;
    EXPECT_EQ((registers + 7) / 8 * 8, kMaxRegisters) << architecture << ": " << registers;
  }
}

}  // namespace
}  // namespace resident
