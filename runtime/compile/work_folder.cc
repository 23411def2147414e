#include "runtime/compile/work_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace resident {
namespace {

namespace fs = std::filesystem;

// How often a folder is measured again from the beginning after something in it was removed.
constexpr int kMeasurements = 4;

enum class Measured { kFits, kOver, kChanged };

Measured Measure(const std::string& folder, uint64_t max_bytes, uint64_t max_entries) {
  uint64_t bytes = 0, entries = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    struct stat status;
    if (lstat(entry->path().c_str(), &status) != 0) {
      if (errno != ENOENT) return Measured::kOver;
      continue;
    }
    bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    if (bytes > max_bytes || ++entries > max_entries) return Measured::kOver;
  }
  if (!error) return Measured::kFits;
  return error == std::errc::no_such_file_or_directory ? Measured::kChanged : Measured::kOver;
}

constexpr char kNamePrefix[] = "residentd-compile-";
// Attempts to make a folder that no other process removes before it is locked.
constexpr int kAttempts = 16;

// Opens and locks the folder; nullopt: it belongs to another user, or its owner still runs.
std::optional<int> Lock(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  struct stat opened, named;
  if (fstat(fd, &opened) == 0 && opened.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
      // No process has removed it before it was locked.
      lstat(folder.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
      named.st_dev == opened.st_dev) {
    return fd;
  }
  close(fd);
  return std::nullopt;
}

void RemoveAbandoned(const std::string& parent) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    if (absl::StartsWith(entry->path().filename().string(), kNamePrefix)) {
      found.push_back(entry->path().string());
    }
  }
  for (const std::string& folder : found) {
    const std::optional<int> lock = Lock(folder);
    if (!lock) continue;
    RemoveFolder(folder);
    close(*lock);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkFolder>> WorkFolder::Create(const std::string& parent) {
  RemoveAbandoned(parent);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string path = absl::StrCat(parent, "/", kNamePrefix, "XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("cannot make a folder in ", parent, ": ",
                                                        strerror(errno),
                                                        ". Fix: free space, or make it writable"));
    }
    const std::optional<int> lock = Lock(path);
    if (lock) return std::unique_ptr<WorkFolder>(new WorkFolder(std::move(path), *lock));
    // Another process has treated the new folder as abandoned and removes it.
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot lock a new folder in ", parent,
                   ". Fix: use a file system with locks (TMPDIR or --state_dir)"));
}

WorkFolder::~WorkFolder() {
  RemoveFolder(path_);
  close(lock_);
}

bool ExceedsFolderLimit(const std::string& folder, uint64_t max_bytes, uint64_t max_entries) {
  for (int i = 0; i < kMeasurements; ++i) {
    const Measured measured = Measure(folder, max_bytes, max_entries);
    if (measured != Measured::kChanged) return measured == Measured::kOver;
  }
  return true;
}

void RemoveFolder(const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (!error) return;
  // The iterator opens a folder only after the loop has made it readable.
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->symlink_status(ignored).type() != fs::file_type::directory) continue;
    fs::permissions(entry->path(), fs::perms::owner_all,
                    fs::perm_options::replace | fs::perm_options::nofollow, ignored);
  }
  fs::remove_all(folder, error);
}

}  // namespace resident
