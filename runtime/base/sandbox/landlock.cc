#include "runtime/base/sandbox/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

// Constants that the headers of older systems do not have.
constexpr uint64_t kRefer = 1ull << 13;          // Version 2.
constexpr uint64_t kTruncate = 1ull << 14;       // Version 3.
constexpr uint64_t kDeviceControl = 1ull << 15;  // Version 5.
constexpr uint64_t kBindTcp = 1ull << 0;         // Version 4.
constexpr uint64_t kConnectTcp = 1ull << 1;
constexpr uint64_t kAbstractSocket = 1ull << 0;  // Version 6.
constexpr uint64_t kSignal = 1ull << 1;

// struct landlock_ruleset_attr of version 6.
struct RulesetAttributes {
  uint64_t files;
  uint64_t network;
  uint64_t scoped;
};

constexpr uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr uint64_t kExecute = kRead | LANDLOCK_ACCESS_FS_EXECUTE;
constexpr uint64_t kWrite = kRead | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG |
                            LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                            kTruncate;
constexpr uint64_t kDevice = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                             LANDLOCK_ACCESS_FS_READ_DIR | kDeviceControl;
// The rights that apply to files that are not folders.
constexpr uint64_t kFileRights = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE |
                                 LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate | kDeviceControl;

absl::Status Failed(const char* what) {
  return absl::InternalError(absl::StrCat("Landlock: ", what, ": ", strerror(errno)));
}

absl::Status Allow(int ruleset, const std::string& path, uint64_t access) {
  const int fd = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (fd < 0) return absl::OkStatus();  // A path that does not exist needs no rule.
  absl::Cleanup close_fd = [&] { close(fd); };
  struct stat status;
  if (fstat(fd, &status) != 0) return Failed("stat");
  landlock_path_beneath_attr rule = {};
  rule.allowed_access = S_ISDIR(status.st_mode) ? access : access & kFileRights;
  rule.parent_fd = fd;
  if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0) {
    return Failed(path.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

int LandlockVersion() {
  const long version =
      syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return static_cast<int>(std::max(version, 0L));
}

absl::Status RestrictFiles(const LandlockPaths& paths) {
  const int version = LandlockVersion();
  assert(version > 0);
  RulesetAttributes attributes = {};
  attributes.files = (1ull << 13) - 1;
  if (version >= 2) attributes.files |= kRefer;
  if (version >= 3) attributes.files |= kTruncate;
  if (version >= 5) attributes.files |= kDeviceControl;
  if (version >= 4) attributes.network = kBindTcp | kConnectTcp;
  if (version >= 6) attributes.scoped = kAbstractSocket | kSignal;
  const size_t size = version >= 6   ? sizeof(attributes)
                      : version >= 4 ? 2 * sizeof(uint64_t)
                                     : sizeof(uint64_t);
  const int ruleset = static_cast<int>(syscall(SYS_landlock_create_ruleset, &attributes, size, 0));
  if (ruleset < 0) return Failed("create_ruleset");
  absl::Cleanup close_ruleset = [&] { close(ruleset); };
  for (const auto& [list, access] : {std::pair{&paths.readable, kRead},
                                     {&paths.executable, kExecute},
                                     {&paths.writable, kWrite},
                                     {&paths.devices, kDevice}}) {
    for (const std::string& path : *list) {
      RETURN_IF_ERROR(Allow(ruleset, path, access & attributes.files));
    }
  }
  if (syscall(SYS_landlock_restrict_self, ruleset, 0) != 0) return Failed("restrict_self");
  return absl::OkStatus();
}

}  // namespace resident
