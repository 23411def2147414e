#include "runtime/compile/ptx/ptx_verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"
#include "runtime/compile/ptx/ptx_frame_for_test.h"

namespace resident {
namespace {

using ::testing::HasSubstr;

// A function with a loop of each kind, and an inner one.
std::string Original() {
  return FramePtx(R"(ld.param.u64 %rd1, [state];
OUTER:
ld.global.u32 %r1, [%rd1];
COUNTED:
xor.b32 %r3, %r3, %r4;
add.s32 %r5, %r5, 1;
setp.lt.s32 %p1, %r5, %r6;
@%p1 bra COUNTED;
ld.shared.u8 %rs1, [%rd1];
cvt.u32.u16 %r2, %rs1;
SHORT:
add.s32 %r7, %r7, 1;
setp.lt.u32 %p2, %r7, %r2;
@%p2 bra SHORT;
barrier.sync 1, %r1;
shfl.sync.bfly.b32 %r1, %r1, 16, 31, -1;
call inner;
setp.ne.u32 %p3, %r1, 0;
@%p3 bra OUTER;)",
                  ".func inner()\n{\nret;\n}\n");
}

std::string Rewritten() { return RewriteAccepted(Original()).text; }

TEST(PtxVerifierTest, UnchangedTextIsAccepted) { EXPECT_NE(Rewritten(), ""); }

TEST(PtxVerifierTest, TextThatIsNotRewrittenIsRefused) {
  EXPECT_FALSE(VerifyPtx(Original(), 90).ok());
}

struct Change {
  const char* name;
  const char* from;
  const char* to;
  const char* message;
};

class PtxChangeTest : public ::testing::TestWithParam<Change> {};

TEST_P(PtxChangeTest, IsRefused) {
  const std::string text = Rewritten();
  const size_t at = text.find(GetParam().from);
  ASSERT_NE(at, std::string::npos) << GetParam().from << "\n" << text;
  std::string changed = text;
  changed.replace(at, std::string(GetParam().from).size(), GetParam().to);
  const absl::Status verified = VerifyPtx(changed, 90);
  EXPECT_EQ(verified.code(), absl::StatusCode::kInternal) << changed;
  EXPECT_THAT(std::string(verified.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, PtxChangeTest,
    ::testing::Values(
        Change{"LargeBudget", "mov.u32 %q_b, 4096;", "mov.u32 %q_b, 99999;",
               "does not begin with a budget"},
        Change{"OtherStopWord", "mov.u32 %q_c, 1024;", "mov.u32 %q_c, 2048;",
               "does not begin with a budget"},
        Change{"RegisterNotZero", "mov.b32 %r3, 0;\n", "", "not mov.b32 %r3, 0;"},
        Change{"NoLookAtEntry", "@!%q_go ret;\n", "", "without a look"},
        Change{"BudgetWritten", "xor.b32 %r3, %r3, %r4;", "mov.u32 %q_b, 4096;",
               "a reserved name outside of a form"},
        Change{"BudgetRead", "xor.b32 %r3, %r3, %r4;", "mov.u32 %r3, %q_b;",
               "a reserved name outside of a form"},
        Change{"HeadWithoutZero",
               "mov.u32 %q_x, 0;\n$Q_head1:", "$Q_head1:", "a reserved name outside of a form"},
        Change{"HeadThatSets", "add.s32 %q_b, %q_b, %q_x;\nOUTER:", "mov.u32 %q_b, 4096;\nOUTER:",
               "a reserved name outside of a form"},
        Change{"HeadElsewhere", "OUTER:\n", "xor.b32 %r3, %r3, 1;\nOUTER:\n",
               "a head without a loop"},
        Change{"HeadOfAnother", "OUTER:\n", "OTHER:\nOUTER:\n", "a loop without its head"},
        Change{"WayToAHead", "call inner;", "@%p1 bra $Q_head1;",
               "a reserved name outside of a form"},
        Change{"WayToAnExit", "call inner;", "@%p1 bra $Q_out1;",
               "a reserved name outside of a form"},
        Change{"WayIntoAMeeting", "xor.b32 %r3, %r3, %r4;", "@%p2 bra $Q_met3;",
               "a reserved name outside of a form"},
        Change{"WayBack", "ret;\n}\n.visible", "BACK:\nbra BACK;\n}\n.visible",
               "a way back without a budget"},
        Change{"WayBackWithPredicate", "setp.ne.u32 %p3, %r1, 0;",
               "setp.ne.u32 %p3, %r1, 0;\n@%p3 bra OUTER;", "a way back without a budget"},
        Change{"ConditionOfTheExit", "@!%p3 bra $Q_out1;", "@!%p2 bra $Q_out1;",
               "ends for another reason"},
        Change{"SenseOfTheExit", "@!%p3 bra $Q_out1;", "@%p3 bra $Q_out1;",
               "ends for another reason"},
        Change{"NoTestOfTheStopWord", "setp.eq.u32 %q_go, %q_s, 0;\nsub.s32 %q_x",
               "setp.ne.u32 %q_go, %q_s, 0;\nsub.s32 %q_x", "a reserved name outside of a form"},
        Change{"CounterGoesDown", "add.s32 %r5, %r5, 1;", "add.s32 %r5, %r5, -1;",
               "a counter that goes another way"},
        Change{"CounterStandsStill", "add.s32 %r5, %r5, 1;", "add.s32 %r5, %r5, 0;",
               "a counter that goes another way"},
        Change{"CounterStepsOver", "add.s32 %r5, %r5, 1;", "add.s32 %r5, %r5, 100000;",
               "a counter that goes another way"},
        Change{"CounterOfSomeTurns", "add.s32 %r5, %r5, 1;", "@%p3 add.s32 %r5, %r5, 1;",
               "does not change by a number"},
        Change{"CounterOfAnother", "add.s32 %r5, %r5, 1;", "add.s32 %r5, %r4, 1;",
               "does not change by a number"},
        Change{"CounterTwice", "xor.b32 %r3, %r3, %r4;", "mov.u32 %r5, %r4;",
               "does not change once in each turn"},
        Change{"LimitInTheLoop", "xor.b32 %r3, %r3, %r4;", "mov.u32 %r6, %r4;",
               "does not change once in each turn"},
        Change{"StepIsSkipped", "add.s32 %r5, %r5, 1;",
               "add.s32 %r5, %r5, 1;\n@%p2 bra SKIP;\nSKIP:", "a turn without its step"},
        Change{"TooManyTurns", "add.s32 %q_e32, %r5, 1024;", "add.s32 %q_e32, %r5, 4096;",
               "too many turns"},
        Change{"SpanOfOtherSign", "add.s32 %q_e32, %r5, 1024;", "add.s32 %q_e32, %r5, -1024;",
               "too many turns"},
        Change{"TurnsForNothing", "mad.lo.s32 %q_b, %q_t, -4, %q_b;",
               "mad.lo.s32 %q_b, %q_t, -3, %q_b;", "costs too little"},
        Change{"TurnsThatPay", "mad.lo.s32 %q_b, %q_t, -4, %q_b;",
               "mad.lo.s32 %q_b, %q_t, 4, %q_b;", "costs too little"},
        // The budget's register would wrap after some such loops.
        Change{"TurnsThatCostTooMuch", "mad.lo.s32 %q_b, %q_t, -4, %q_b;",
               "mad.lo.s32 %q_b, %q_t, -4096, %q_b;", "costs too much"},
        Change{"FartherEnd", "min.s32 %q_e32", "max.s32 %q_e32", "compares something else"},
        Change{"UnsignedInside", "setp.lt.s32 %q_p, %r5, %q_e32;", "setp.lt.u32 %q_p, %r5, %q_e32;",
               "the head of another loop"},
        Change{"WayIntoACountedLoop", "ld.global.u32 %r1, [%rd1];", "@%p3 bra COUNTED;",
               "a way into a loop without a budget"},
        Change{"ReturnInACountedLoop", "xor.b32 %r3, %r3, %r4;", "@%p2 ret;",
               "a call in a loop without a budget"},
        Change{"CallInACountedLoop", "xor.b32 %r3, %r3, %r4;", "call inner;",
               "a call in a loop without a budget"},
        Change{"LimitOf16Bits", "ld.shared.u8 %rs1", "ld.shared.u16 %rs1",
               "a limit that may be large"},
        Change{"LimitFromElsewhere", "cvt.u32.u16 %r2, %rs1;",
               "cvt.u32.u16 %r2, %rs1;\nmov.u32 %r2, %r1;", "a limit that may be large"},
        Change{"SignedLimit", "cvt.u32.u16 %r2, %rs1;", "cvt.s32.s16 %r2, %rs1;",
               "a limit that may be large"},
        Change{"ShortCounterStands", "add.s32 %r7, %r7, 1;", "add.s32 %r7, %r7, 0;",
               "a counter that does not rise"},
        Change{"ShortLoopIsUnequal", "setp.lt.u32 %p2, %r7, %r2;", "setp.ne.u32 %p2, %r7, %r2;",
               "a way back without a budget"},
        Change{"BarrierOfFewer", "min.u32 %q_n, %q_n, 256;", "min.u32 %q_n, %q_n, 64;",
               "a reserved name outside of a form"},
        Change{"BarrierThatEndsTheTask", "setp.ne.u32 %q_m, %q_n, %q_n;",
               "setp.eq.u32 %q_m, %q_n, %q_n;", "a reserved name outside of a form"},
        Change{"BarrierOfSomeLanes", "setp.eq.u32 %q_m, %q_a, -1;", "setp.ne.u32 %q_m, %q_a, -1;",
               "a reserved name outside of a form"},
        Change{"BarrierBehindALabel", "mov.u32 %q_n, %ntid.x;", "NEXT:\nmov.u32 %q_n, %ntid.x;",
               "a barrier without its test"},
        Change{"BarrierBehindABranch", "mov.u32 %q_n, %ntid.x;",
               "@%p1 bra NEXT;\nNEXT:\nmov.u32 %q_n, %ntid.x;", "a barrier without its test"},
        Change{"BarrierBehindACall", "mov.u32 %q_n, %ntid.x;",
               "call inner;\nmov.u32 %q_n, %ntid.x;", "a barrier without its test"},
        Change{"MeetingOfThoseWhoLeave", "atom.shared.cas.b32 %q_t, [%q_w+128], %q_u, %q_t;\n", "",
               "a reserved name outside of a form"},
        Change{"BarrierOfItsOwn", "call inner;", "barrier.sync 2;", "a barrier of its own"},
        Change{"Sleep", "call inner;", "nanosleep.u32 1000000;", "it sleeps"},
        Change{"WarpWithoutTest", "call inner;",
               "call inner;\nshfl.sync.bfly.b32 %r1, %r1, 16, 31, -1;",
               "a warp operation without its test"},
        Change{"WarpOfOtherLanes", "16, 31, -1;", "16, 31, %r4;",
               "a warp operation without its test"},
        Change{"WarpWithPredicate", "shfl.sync.bfly", "@%p1 shfl.sync.bfly",
               "a warp operation with a predicate"},
        Change{"WarpBehindABranch", "shfl.sync.bfly", "@%p1 bra NEXT;\nNEXT:\nshfl.sync.bfly",
               "a warp operation without its test"},
        Change{"SiteOfAnother", "mov.u32 %q_u, 3;", "mov.u32 %q_u, 4;",
               "a reserved name outside of a form"},
        Change{"MeetingGoesOn", "atom.shared.cas.b32 %q_s, [%q_c+32], 0, 4;\nret;\n",
               "atom.shared.cas.b32 %q_s, [%q_c+32], 0, 4;\n", "a reserved name outside of a form"},
        Change{"Recursion", "@!%q_go ret;\nret;", "@!%q_go ret;\ncall inner;\nret;",
               "calls itself"},
        Change{"WayOutOfTheFunction", "@!%q_go ret;\nret;",
               "@!%q_go ret;\nbra END;\nret;\nEND:", "the function does not end"},
        Change{"Undefined", "call inner;", "call outer;", "is called and does not look"},
        Change{"CallOfTheOperator", "call inner;", "call resident_op_1;",
               "is called and does not look"},
        Change{"Scope", "call inner;", "{ call inner; }", "too many scopes"},
        Change{"Trap", "call inner;", "trap;", "'trap' ends the engine"}),
    [](const auto& info) { return std::string(info.param.name); });

// The lanes of a mask are not all.
TEST(PtxVerifierTest, ABarrierBehindAMeetingOfSomeLanesIsRefused) {
  const std::string text =
      RewriteAccepted(FramePtx("shfl.sync.bfly.b32 %r1, %r1, 16, 31, %r2;\nbar.sync 0;")).text;
  const size_t begin = text.find("activemask.b32 %q_a;\nsetp.eq.u32 %q_m, %q_a, -1;");
  const size_t end = text.find("$Q_met2:\n");
  ASSERT_LT(begin, end) << text;
  std::string without = text;
  without.erase(begin, end + 9 - begin);
  EXPECT_THAT(std::string(VerifyPtx(without, 90).message()),
              HasSubstr("a barrier without its test"));
}

TEST(PtxVerifierTest, LongWaysAreRefused) {
  std::string straight;
  for (int i = 0; i < 2100; ++i) straight += "ld.global.u32 %r3, [%rd1];\n";
  const std::string text = Rewritten();
  EXPECT_THAT(
      std::string(
          VerifyPtx(absl::StrReplaceAll(text, {{"call inner;\n", straight}}), 90).message()),
      HasSubstr("a long way without a look"));
  // A loop's cost includes it.
  const std::string some(straight, 0, straight.size() / 30);
  EXPECT_THAT(
      std::string(VerifyPtx(absl::StrReplaceAll(text, {{"call inner;\n", some}}), 90).message()),
      HasSubstr("a loop that costs too little"));
}

}  // namespace
}  // namespace resident
