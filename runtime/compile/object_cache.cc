#include "runtime/compile/object_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/sha256.h"

namespace resident {
namespace {

// An entry is the format's name, the SHA-256 of the contents in hex, a newline, the contents.
constexpr char kFormat[] = "residentd cache 1 ";
constexpr size_t kHeaderBytes = sizeof(kFormat) - 1 + 64 + 1;
// A key is a SHA-256 in hex. The temporary file of an entry has a longer name (atomic_file.h);
// after kAbandonedSeconds no process writes to it any more.
constexpr size_t kKeyBytes = 64;
constexpr time_t kAbandonedSeconds = 3600;

std::optional<std::string> ReadWhole(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  absl::Cleanup close_fd = [&] { close(fd); };
  struct stat status;
  if (fstat(fd, &status) != 0) return std::nullopt;
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t got = read(fd, bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    at += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectCache>> ObjectCache::Open(const std::string& folder,
                                                               uint64_t max_bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the cache folder ", folder, " cannot be used: ", error ? error.message() : strerror(errno),
        ". Fix: choose a folder that the daemon may write to"));
  }
  std::unique_ptr<ObjectCache> cache(new ObjectCache(folder, max_bytes));
  absl::MutexLock lock(&cache->mu_);
  cache->Shrink();
  return cache;
}

std::optional<std::string> ObjectCache::Get(const std::string& key) {
  const std::string path = PathTo(key);
  std::optional<std::string> entry = ReadWhole(path);
  if (!entry) return std::nullopt;
  const std::string_view body =
      std::string_view(*entry).substr(std::min(entry->size(), kHeaderBytes));
  if (entry->size() < kHeaderBytes ||
      entry->compare(0, kHeaderBytes, absl::StrCat(kFormat, Sha256Hex(body), "\n")) != 0) {
    unlink(path.c_str());
    return std::nullopt;
  }
  // Marks the entry as used now.
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return entry->substr(kHeaderBytes);
}

absl::Status ObjectCache::Put(const std::string& key, const std::string& bytes) {
  const std::string header = absl::StrCat(kFormat, Sha256Hex(bytes), "\n");
  // Not synced: Get detects an entry that a crash has damaged, and it is compiled again.
  const absl::Status written = WriteFileAtomically(PathTo(key), {header, bytes});
  if (!written.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot write to the cache ", folder_, ": ",
                                                     written.message(),
                                                     ". Fix: free space on the disk"));
  }
  absl::MutexLock lock(&mu_);
  bytes_ += header.size() + bytes.size();
  if (bytes_ > max_bytes_) Shrink();
  return absl::OkStatus();
}

void ObjectCache::Shrink() {
  struct Entry {
    timespec used;
    uint64_t bytes;
    std::string path;
  };
  std::vector<Entry> entries;
  bytes_ = 0;
  DIR* const folder = opendir(folder_.c_str());
  if (folder == nullptr) return;
  const time_t now = time(nullptr);
  while (const dirent* const found = readdir(folder)) {
    const std::string name = found->d_name;
    const std::string path = PathTo(name);
    struct stat status;
    if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (name.size() > kKeyBytes && name[kKeyBytes] == '.') {
      if (now - status.st_mtim.tv_sec > kAbandonedSeconds) unlink(path.c_str());
      continue;
    }
    if (name.size() != kKeyBytes) continue;
    bytes_ += static_cast<uint64_t>(status.st_size);
    entries.push_back({status.st_mtim, static_cast<uint64_t>(status.st_size), path});
  }
  closedir(folder);
  if (bytes_ <= max_bytes_) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const Entry& entry : entries) {
    // A tenth below the limit, so that not every Put has to read the folder.
    if (bytes_ <= max_bytes_ - max_bytes_ / 10) break;
    unlink(entry.path.c_str());
    bytes_ -= entry.bytes;
  }
}

uint64_t ObjectCache::bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
}

}  // namespace resident
