// LogHold: keeps the lines of the log (log.h) back while it exists, so that the line with the
// addresses is the first one that a daemon prints, before the warnings of its start.
//
// The lines are written in their order, with the times of their events, by Release(), by the
// destructor, or when there are more than kMaxHeldLines of them or one comes kMaxHold after the
// first: a start that takes long is reported while it lasts.
//
// Thread safety: Release and the destructor are called by one thread; Log may be called by others.
// There is at most one LogHold at a time.
#ifndef RESIDENT_RUNTIME_BASE_LOG_HOLD_H_
#define RESIDENT_RUNTIME_BASE_LOG_HOLD_H_

#include <cstddef>

#include "absl/time/time.h"

namespace resident {

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

#endif  // RESIDENT_RUNTIME_BASE_LOG_HOLD_H_
