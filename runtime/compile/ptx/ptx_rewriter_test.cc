#include "runtime/compile/ptx/ptx_rewriter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/compile/ptx/ptx_frame_for_test.h"
#include "runtime/compile/ptx/ptx_rules.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(PtxRewriterTest, LoopsLookAtTheStopWordWhenTheirBudgetIsUsedUp) {
  const RewrittenPtx unit = RewriteAccepted(
      FramePtx("LOOP:\nld.global.u32 %r1, [%rd1];\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra LOOP;"));
  EXPECT_EQ(unit.counts.loops, 1u);
  EXPECT_THAT(unit.text, HasSubstr("mov.u32 %q_x, 0;\n"
                                   "$Q_head1:\n"
                                   "add.s32 %q_b, %q_b, %q_x;\n"
                                   "LOOP:\n"
                                   "ld.global.u32 %r1, [%rd1];\n"
                                   "setp.ne.u32 %p1, %r1, 0;\n"
                                   "add.s32 %q_b, %q_b, -18;\n"
                                   "setp.ge.and.s32 %q_p, %q_b, 0, %p1;\n"
                                   "@%q_p bra LOOP;\n"
                                   "@!%p1 bra $Q_out1;\n"
                                   "ld.volatile.shared.u32 %q_s, [%q_c+32];\n"
                                   "setp.eq.u32 %q_go, %q_s, 0;\n"
                                   "sub.s32 %q_x, 4096, %q_b;\n"
                                   "@%q_go bra $Q_head1;\n"
                                   "$Q_out1:\n"));
}

TEST(PtxRewriterTest, NegatedBranchesKeepTheirSense) {
  const RewrittenPtx unit = RewriteAccepted(
      FramePtx("LOOP:\nld.global.u32 %r1, [%rd1];\nsetp.ne.u32 %p1, %r1, 0;\n@!%p1 bra LOOP;"));
  EXPECT_THAT(unit.text, HasSubstr("setp.ge.and.s32 %q_p, %q_b, 0, !%p1;\n@%q_p bra LOOP;\n"
                                   "@%p1 bra $Q_out1;"));
}

TEST(PtxRewriterTest, CountedLoopsCompareWithTheEndOfAPart) {
  const RewrittenPtx unit =
      RewriteAccepted(FramePtx("LOOP:\nfma.rn.f32 %r3, %r3, %r3, %r4;\nadd.s32 %r1, %r1, 2;\n"
                               "setp.lt.s32 %p1, %r1, %r2;\n@%p1 bra LOOP;"));
  EXPECT_EQ(unit.counts.counted_loops, 1u);
  // Four statements: 1,024 turns of two.
  EXPECT_THAT(unit.text, HasSubstr("add.s32 %q_e32, %r1, 2048;\n"
                                   "min.s32 %q_e32, %q_e32, %r2;\n"
                                   "LOOP:\n"
                                   "fma.rn.f32 %r3, %r3, %r3, %r4;\n"
                                   "add.s32 %r1, %r1, 2;\n"
                                   "setp.lt.s32 %q_p, %r1, %q_e32;\n"
                                   "@%q_p bra LOOP;\n"));
  EXPECT_THAT(unit.text, HasSubstr("mad.lo.s32 %q_b, %q_t, -2, %q_b;\n"
                                   "setp.lt.s32 %p1, %r1, %r2;\n"
                                   "@!%p1 bra $Q_out1;"));
}

TEST(PtxRewriterTest, CountedLoopsOfAllDirectionsAndTypesAreAccepted) {
  for (const char* const type : {"s32", "u32", "s64", "u64"}) {
    const bool wide = std::string(type).ends_with("64");
    for (const auto& [compare, step] :
         {std::pair{"lt", "3"}, {"gt", "-3"}, {"ne", "1"}, {"ne", "-1"}, {"lt", "4096"}}) {
      const std::string reg = wide ? "%rd" : "%r";
      const RewrittenPtx unit = RewriteAccepted(FramePtx(absl::StrCat(
          "LOOP:\nxor.b32 %r5, %r5, %r6;\nadd.s", wide ? "64 " : "32 ", reg, "1, ", reg, "1, ",
          step, ";\nsetp.", compare, ".", type, " %p1, ", reg, "1, ", reg, "2;\n@%p1 bra LOOP;")));
      EXPECT_EQ(unit.counts.counted_loops, 1u) << type << compare << step;
    }
  }
}

// Loops that look like counted ones, and are not.
TEST(PtxRewriterTest, OtherLoopsAreNotCounted) {
  for (const char* const loop : {
           // Down, below a limit.
           "LOOP:\nadd.s32 %r1, %r1, -1;\nsetp.lt.s32 %p1, %r1, %r2;\n@%p1 bra LOOP;",
           // The limit changes.
           "LOOP:\nadd.s32 %r2, %r2, 1;\nadd.s32 %r1, %r1, 1;\nsetp.lt.s32 %p1, %r1, %r2;\n"
           "@%p1 bra LOOP;",
           // The counter changes in some turns.
           "LOOP:\n@%p2 add.s32 %r1, %r1, 1;\nsetp.lt.s32 %p1, %r1, %r2;\n@%p1 bra LOOP;",
           "LOOP:\n@%p2 bra NEXT;\nadd.s32 %r1, %r1, 1;\nNEXT:\nsetp.lt.s32 %p1, %r1, %r2;\n"
           "@%p1 bra LOOP;",
           // It steps over its limit.
           "LOOP:\nadd.s32 %r1, %r1, 100000;\nsetp.lt.s32 %p1, %r1, %r2;\n@%p1 bra LOOP;",
           // It changes twice.
           "LOOP:\nadd.s32 %r1, %r1, 1;\nadd.s32 %r1, %r1, -1;\nsetp.lt.s32 %p1, %r1, %r2;\n"
           "@%p1 bra LOOP;",
           // Its condition is read in the loop.
           "LOOP:\nselp.b32 %r3, 1, 2, %p1;\nadd.s32 %r1, %r1, 1;\nsetp.lt.s32 %p1, %r1, %r2;\n"
           "@%p1 bra LOOP;",
           // There is a way in from outside.
           "@%p2 bra NEXT;\nLOOP:\nxor.b32 %r3, %r3, 1;\nNEXT:\nadd.s32 %r1, %r1, 1;\n"
           "setp.lt.s32 %p1, %r1, %r2;\n@%p1 bra LOOP;",
       }) {
    EXPECT_EQ(RewriteAccepted(FramePtx(loop)).counts.loops, 1u) << loop;
  }
}

constexpr char kShort[] =
    "ld.shared.u8 %rs1, [%rd1];\ncvt.u32.u16 %r2, %rs1;\nLOOP:\nadd.s32 %r1, %r1, 1;\n"
    "setp.lt.u32 %p1, %r1, %r2;\n@%p1 bra LOOP;";

TEST(PtxRewriterTest, LoopsOverARankStayAsTheyAre) {
  const RewrittenPtx unit = RewriteAccepted(FramePtx(kShort));
  EXPECT_EQ(unit.counts.short_loops, 1u);
  EXPECT_THAT(unit.text, Not(HasSubstr("$Q_head")));
  // A limit that is loaded as 16 bits, or set elsewhere too, is not short.
  for (const auto& [from, to] :
       {std::pair{"ld.shared.u8", "ld.shared.u16"}, {"LOOP:", "@%p3 mov.u32 %r2, 99;\nLOOP:"}}) {
    const RewrittenPtx other = RewriteAccepted(FramePtx(absl::StrReplaceAll(kShort, {{from, to}})));
    EXPECT_EQ(other.counts.short_loops, 0u) << from;
    EXPECT_THAT(other.text, HasSubstr("$Q_head1"));
  }
}

TEST(PtxRewriterTest, EndlessLoopsReturn) {
  const RewrittenPtx unit =
      RewriteAccepted(FramePtx("LOOP:\nst.global.u32 [%rd1], %r1;\nbra LOOP;"));
  EXPECT_EQ(unit.counts.endless_loops, 1u);
  EXPECT_THAT(unit.text, HasSubstr("@%q_go bra $Q_head1;\nret;\n"));
}

TEST(PtxRewriterTest, LongStraightCodeLooks) {
  std::string body;
  for (int i = 0; i < 5000; ++i) body += "ld.global.u32 %r1, [%rd1];\n";
  EXPECT_EQ(RewriteAccepted(FramePtx(body)).counts.looks, 4u);
}

// Looks in code that is jumped over do not count.
TEST(PtxRewriterTest, LongWaysWithBranchesLook) {
  std::string body;
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 1000; ++k) body += "ld.global.u32 %r1, [%rd1];\n";
    absl::StrAppend(&body, "@%p1 bra L", i, ";\n");
    for (int k = 0; k < 40; ++k) body += "xor.b32 %r2, %r2, 1;\n";
    absl::StrAppend(&body, "L", i, ":\n");
  }
  EXPECT_GE(RewriteAccepted(FramePtx(body)).counts.looks, 19u);
}

TEST(PtxRewriterTest, BarriersAreThoseOfTheWholeBlock) {
  for (const char* const barrier :
       {"barrier.sync 1, %r1;", "bar.sync 0;", "barrier.cta.sync 7;", "bar.sync 1, %r2;"}) {
    const RewrittenPtx unit = RewriteAccepted(FramePtx(barrier));
    EXPECT_EQ(unit.counts.barriers, 1u);
    EXPECT_THAT(unit.text, HasSubstr("min.u32 %q_n, %q_n, 256;\n"
                                     "setp.ne.u32 %q_m, %q_n, %q_n;\n"
                                     "barrier.cta.red.and.pred %q_p, 1, %q_n, %q_m;\n"));
    EXPECT_THAT(unit.text, Not(HasSubstr(barrier)));
  }
}

// A barrier waits for the lanes of its warp, and some of them may never come.
TEST(PtxRewriterTest, LanesMeetBeforeABarrier) {
  const RewrittenPtx unit = RewriteAccepted(FramePtx("bar.sync 0;"));
  EXPECT_THAT(unit.text, HasSubstr("activemask.b32 %q_a;\nsetp.eq.u32 %q_m, %q_a, -1;\n"
                                   "@%q_m bra $Q_met1;\n"));
  EXPECT_THAT(unit.text, HasSubstr("ret;\n$Q_met1:\nmov.u32 %q_n, %ntid.x;\n"));
  // The tests of a basic block are shared.
  const std::string shuffle = "shfl.sync.bfly.b32 %r1, %r1, 16, 31, -1;\n";
  const auto tests = [](const std::string& body) {
    return RewriteAccepted(FramePtx(body)).counts.warp_operations;
  };
  EXPECT_EQ(tests("bar.sync 0;\nxor.b32 %r1, %r1, 1;\nbar.sync 0;\n" + shuffle), 1u);
  EXPECT_EQ(tests(shuffle + "bar.sync 0;"), 1u);
  EXPECT_EQ(tests("bar.sync 0;\n@%p1 bra NEXT;\nbar.sync 0;\nNEXT:\nbar.sync 0;"), 3u);
  // Not that of some lanes.
  EXPECT_EQ(tests("shfl.sync.bfly.b32 %r1, %r1, 16, 31, %r2;\nbar.sync 0;"), 2u);
}

// The last lane may come while another one, which was told to stop, leaves: then both stay.
TEST(PtxRewriterTest, ALaneLeavesAMeetingOnlyIfItTakesItsArrivalBack) {
  const RewrittenPtx unit = RewriteAccepted(FramePtx("bar.sync 0;"));
  for (const char* const step : {"0", "1"}) {
    EXPECT_THAT(unit.text, HasSubstr(absl::StrCat("@%q_go bra $Q_meet1_", step,
                                                  ";\n"
                                                  "add.s32 %q_t, %q_u, -1;\n"
                                                  "atom.shared.cas.b32 %q_t, [%q_w+128], %q_u, "
                                                  "%q_t;\n"
                                                  "setp.ne.u32 %q_m, %q_t, %q_u;\n"
                                                  "@%q_m bra $Q_meet1_",
                                                  step, ";\nbra $Q_apart1;\n")));
  }
}

TEST(PtxRewriterTest, WarpOperationsOfABlockShareATest) {
  const RewrittenPtx unit = RewriteAccepted(
      FramePtx("shfl.sync.bfly.b32 %r1, %r1, 16, 31, -1;\n"
               "vote.sync.any.pred %p1, %p1, 0xffffffff;\n@%p1 bra NEXT;\n"
               "bar.warp.sync -1;\nNEXT:\nredux.sync.add.s32 %r1, %r1, 4294967295;"));
  EXPECT_EQ(unit.counts.warp_operations, 3u);
  EXPECT_THAT(unit.text, HasSubstr("activemask.b32 %q_a;\nsetp.eq.u32 %q_m, %q_a, -1;\n"
                                   "@%q_m bra $Q_met1;"));
}

TEST(PtxRewriterTest, MasksAreTestedAgainWhenTheirRegisterChanges) {
  const RewrittenPtx unit = RewriteAccepted(FramePtx(
      "shfl.sync.bfly.b32 %r1, %r1, 1, 31, %r5;\nshfl.sync.bfly.b32 %r1, %r1, 2, 31, %r5;\n"
      "shfl.sync.bfly.b32 %r5, %r1, 2, 31, %r5;\nshfl.sync.bfly.b32 %r1, %r1, 2, 31, %r5;"));
  EXPECT_EQ(unit.counts.warp_operations, 2u);
  EXPECT_THAT(unit.text, HasSubstr("vote.sync.all.pred %q_m, %q_m, %q_a;"));
}

TEST(PtxRewriterTest, SleepsAreDropped) {
  EXPECT_THAT(RewriteAccepted(FramePtx("nanosleep.u32 100;")).text, Not(HasSubstr("nanosleep")));
}

TEST(PtxRewriterTest, RegistersAndResultsAreZero) {
  const RewrittenPtx unit = RewriteAccepted(FramePtx(
      "", ".func (.param .align 8 .b8 out[12]) f(.param .b32 x)\n{\n.reg .b16 %h;\nret;\n}\n"));
  EXPECT_THAT(unit.text, HasSubstr("mov.b16 %h, 0;\nst.param.b64 [out+0], 0;\n"
                                   "st.param.b32 [out+8], 0;\n"
                                   "ld.volatile.shared.u32 %q_s, [%q_c+32];\n"
                                   "setp.eq.u32 %q_go, %q_s, 0;\n@!%q_go ret;\n"));
  EXPECT_THAT(unit.text, HasSubstr("mov.pred %p3, 0;\n"));
  EXPECT_THAT(unit.text, HasSubstr("mov.b64 %rd3, 0;\n"));
}

TEST(PtxRewriterTest, ScopesBecomeOne) {
  const RewrittenPtx unit = RewriteAccepted(
      FramePtx("{\n.reg .pred p;\n.reg .b32 %r1;\nsetp.eq.u32 p, %r1, 0;\n@p bra DONE;\nDONE:\n}\n"
               "{\n.reg .b32 %x<3>;\n{ .reg .b32 %x1; mov.u32 %x1, %x2; bra DONE; DONE: }\n}"));
  EXPECT_THAT(unit.text, HasSubstr("setp.eq.u32 %s1_p, %s1_r1, 0;\n@%s1_p bra $S1_DONE;"));
  EXPECT_THAT(unit.text, HasSubstr(".reg .b32 %s2_x<3>;"));
  EXPECT_THAT(unit.text, HasSubstr("mov.u32 %s3_x1, %s2_x2;\nbra $S3_DONE;\n$S3_DONE:"));
}

TEST(PtxRewriterTest, CallsKeepTheirPartsTogether) {
  std::string body;
  for (int i = 0; i < 1022; ++i) body += "xor.b32 %r1, %r1, 1;\n";
  body +=
      "{ // callseq\n.reg .b32 temp;\n.param .b32 param0;\nst.param.b32 [param0+0], %r1;\n"
      ".param .b32 param1;\nst.param.b32 [param1+0], %r1;\n.param .b32 retval0;\n"
      "call.uni (retval0), f, (param0, param1);\nld.param.b32 %r2, [retval0+0];\n}\n";
  const RewrittenPtx unit = RewriteAccepted(
      FramePtx(body,
               ".func (.param .b32 r) f(.param .b32 a, .param .b32 b)\n{\nst.param.b32 [r], 1;\n"
               "ret;\n}\n"));
  EXPECT_THAT(unit.text, HasSubstr("st.param.b32 [$S1_param0+0], %r1;\n"
                                   "st.param.b32 [$S1_param1+0], %r1;\n"
                                   "call.uni ($S1_retval0), f, ($S1_param0, $S1_param1);\n"
                                   "ld.param.b32 %r2, [$S1_retval0+0];\n"));
}

TEST(PtxRewriterTest, VariablesThatNobodyReadsAreDropped) {
  const RewrittenPtx unit =
      RewriteAccepted(FramePtx("mov.u64 %rd1, used;",
                               ".weak .global .align 4 .u32 unused = 256;\n"
                               ".global .align 4 .f32 used[2] = {0f3F800000, -1};\n"));
  EXPECT_THAT(unit.text, HasSubstr(".global .align 4 .f32 used[2] = {0f3F800000,-1};"));
  EXPECT_THAT(unit.text, Not(HasSubstr("unused")));
}

TEST(PtxRewriterTest, CommentsAndStringsHideNothing) {
  const RewrittenPtx unit =
      RewriteAccepted(FramePtx("/* trap; */ mov.u32 %r1, 1; // exit;\n.pragma \"nounroll\";\n"
                               "mov.u32 %r2, /*\n*/ 2;"));
  EXPECT_THAT(unit.text, AllOf(HasSubstr("mov.u32 %r1, 1;"), HasSubstr("mov.u32 %r2, 2;"),
                               Not(HasSubstr("trap")), Not(HasSubstr("exit"))));
}

struct Refused {
  const char* name;
  std::string body;
  std::string before;
  const char* message;
};

class PtxRefusedTest : public ::testing::TestWithParam<Refused> {};

TEST_P(PtxRefusedTest, SaysTheRule) {
  const auto rewritten = RewritePtx(FramePtx(GetParam().body, GetParam().before), 90);
  EXPECT_EQ(rewritten.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(rewritten.status().message());
  EXPECT_THAT(message, AllOf(HasSubstr("this operator cannot be made stoppable: "),
                             HasSubstr(GetParam().message), HasSubstr(". Fix: "),
                             EndsWith("install it with --isolation=trusted")));
  const std::string rule = FindRefusingPtxRule(message);
  EXPECT_THAT(message, HasSubstr("(rule " + rule + ")"));
  EXPECT_THAT(PtxRefusingRules(), ::testing::Contains(rule));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, PtxRefusedTest,
    ::testing::Values(
        Refused{"Opcode", "wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1}, [%rd1];", "",
                "line 10 of the PTX: this operator cannot be made stoppable: "
                "'wmma.load.a.sync.aligned.row.m16n16k16.f16' is not an operation that operators "
                "may use (rule O1). Fix: use an operation that every operator may use, or "},
        Refused{"Modifier", "ld.shared::cluster.u32 %r1, [%rd1];", "",
                "'ld.shared::cluster.u32' has the modifier 'shared::cluster', which is not known "
                "(rule O1)"},
        Refused{"SpecialRegister", "mov.u32 %r1, %envreg3;", "",
                "'%envreg3' is not a register that operators may read (rule O1)"},
        Refused{"Trap", "@%p1 trap;", "", "'trap' ends the engine (rule C1)"},
        Refused{"Exit", "exit;", "", "'exit' ends the thread of the kernel (rule C1)"},
        Refused{"Table", "brx.idx %r1, T;", "", "'brx.idx' branches through a table (rule C1)"},
        Refused{"Pointer", "call (), %rd1, ();", "", "a call through a pointer (rule C1)"},
        Refused{"AddressOfFunction", "mov.u64 %rd1, f;", ".func f()\n{\nret;\n}\n",
                "the address of the function 'f' (rule C1)"},
        Refused{"UndefinedFunction", "call f;", ".extern .func f();\n",
                "it calls 'f', which it does not define (rule C1)"},
        Refused{"CallOfOperator", "call f;", ".visible .func f()\n.abi_preserve 2\n{\nret;\n}\n",
                "it calls the operator 'f' (rule C1)"},
        Refused{"NoReturn", "", ".func f()\n{\n.reg .b32 %a;\nmov.u32 %a, 1;\n}\n",
                "the function 'f' does not return (rule R1)"},
        Refused{"GuardedReturn", "", ".func f()\n{\n.reg .pred %a;\n@%a ret;\n}\n",
                "the function 'f' does not return (rule R1)"},
        Refused{"LabelAtTheEnd", "", ".func f()\n{\nret;\nEND:\n}\n",
                "the function 'f' does not return (rule R1)"},
        Refused{"Recursion", "call f;", ".func f()\n{\ncall f;\nret;\n}\n",
                "the function 'f' calls itself (rule L6)"},
        Refused{"RecursionOfTwo", "call f;",
                ".func g();\n.func f()\n{\ncall g;\nret;\n}\n.func g()\n{\ncall f;\nret;\n}\n",
                "calls itself (rule L6)"},
        Refused{"Arrival", "bar.arrive 1, 64;", "", "'bar.arrive' is not supported (rule B2)"},
        Refused{"Reduction", "bar.red.popc.u32 %r1, 1, %p1;", "",
                "'bar.red.popc.u32' is not supported (rule B2)"},
        Refused{"SomeThreads", "bar.sync 2, 64;", "",
                "'bar.sync' is a barrier of some threads (rule B1)"},
        Refused{"GuardedBarrier", "@%p1 bar.sync 1;", "",
                "'bar.sync' is a barrier of some threads (rule B1)"},
        Refused{"Cluster", "barrier.cluster.arrive;", "", "waits for other blocks (rule B2)"},
        Refused{"Object", "mbarrier.init.shared.b64 [%rd1], 1;", "", "(rule B2)"},
        Refused{"Bulk", "cp.async.bulk.commit_group;", "", "(rule B2)"},
        Refused{"GuardedShuffle", "@%p1 shfl.sync.idx.b32 %r1, %r1, 0, 31, -1;", "",
                "waits for lanes, and has a predicate (rule W3)"},
        Refused{"Elect", "elect.sync %r1|%p1, -1;", "", "(rule W3)"},
        Refused{"ChangingMask", "shfl.sync.idx.b32 %r1, %r1, 0, 31, %clock;", "",
                "the mask of 'shfl.sync.idx.b32' changes (rule W2)"},
        Refused{"NoMask", "shfl.sync.idx.b32 %r1, %r1, 0, 31|-1;", "",
                "'31|-1' is not a mask (rule W2)"},
        Refused{"OldShuffle", "shfl.idx.b32 %r1, %r1, 0, 31;", "",
                "does not name the lanes that take part (rule O1)"},
        Refused{"ReservedRegister", ".reg .b32 %q_b;", "", "'%q_b' is a reserved name (rule P2)"},
        Refused{"ReservedWithoutPercent", ".reg .b32 q_b;", "",
                "'q_b' is a reserved name (rule P2)"},
        Refused{"ReservedRange", ".reg .b32 %q_<4>;", "", "'%q_' is a reserved name (rule P2)"},
        Refused{"ReservedLabel", "$Q_out1:", "",
                "'$Q_out1' is not a label that units may have (rule P2)"},
        Refused{"ReservedTarget", "bra $Q_out1;", "", "'$Q_out1' is a reserved name (rule P2)"},
        Refused{"HiddenVariable", "table:", ".global .u32 table[4];\n",
                "'table' is the name of a variable or function too (rule P2)"},
        Refused{"Shared", ".shared .b8 s[64];", "", "'.shared' in a function (rule P1)"},
        Refused{"GlobalShared", "", ".shared .b8 s[64];\n",
                "'.shared' is not a declaration that units may have (rule P1)"},
        Refused{"Alias", "", ".alias a, b;\n", "'.alias' is not a declaration"},
        Refused{"Section", "", ".section .text { .b8 1 }\n", "'.text' is not a declaration"},
        Refused{"Entry", "", ".entry k()\n{\nret;\n}\n", "'.entry' is not a declaration"},
        Refused{"ExternalVariable", "", ".extern .global .u32 v;\n", "is not a declaration"},
        Refused{"SymbolAsValue", "", ".global .u64 v = f;\n", "'f' where a number is expected"},
        Refused{"Targets", "T: .branchtargets A, B;", "", "'.branchtargets' in a function"},
        Refused{"Prototype", "P: .callprototype _ ();", "", "'.callprototype' in a function"},
        Refused{"Pragma", ".pragma \"frequency 3\";", "", "a pragma that units may have"},
        Refused{"OtherText", "mov.u32 %r1, \"x\";", "", "where an operand is expected (rule P1)"},
        Refused{"NoLabel", "bra NOWHERE;", "", "there is no label 'NOWHERE' (rule P1)"},
        Refused{"LabelOfInnerScope", "{ INNER: }\nbra INNER;", "", "there is no label 'INNER'"},
        Refused{"Undeclared", "mov.u64 %rd1, nothing;", "", "'nothing' is not declared (rule P1)"},
        Refused{"UndeclaredRegister", "mov.u32 %r8, 1;", "", "'%r8' is not a register"},
        Refused{"UnendedComment", "/* ret;", "", "(rule P1)"},
        Refused{"Scopes", std::string(100, '{'), "", "too many scopes (rule P3)"},
        Refused{"Registers", ".reg .b32 %many<2000000>;", "", "too many registers (rule P3)"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(PtxRewriterTest, RefusalsNameTheLineOfTheSource) {
  const auto rewritten = RewritePtx(
      FramePtx(
          ".loc 1 14 3\nmov.u32 %r1, 1;\n.loc 2 80 1, function_name $L__info, inlined_at 1 14 3\n"
          "trap;\n.loc 1 20 1") +
          ".file 1 \"swish.cc\"\n.file 2 \"/w/kernels/sdk/block.h\"\n",
      90);
  EXPECT_THAT(std::string(rewritten.status().message()),
              StartsWith("swish.cc:14: this operator cannot be made stoppable: 'trap' "));
}

TEST(PtxRewriterTest, DeclarationsAreLimited) {
  std::string ranges;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&ranges, ".reg .b32 %x", i, "y<3>;\n");
  EXPECT_THAT(std::string(RewritePtx(FramePtx(ranges), 90).status().message()),
              HasSubstr("too many declarations of registers (rule P3)"));
}

TEST(PtxRewriterTest, TextsWithoutEndAreRefused) {
  const std::string unit = FramePtx("@%p1 ld.global.u32 {%r1, %r2}, [%rd1+4];\nbra L;\nL:");
  for (size_t size = 0; size < unit.size() - 2; ++size) {
    const auto rewritten = RewritePtx(unit.substr(0, size), 90);
    EXPECT_TRUE(!rewritten.ok() || VerifyPtx(rewritten->text, 90).ok()) << unit.substr(0, size);
  }
}

}  // namespace
}  // namespace resident
