// Detection of functions in PTX from which the compiler has dropped code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/compile/inspect.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Function(const std::string& body) {
  return ".version 9.0\n.target sm_90\n.address_size 64\n"
         ".func  (.param .b64 func_retval0) declared\n(\n\t.param .b64 p\n)\n;\n"
         ".global .align 4 .b8 table[8] = {1, 2};\n"
         ".visible .func resident_operator_swish(\n\t.param .b64 a\n)\n{\n\t.reg .b64 %rd<4>;\n" +
         body + "\n}\n";
}

TEST(InspectPtxTest, FunctionsThatReturnAreAccepted) {
  for (const char* body :
       {"\tadd.s64 %rd1, %rd2, 1;\n\tret;",
        "$L__BB0_1:\n\tst.u64 [%rd1], 1;\n\tbra.uni \t$L__BB0_1;",
        "\ttrap;\n\t// begin inline asm\n\texit;\n\t// end inline asm",
        "\tret; // the end\n\t.pragma \"x\";",
        "\t{ // callseq 0, 0\n\tcall.uni f;\n\t} // callseq 0\n\tret;",
        "\t{ .reg .pred p;\n\tsetp.eq.s64 p, %rd1, 0;\n\t}\n\tret;", "\t{\n\tcall.uni f; }\n\tret;",
        "\t{ .reg .pred p; }\n\tret;", "\tmov.b64 {%r1,\n\t%r2}, %rd1;\n\tret;",
        "\t.pragma \"{ // }} \";\n\tret;", "\t/* { \n */ { ret; }", "\tret; // }\n\t.loc 1 2 3"}) {
    EXPECT_TRUE(CheckPtxFunctions(Function(body)).ok())
        << CheckPtxFunctions(Function(body)) << body;
  }
  EXPECT_TRUE(CheckPtxFunctions("").ok());
}

TEST(InspectPtxTest, FunctionsWithoutAReturnAreRefused) {
  for (const char* body :
       {"", "\tadd.s64 %rd1, %rd2, 1;", "\tret;\n$L__BB0_1:", "\t@%p1 bra \t$L__BB0_1;",
        "\t@%p1 ret;", "\tretained.u64 %rd1;",
        "\t{ // callseq 0, 0\n\tcall.uni f;\n\tret;\n\t} // callseq 0\n\tmov.u64 %rd1, 1;",
        "\t{ .reg .pred p;\n\tret;\n\t}\n\tmov.u64 %rd1, 1;", "\tret;\n\t{ @p bra x; }",
        "\tret;\n\tmov.b64 {%r1, %r2}, %rd1;", "\tret; $L__BB0_1:", "\t// ret;", "\t/* ret; */"}) {
    const absl::Status status = CheckPtxFunctions(Function(body));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("'resident_operator_swish'"), HasSubstr("Fix:")));
  }
}

TEST(InspectPtxTest, FunctionsAfterBracesWithinALineAreChecked) {
  // The first function returns; the second one does not.
  const std::string second =
      ".visible .func second()\n{\n\tadd.s64 %rd1, %rd2, 1;\n}\n"
      ".visible .func third()\n{\n\tret;\n}\n";
  for (const char* body :
       {"\tret;", "\t{\n\t.reg .pred p; }\n\tret;", "\t{ .reg .pred p;\n\t}\n\tret;",
        "\t{{\n\tmov.u64 %rd1, 1;\n\t} }\n\tret;"}) {
    const absl::Status status = CheckPtxFunctions(Function(body) + second);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'second'")) << body;
  }
}

TEST(InspectPtxTest, OperatorsThatKeepRegistersAreRefused) {
  const auto with = [](const std::string& header) {
    return CheckPtxFunctions(".version 9.0\n" + header + "\n{\n\tret;\n}\n");
  };
  const std::string entry = ".visible .func resident_op_0123456789abcdef(\n\t.param .b64 a\n)\n";
  EXPECT_TRUE(with(entry + ".abi_preserve 2").ok());
  EXPECT_TRUE(with(".func helper(\n\t.param .b64 a\n)").ok());
  EXPECT_TRUE(with(".visible .func resident_sdk_3_0123456789abcdef()").ok());
  const absl::Status status = with(entry);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'resident_op_0123456789abcdef'"), HasSubstr("RESIDENT_OPERATOR")));
}

}  // namespace
}  // namespace resident
