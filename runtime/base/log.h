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

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

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

// LogHold: keeps the lines of the log (log.h) back while it exists, so that the line with the
// addresses is the first one that a daemon prints, before the warnings of its start.
//
// The lines are written in their order, with the times of their events, by Release(), by the
// destructor, or when there are more than kMaxHeldLines of them or one comes kMaxHold after the
// first: a start that takes long is reported while it lasts.
//
// Thread safety: Release and the destructor are called by one thread; Log may be called by others.
// There is at most one LogHold at a time.

inline constexpr size_t kMaxHeldLines = 100;
inline constexpr absl::Duration kMaxHold = absl::Seconds(5);

class LogHold {
 public:
  LogHold();
  ~LogHold();
  LogHold(const LogHold&) = delete;
  LogHold& operator=(const LogHold&) = delete;

  // Writes the lines; from now on none is kept back.
  void Release();
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_LOG_H_
