#include "runtime/device/engine_end.h"

#include <signal.h>

#include "absl/strings/str_cat.h"

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

}  // namespace resident
