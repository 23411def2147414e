// Both builds of operators link into one image for a GPU, without a GPU: what a canary
// loads there.
#include <gtest/gtest.h>

#include "kernels/resident/kernel_parameters.h"
#include "runtime/engine/image/cubin.h"
#include "tests/units/trials.h"

namespace resident {
namespace {

TEST(CheckedImageTest, HoldsBothBuildsAndTheKernelStaysWithinItsRegisters) {
  const auto generation = testing::TrialsGeneration(/*architecture=*/90);
  const auto functions = ReadCubin(*generation->image);
  ASSERT_TRUE(functions.ok()) << functions.status();
  for (const GenerationOperator& op : generation->operators) {
    ASSERT_TRUE(functions->contains(op.symbol)) << op.symbol;
    EXPECT_LE(functions->at(op.symbol).registers, kMaxRegisters) << op.symbol;
  }
  EXPECT_LE(functions->at(kResidentKernelName).registers, kMaxRegisters);
}

}  // namespace
}  // namespace resident
