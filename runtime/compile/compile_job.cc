#include "runtime/compile/compile_job.h"

#include <algorithm>

namespace resident {

std::string OperatorFunctionName(const std::string& operator_name) {
  std::string function = operator_name;
  std::replace_if(
      function.begin(), function.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  return function;
}

}  // namespace resident
