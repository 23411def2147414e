// StateLock: a state folder belongs to one process at a time.
//
// A lock of the kernel's (flock) on STATE_DIR/lock, so that it goes with its holder however
// that ends. The file says who that is, and is never removed: a lock on a removed file
// would hold nobody off.
//
// Thread safety: an object belongs to one thread.
#ifndef RESIDENT_RUNTIME_STATE_STATE_LOCK_H_
#define RESIDENT_RUNTIME_STATE_STATE_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace resident {

class StateLock {
 public:
  // FAILED_PRECONDITION: names the pid of the process that has it.
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
