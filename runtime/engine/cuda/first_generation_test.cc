// The images need no GPU to be looked at: there is one for each architecture, and the
// PTX links for each of them and for one that has none.
#include "runtime/engine/cuda/first_generation.h"

#include <gtest/gtest.h>

#include "kernels/resident/kernel_parameters.h"

namespace resident {
namespace {

bool LooksLikeTheKernel(const std::string& image) {
  return image.substr(1, 3) == "ELF" && image.find(kResidentKernelName) != std::string::npos &&
         image.find("resident_operator_add") != std::string::npos;
}

TEST(FirstGeneration, EveryArchitectureHasALinkedImage) {
  ASSERT_FALSE(ImageArchitectures().empty());
  for (int architecture : ImageArchitectures()) {
    const auto image = FirstGenerationImage(architecture / 10, architecture % 10);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE(LooksLikeTheKernel(*image)) << architecture;
  }
}

TEST(FirstGeneration, LaterMinorTakesTheImageOfAnEarlierOne) {
  EXPECT_EQ(*FirstGenerationImage(8, 7), *FirstGenerationImage(8, 6));
}

TEST(FirstGeneration, PtxLinksForArchitecturesWithAndWithoutAnImage) {
  for (int architecture : {80, 90, 100, 103}) {
    const auto image =
        FirstGenerationImage(architecture / 10, architecture % 10, /*from_ptx=*/true);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE(LooksLikeTheKernel(*image)) << architecture;
  }
}

}  // namespace
}  // namespace resident
