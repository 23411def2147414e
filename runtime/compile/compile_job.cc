#include "runtime/compile/compile_job.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace resident {

std::string OperatorFunctionName(const std::string& operator_name) {
  std::string function = operator_name;
  std::replace_if(
      function.begin(), function.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  return function;
}

namespace {

constexpr char kHostName[] = "x86-64";
constexpr char kCudaPrefix[] = "sm_";

}  // namespace

std::string CompileTarget::name() const {
  return toolchain == Toolchain::kHost ? kHostName : absl::StrCat(kCudaPrefix, architecture);
}

absl::StatusOr<CompileTarget> CompileTarget::Find(std::string_view name) {
  CompileTarget target;
  absl::string_view architecture(name.data(), name.size());
  if (absl::ConsumePrefix(&architecture, kCudaPrefix) &&
      absl::SimpleAtoi(architecture, &target.architecture) && target.architecture > 0) {
    target.toolchain = Toolchain::kCuda;
  }
  // The name is a part of the cache's key: one target has one name.
  if (target.name() == name) return target;
  return absl::InvalidArgumentError(
      absl::StrCat("there is no compiler for the target '", std::string(name), "'. Fix: name ",
                   kHostName, " or a GPU's architecture, as in ", kCudaPrefix, "90"));
}

}  // namespace resident
