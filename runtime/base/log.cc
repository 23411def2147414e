#include "runtime/base/log.h"

#include <unistd.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace resident {

std::string FormatLogLine(LogLevel level, absl::string_view message) {
  const char* const name = level == LogLevel::kError     ? "error: "
                           : level == LogLevel::kWarning ? "warning: "
                                                         : "";
  std::string line = absl::StrCat("residentd: ", name, message);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

void Log(LogLevel level, absl::string_view message) {
  const std::string line =
      absl::StrCat(absl::FormatTime("%E4Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()),
                   " ", FormatLogLine(level, message), "\n");
  // An error here cannot be reported anywhere.
  [[maybe_unused]] const ssize_t wrote = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace resident
