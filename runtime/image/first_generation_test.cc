// Tests of the images, which need no GPU: there is one for each architecture, and the PTX can be
// linked for each of them and for an architecture without an image.
#include "runtime/image/first_generation.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "kernels/resident/image_files.h"
#include "kernels/resident/kernel_parameters.h"
#include "kernels/resident/operator_launch.h"
#include "runtime/image/cubin.h"

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

TEST(FirstGeneration, FilesOfAnotherBuildAreRefused) {
  ImageFiles files = *resident_image_files();
  EXPECT_TRUE(CheckImageFiles(files).ok());
  files.checksum = "another";
  EXPECT_EQ(CheckImageFiles(files).code(), absl::StatusCode::kUnavailable);
}

TEST(FirstGeneration, LaterMinorVersionUsesTheImageOfAnEarlierOne) {
  EXPECT_EQ(*FirstGenerationImage(8, 7), *FirstGenerationImage(8, 0));
  EXPECT_EQ(UnitArchitecture(8, 7), 80);
  EXPECT_EQ(UnitArchitecture(9, 0), 90);
  EXPECT_EQ(UnitArchitecture(11, 0), 110);
}

TEST(FirstGeneration, PtxLinksForArchitecturesWithAndWithoutAnImage) {
  // The build links it for 8.0, where that is the image.
  for (int architecture : {90, 103}) {
    const auto image =
        FirstGenerationImage(architecture / 10, architecture % 10, /*from_ptx=*/true);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE(LooksLikeTheKernel(*image)) << architecture;
  }
}

TEST(FirstGeneration, CubinHasTheResourcesOfOperators) {
  for (int architecture : ImageArchitectures()) {
    const auto image = FirstGenerationImage(architecture / 10, architecture % 10);
    const auto functions = ReadCubin(*image);
    ASSERT_TRUE(functions.ok()) << functions.status();
    const FunctionResources& add = functions->at("resident_operator_add");
    EXPECT_GT(add.registers, 16u);
    EXPECT_LE(add.registers, kMaxRegisters);
    EXPECT_GT(add.code_bytes, 500u);
    EXPECT_GT(functions->at(kResidentKernelName).code_bytes, add.code_bytes);
    // Two of the largest blocks of each kernel fit on an SM.
    EXPECT_LE(functions->at(kResidentKernelName).registers, kMaxRegisters);
    EXPECT_LE(functions->at(kGraphKernelName).registers, kGraphRegisters);
    EXPECT_LE(functions->at(kGraphStreamKernelName).registers, kGraphRegisters);
    EXPECT_LE(functions->at(kOperatorLaunchName).registers, kMaxRegisters);
    // What the operators need, which it calls through pointers.
    EXPECT_GE(functions->at(kOperatorLaunchName).registers, add.registers);
  }
}

TEST(FirstGeneration, DamagedCubinIsAnErrorAndNotACrash) {
  const std::string whole = *FirstGenerationImage(9, 0);
  EXPECT_FALSE(ReadCubin("").ok());
  EXPECT_FALSE(ReadCubin("not an ELF file at all, but long enough to be one, or nearly so").ok());
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = whole.substr(0, random() % whole.size());
    (void)ReadCubin(damaged).ok();
    damaged = whole;
    for (int k = 0; k < 20; ++k) damaged[random() % 4096] = static_cast<char>(random());
    (void)ReadCubin(damaged).ok();
  }
}

}  // namespace
}  // namespace resident
