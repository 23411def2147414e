// CallCheck: checks the arguments of a call of libresident_ops against the operator's signature,
// and makes the arguments of a task of them.
//
// Thread safety: Find and the table are safe; a LibraryOperator is immutable.
//
//   ASSIGN_OR_RETURN(const LibraryOperator* op, FindLibraryOperator(name));
//   CheckedCall call;
//   RETURN_IF_ERROR(CheckCall(*op, {arguments, count}, call));
#ifndef RESIDENT_LIBRARY_CALL_CHECK_H_
#define RESIDENT_LIBRARY_CALL_CHECK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/layout/task.h"
#include "library/resident_ops.h"
#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"

namespace resident {

struct LibraryOperator {
  std::string name;
  const char* signature_text;
  uint32_t slot = 0;
  Signature signature;
  SplitRule split;
  // Whether an output may be exactly an input: each thread reads an element before it writes it.
  bool in_place = false;
  // Whether the value that it returns is its only output.
  bool returns_result = false;
};

// All operators, in the order of kernels/ops/builtin_operators.inc.
const std::vector<LibraryOperator>& LibraryOperators();
// INVALID_ARGUMENT: there is none of this name.
absl::StatusOr<const LibraryOperator*> FindLibraryOperator(std::string_view name);

// The task of a call.
struct CheckedCall {
  uint32_t argument_count = 0;
  uint64_t chunks = 1;
  Argument arguments[kMaxArguments];
};

// INVALID_ARGUMENT: resident_ops.h lists what is refused.
absl::Status CheckCall(const LibraryOperator& op, absl::Span<const resident_ops_argument> given,
                       CheckedCall& call);

}  // namespace resident

#endif  // RESIDENT_LIBRARY_CALL_CHECK_H_
