// The daemon's log: lines on standard error with time and level.
//
//   2026-11-22T07:59:21.123Z residentd: warning: --policy has no rule for ...
//
// Control characters in a message are replaced by '?', so that a message is one line.
//
// Thread safety: may be called from any thread. Each line is one write, so lines do not mix.
//
//   LogWarning("device ", index, " failed to start: ", status.message());
#ifndef RESIDENT_RUNTIME_BASE_LOG_H_
#define RESIDENT_RUNTIME_BASE_LOG_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace resident {

enum class LogLevel { kInfo, kWarning, kError };

void Log(LogLevel level, absl::string_view message);

// The line that Log writes, without the time.
std::string FormatLogLine(LogLevel level, absl::string_view message);

template <typename... Parts>
void LogInfo(const Parts&... parts) {
  Log(LogLevel::kInfo, absl::StrCat(parts...));
}
template <typename... Parts>
void LogWarning(const Parts&... parts) {
  Log(LogLevel::kWarning, absl::StrCat(parts...));
}
template <typename... Parts>
void LogError(const Parts&... parts) {
  Log(LogLevel::kError, absl::StrCat(parts...));
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_LOG_H_
