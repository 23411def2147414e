// Rewrites the PTX of a unit so that its functions return soon after the stop word of their block
// (kernels/layout/confine.h) is set, whatever they do. Nothing here has to be right: the verifier
// (ptx_verifier.h) accepts only text in which each rule is kept.
//
// Thread safety: pure functions.
//
//   ASSIGN_OR_RETURN(const RewrittenPtx unit, RewritePtx(ptx, 90));
//   RETURN_IF_ERROR(VerifyPtx(unit.text, 90));
#ifndef RESIDENT_RUNTIME_COMPILE_PTX_PTX_REWRITER_H_
#define RESIDENT_RUNTIME_COMPILE_PTX_PTX_REWRITER_H_

#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/base/isolation.h"

namespace resident {

struct RewrittenPtx {
  std::string text;
  RewriteCounts counts;
  // The functions that it defines and other units see, without and with ".weak".
  std::set<std::string> functions;
  std::set<std::string> weak_functions;
  // The variables that its functions name.
  std::set<std::string> variables;
};

// `architecture`: 90 for sm_90, for which the text is compiled. INVALID_ARGUMENT: a rule refuses
// the unit; the message has the line, the rule and what to do.
absl::StatusOr<RewrittenPtx> RewritePtx(std::string_view text, int architecture);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PTX_PTX_REWRITER_H_
