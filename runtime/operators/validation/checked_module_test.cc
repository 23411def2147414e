// Checks without a GPU that both builds of operators link into modules for one, as a
// validation loads them.
#include <gtest/gtest.h>

#include "kernels/resident/kernel_parameters.h"
#include "runtime/image/cubin.h"
#include "tests/units/trials.h"

namespace resident {
namespace {

TEST(CheckedModuleTest, BothBuildsStayWithinTheKernelsRegisters) {
  const auto generation = testing::TrialsGeneration("sm_90");
  ASSERT_FALSE(generation->operators.empty());
  for (const GenerationOperator& op : generation->operators) {
    const auto functions = ReadCubin(*op.object);
    ASSERT_TRUE(functions.ok()) << functions.status();
    ASSERT_TRUE(functions->contains(op.symbol)) << op.symbol;
    EXPECT_LE(functions->at(op.symbol).registers, kMaxRegisters) << op.symbol;
  }
}

}  // namespace
}  // namespace resident
