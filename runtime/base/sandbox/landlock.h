// Landlock: the calling thread, and what it starts, can open no files but given ones.
//
// Thread safety: the functions may be called from any thread; the rules bind the calling
// one and its later children.
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

// Version of the kernel's Landlock; 0: it has none, or it is switched off.
int LandlockVersion();

// REQUIRES: LandlockVersion() > 0, and PR_SET_NO_NEW_PRIVS.
absl::Status RestrictFiles(const LandlockPaths& paths);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SANDBOX_LANDLOCK_H_
