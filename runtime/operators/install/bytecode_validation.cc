#include "runtime/operators/install/bytecode_validation.h"

#include <algorithm>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/flux/isa.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/flux/host_operator.h"
#include "runtime/operators/errors.h"

namespace resident {
namespace {

// The values of an i32 vector of 1 to 16 elements; empty if the value has another type or
// shape.
std::vector<int32_t> Registers(const ExampleValue& value) {
  if (value.dtype != DType::kI32 || value.shape.size() != 1 || value.shape[0] < 1 ||
      value.shape[0] > 16 ||
      value.data.size() != static_cast<size_t>(value.shape[0]) * sizeof(int32_t)) {
    return {};
  }
  std::vector<int32_t> registers(static_cast<size_t>(value.shape[0]));
  std::memcpy(registers.data(), value.data.data(), value.data.size());
  return registers;
}

}  // namespace

absl::Status TryBytecode(const std::string& program, const std::vector<Example>& examples) {
  if (program.empty() || program.size() > kMaxBytecodeBytes) {
    return errors::BytecodeSize(program.size(), kMaxBytecodeBytes);
  }
  const auto run = [](const flux::Bytecode& bytecode,
                      const flux::RunOptions& options) -> absl::StatusOr<flux::RunResult> {
    const flux::RunResult result = flux::RunOnHost(bytecode, options);
    if (result.status == CompletionStatus::kOk) return result;
    return absl::InternalError(
        absl::StrCat("flux.run refused the program with status ", static_cast<int>(result.status)));
  };
  const flux::Bytecode bytecode(program.begin(), program.end());
  if (examples.empty()) {
    ASSIGN_OR_RETURN(const flux::RunResult result, run(bytecode, flux::RunOptions()));
    if (result.error == flux::kErrorInvalidOpcode || result.error == flux::kErrorBadRegister) {
      return errors::BytecodeError(0, result.error, result.cycles);
    }
    return absl::OkStatus();
  }
  for (size_t e = 0; e < examples.size(); ++e) {
    if (examples[e].values.size() != 2) return errors::BytecodeExample(e + 1);
    const std::vector<int32_t> initial = Registers(examples[e].values[0]);
    const std::vector<int32_t> expected = Registers(examples[e].values[1]);
    if (initial.empty() || expected.empty()) return errors::BytecodeExample(e + 1);
    flux::RunOptions options;
    std::copy(initial.begin(), initial.end(), options.initial.begin());
    ASSIGN_OR_RETURN(const flux::RunResult result, run(bytecode, options));
    if (result.error != 0) return errors::BytecodeError(e + 1, result.error, result.cycles);
    for (size_t r = 0; r < expected.size(); ++r) {
      if (result.registers[r] != expected[r]) {
        return errors::BytecodeResult(e + 1, r, result.registers[r], expected[r]);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace resident
