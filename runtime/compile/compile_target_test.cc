#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/compile/compile_job.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CompileTargetTest, NamesStandForToolchains) {
  EXPECT_EQ(*CompileTarget::Find("x86-64"), (CompileTarget{Toolchain::kHost, 0}));
  EXPECT_EQ(*CompileTarget::Find("sm_90"), (CompileTarget{Toolchain::kCuda, 90}));
  EXPECT_EQ(*CompileTarget::Find("sm_120"), (CompileTarget{Toolchain::kCuda, 120}));
  for (const char* name : {"x86-64", "sm_80", "sm_120"}) {
    EXPECT_EQ(CompileTarget::Find(name)->name(), name);
  }
}

TEST(CompileTargetTest, UnknownNameIsRefused) {
  for (const char* name :
       {"", "abacus", "sm_", "sm_0", "sm_-90", "sm_090", "sm_90a", "sm_ 90", "SM_90", "x86_64"}) {
    const auto target = CompileTarget::Find(name);
    EXPECT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(target.status().message()),
                AllOf(HasSubstr(std::string("'") + name + "'"), HasSubstr("Fix: ")));
  }
}

}  // namespace
}  // namespace resident
