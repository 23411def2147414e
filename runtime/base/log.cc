
#include "runtime/base/log.h"

#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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

namespace {

struct Held {
  absl::Mutex mu;
  std::atomic<bool> holding = false;  // Without it, Log takes no lock.
  absl::Time first ABSL_GUARDED_BY(mu);
  std::vector<std::string> lines ABSL_GUARDED_BY(mu);
};

Held& TheHeld() {
  static Held* const held = new Held();
  return *held;
}

void Write(const std::string& line) {
  // An error here cannot be reported anywhere.
  [[maybe_unused]] const ssize_t wrote = write(STDERR_FILENO, line.data(), line.size());
}

void WriteHeld(Held& held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(held.mu) {
  for (const std::string& line : held.lines) Write(line);
  held.lines.clear();
  held.holding = false;
}

}  // namespace

LogHold::LogHold() {
  Held& held = TheHeld();
  absl::MutexLock lock(&held.mu);
  held.holding = true;
  held.first = absl::Now();
}

LogHold::~LogHold() { Release(); }

void LogHold::Release() {
  Held& held = TheHeld();
  absl::MutexLock lock(&held.mu);
  WriteHeld(held);
}

void Log(LogLevel level, absl::string_view message) {
  const absl::Time now = absl::Now();
  std::string line =
      absl::StrCat(absl::FormatTime("%E4Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone()), " ",
                   FormatLogLine(level, message), "\n");
  Held& held = TheHeld();
  if (!held.holding) return Write(line);
  absl::MutexLock lock(&held.mu);
  if (!held.holding) return Write(line);
  held.lines.push_back(std::move(line));
  if (held.lines.size() > kMaxHeldLines || now - held.first > kMaxHold) WriteHeld(held);
}

}  // namespace resident
