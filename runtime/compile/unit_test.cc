#include "runtime/compile/unit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/base/limits.h"

namespace resident {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

CompileJob Job() {
  CompileJob job;
  job.files = {{"swish.cc", "#include \"resident/operator.h\"\n"}};
  job.main_file = "swish.cc";
  job.function = "swish";
  job.content_hash = "0123456789abcdef" + std::string(48, '7');
  return job;
}

TEST(CheckSources, RefusesNamesThatLeaveTheFolder) {
  EXPECT_TRUE(CheckSources(Job()).ok());
  for (const char* name :
       {"", "/etc/passwd", "../x.h", "a/../../x.h", "a//x.h", "a/./x.h", "x.h/", "a b.h", "x\n.h",
        "\xc3\xa4.h", "kernels/sdk/block.h", "resident/operator.h", "a\"b.h"}) {
    CompileJob job = Job();
    job.files[name] = "";
    const absl::Status status = CheckSources(job);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
  }
  for (const char* name : {"a.h", "util/a-b_c.0.h", "..a.h", "..."}) {
    CompileJob job = Job();
    job.files[name] = "";
    EXPECT_TRUE(CheckSources(job).ok()) << name;
  }
}

TEST(CheckSources, RefusesTooLargeSourcesWithTheLimit) {
  CompileJob job = Job();
  job.files["big.h"] = std::string(kMaxInstallSourceBytes, ' ');
  EXPECT_THAT(std::string(CheckSources(job).message()), HasSubstr("the limit is 1048576"));
  job = Job();
  for (uint32_t i = 0; i < kMaxInstallFiles; ++i) job.files["f" + std::to_string(i)] = "";
  EXPECT_THAT(std::string(CheckSources(job).message()), HasSubstr("over the limit of 64"));
  job = Job();
  job.scratch_bytes = 1 << 30;
  EXPECT_THAT(std::string(CheckSources(job).message()), HasSubstr("524288"));
}

TEST(CheckSources, RefusesWhatCannotBeCompiled) {
  CompileJob job = Job();
  job.main_file = "other.cc";
  EXPECT_THAT(std::string(CheckSources(job).message()), HasSubstr("'other.cc'"));
  job = Job();
  job.files["zero.h"] = std::string("a\0b", 3);
  EXPECT_THAT(std::string(CheckSources(job).message()), HasSubstr("byte 1 is zero"));
  // The function's name becomes part of a compiler option.
  for (const char* function : {"", "1x", "a-b", "a=b", "x y"}) {
    job = Job();
    job.function = function;
    EXPECT_FALSE(CheckSources(job).ok()) << function;
  }
  job = Job();
  job.content_hash = "0123456789abcdeg";
  EXPECT_FALSE(CheckSources(job).ok());
}

TEST(MakeUnit, CheckedAndPlainBuildHaveDifferentNames) {
  CompileJob job = Job();
  const Unit unit = MakeUnit(job);
  EXPECT_EQ(unit.symbol, "resident_op_0123456789abcdef");
  EXPECT_THAT(unit.definitions, Contains("-Dresident_operator_swish=" + unit.symbol));
  EXPECT_THAT(unit.definitions, Contains("-DRESIDENT_UNIT=0123456789abcdef"));
  EXPECT_THAT(unit.main_text, HasSubstr("namespace resident_unit_0123456789abcdef {"));
  job.checked = true;
  const Unit checked = MakeUnit(job);
  EXPECT_EQ(checked.symbol, "resident_opc_0123456789abcdef");
  EXPECT_THAT(checked.main_text, HasSubstr("namespace resident_unit_c0123456789abcdef {"));
  EXPECT_EQ(ParseUnitId(unit.symbol), "0123456789abcdef");
  EXPECT_EQ(ParseUnitId(checked.symbol), "c0123456789abcdef");
  EXPECT_EQ(ParseUnitId("resident_operator_add"), "");
  EXPECT_EQ(ParseUnitId("resident_op_0123"), "");
}

TEST(MakeUnit, HeadersThatAreNamedAreIncludedBeforeTheNamespace) {
  CompileJob job = Job();
  EXPECT_THAT(MakeUnit(job).main_text, Not(HasSubstr("kernels/sdk/tensor.h")));
  job.files["util.h"] = "#include \"kernels/sdk/tensor.h\"\n";
  const std::string text = MakeUnit(job).main_text;
  EXPECT_LT(text.find("kernels/sdk/tensor.h"), text.find("namespace"));
}

TEST(SdkHeaders, AreWhatOperatorsInclude) {
  for (const char* name :
       {"resident/operator.h", "kernels/sdk/operator.h", "kernels/layout/task.h"}) {
    EXPECT_EQ(SdkHeaders().count(name), 1u) << name;
  }
  EXPECT_EQ(SdkHeaders().count("kernels/layout/ring_layout.h"), 0u);
  EXPECT_EQ(SdkHash().size(), 64u);
}

TEST(OperatorFunctionNameTest, IsAnIdentifier) {
  EXPECT_EQ(OperatorFunctionName("my.op-1"), "my_op_1");
}

}  // namespace
}  // namespace resident
