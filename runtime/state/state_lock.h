// StateLock: ensures that only one process at a time uses a state folder.
//
// It is a kernel lock (flock) on STATE_DIR/lock, which is released whenever its holder ends. The
// file contains the pid of the holder. It is never removed, because a lock on a removed file would
// not stop another process.
//
// Thread safety: an object may be used by one thread at a time.
#ifndef RESIDENT_RUNTIME_STATE_STATE_LOCK_H_
#define RESIDENT_RUNTIME_STATE_STATE_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace resident {

class StateLock {
 public:
  // FAILED_PRECONDITION: another process has it; the message contains its pid.
  static absl::StatusOr<std::unique_ptr<StateLock>> Take(const std::string& folder);
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  explicit StateLock(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_LOCK_H_
