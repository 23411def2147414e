#include "runtime/install/install_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/errors.h"

namespace resident::errors {

using absl::StrCat;

absl::Status ExpressionSignature(const std::string& given, const std::string& derived) {
  return absl::InvalidArgumentError(StrCat("the signature ", Quote(given),
                                           " is not that of the expression, ", Quote(derived),
                                           ". Fix: leave it out"));
}

absl::Status ObjectsNotAllowed() {
  return absl::FailedPreconditionError(
      "this daemon takes no compiled objects. Fix: install source, or start it with "
      "--allow_objects");
}

absl::Status TaskTimeAboveLimit(std::chrono::milliseconds asked, std::chrono::milliseconds limit) {
  return absl::InvalidArgumentError(StrCat("a task time of ", asked.count(),
                                           " ms is above --task_time_limit, ", limit.count(),
                                           " ms. Fix: ask for less, or raise the flag"));
}

absl::Status InstallWithdrawn() {
  return absl::CancelledError(
      "the install was withdrawn before it was staged. Fix: none needed if that was intended");
}

absl::Status RemovedButRunning(const std::string& name) {
  return absl::DeadlineExceededError(StrCat(Quote(name),
                                            " was removed, but tasks of it still run. Fix: none "
                                            "needed; they end by themselves or at their limit"));
}

absl::Status BytecodeSize(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(
      StrCat("a program of ", bytes, " bytes. Fix: send 1 to ", limit, " bytes"));
}

absl::Status BytecodeExample(size_t example) {
  return absl::InvalidArgumentError(
      StrCat("example ", example,
             " does not have two values, i32[W] (initial registers) and i32[K] (registers at the "
             "end), W and K from 1 to 16. Fix: send these two"));
}

absl::Status BytecodeError(size_t example, uint32_t error, uint32_t cycles) {
  return absl::InvalidArgumentError(StrCat(
      example == 0 ? std::string("a run from registers that are 0") : StrCat("example ", example),
      " ended with error ", error, " after ", cycles,
      " instructions (docs/flux.md lists the errors). Fix: mend the program"));
}

absl::Status BytecodeResult(size_t example, size_t reg, int32_t got, int32_t expected) {
  return absl::InvalidArgumentError(StrCat("example ", example, ": R", reg, " is ", got, ", not ",
                                           expected, ". Fix: mend the program or the example"));
}

}  // namespace resident::errors
