// Landlock: the calling thread, and what it starts, can open only the given files.
//
// Thread safety: the functions may be called from any thread; the rules apply to the calling
// thread and to the threads and processes that it starts later.
#ifndef RESIDENT_RUNTIME_BASE_SANDBOX_LANDLOCK_H_
#define RESIDENT_RUNTIME_BASE_SANDBOX_LANDLOCK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace resident {

struct LandlockPaths {
  std::vector<std::string> readable;
  std::vector<std::string> executable;
  std::vector<std::string> writable;
  // Device files: read, written and controlled (ioctl).
  std::vector<std::string> devices;
};

// Version of the kernel's Landlock; 0: it has none, or it is disabled.
int LandlockVersion();

// REQUIRES: LandlockVersion() > 0, and PR_SET_NO_NEW_PRIVS.
absl::Status RestrictFiles(const LandlockPaths& paths);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SANDBOX_LANDLOCK_H_
