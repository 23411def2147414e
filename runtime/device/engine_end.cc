#include "runtime/device/engine_end.h"

#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/model/dtype.h"

namespace resident {
namespace {

bool IsFaultSignal(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGABRT;
}

}  // namespace

EngineEnd DescribeExit(EngineProcess& engine, const std::string& name, const ChildExit& exit) {
  const std::string reason = engine.exit_reason();
  if (!reason.empty()) {
    return {EngineEndReason::kFault, absl::StrCat("the ", name, " ended: ", reason), {}};
  }
  // These signals come from the process itself, and only the process can exit with a status.
  const bool fault = exit.signal ? IsFaultSignal(*exit.signal) : exit.status != 0;
  return {fault ? EngineEndReason::kFault : EngineEndReason::kKilled,
          absl::StrCat("the ", name, " ", exit.ToString()),
          {}};
}

EngineEnd DescribeFailedCall(const std::string& name, const char* call,
                             const absl::Status& status) {
  return {status.code() == absl::StatusCode::kDeadlineExceeded ? EngineEndReason::kHang
                                                               : EngineEndReason::kFault,
          absl::StrCat("the ", name, " failed to ", call, ": ", std::string(status.message())),
          {}};
}

namespace {

std::string Text(const Argument& argument) {
  const TensorArgument& tensor = argument.tensor;
  // An argument with a scalar has zeros in all other fields.
  const DTypeInfo* const dtype = FindDType(tensor.dtype);
  if (dtype == nullptr) return absl::StrCat("0x", absl::Hex(argument.scalar_bits));
  std::string text = absl::StrCat(dtype->name, "[");
  for (uint32_t i = 0; i < std::min<uint32_t>(tensor.rank, kMaxRank); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", tensor.shape[i]);
  }
  return absl::StrCat(text, "] at 0x", absl::Hex(tensor.address));
}

}  // namespace

std::string ArgumentsText(const RunningTask& task) {
  std::string text;
  if (task.task.flags & kTaskCompact) {
    text = absl::StrCat("n=", task.task.elements());
    for (uint32_t i = 1; i < kTaskWords; ++i) {
      absl::StrAppend(&text, ", 0x", absl::Hex(task.task.compact_argument(i - 1)));
    }
    return text;
  }
  for (const Argument& argument : task.arguments) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", Text(argument));
  }
  return text;
}

}  // namespace resident
