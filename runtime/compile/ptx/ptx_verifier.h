// Accepts rewritten PTX only if every function of it returns soon after the stop word of its block
// is set. It knows nothing of how the text was made: it reads the statements in order, compares
// those that name a reserved register or label with the forms of ptx_rules.inc, and checks that
// every way back, wait and long way without a look is part of one. What it does not recognize, it
// refuses.
//
// What it promises, for every thread, whatever its registers and memory are:
//   1. Between two looks at the stop word are at most kPtxBudget statements (accesses of memory
//      count kPtxMemoryCost) in loops with a budget, and kPtxMaxLookDistance others, where a loop
//      of at most 256 turns or with a counter is kPtxUnseenLoop of them.
//   2. After a look that finds it set, no loop of the function begins another turn, except those,
//      and functions that it calls return at once.
//   3. A thread waits for others only at a barrier at which all threads of the block arrive, also
//      those that have returned (the kernel arrives for them), and for lanes of its warp, as each
//      barrier does, only where they all are, or are known to be coming.
// It does not look at where accesses go: an operator can overwrite the stop word.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_COMPILE_PTX_PTX_VERIFIER_H_
#define RESIDENT_RUNTIME_COMPILE_PTX_PTX_VERIFIER_H_

#include <string_view>

#include "absl/status/status.h"

namespace resident {

// `architecture`: as RewritePtx's. INTERNAL: the text does not keep a rule; the message has the
// line of the text.
absl::Status VerifyPtx(std::string_view text, int architecture);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PTX_PTX_VERIFIER_H_
