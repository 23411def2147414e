#include "runtime/compile/work_folder.h"

#include <errno.h>
#include <sys/stat.h>

#include <filesystem>
#include <system_error>

namespace resident {
namespace {

namespace fs = std::filesystem;

// How often a folder is measured from the beginning, when something in it was removed meanwhile.
constexpr int kMeasurements = 4;

enum class Measured { kFits, kOver, kChanged };

Measured Measure(const std::string& folder, uint64_t most_bytes, uint64_t most_entries) {
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
    if (bytes > most_bytes || ++entries > most_entries) return Measured::kOver;
  }
  if (!error) return Measured::kFits;
  return error == std::errc::no_such_file_or_directory ? Measured::kChanged : Measured::kOver;
}

}  // namespace

bool IsFolderOver(const std::string& folder, uint64_t most_bytes, uint64_t most_entries) {
  for (int i = 0; i < kMeasurements; ++i) {
    const Measured measured = Measure(folder, most_bytes, most_entries);
    if (measured != Measured::kChanged) return measured == Measured::kOver;
  }
  return true;
}

void RemoveFolder(const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (!error) return;
  // A folder is opened only after it has been made readable.
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
