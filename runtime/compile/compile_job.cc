#include "runtime/compile/compile_job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace resident {

std::string CompileTarget::name() const {
  return cuda ? absl::StrCat("sm_", architecture) : "x86-64";
}

std::string OperatorFunctionName(const std::string& operator_name) {
  std::string function = operator_name;
  std::replace_if(
      function.begin(), function.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  return function;
}

}  // namespace resident
