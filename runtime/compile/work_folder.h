// Folders that compilers work in. Compilers may write anything into them at any time.
//
// A WorkFolder is one process's folder for them, "residentd-compile-XXXXXX" below a parent that it
// shares with other processes. The process holds a lock on it (flock) until it exits or is killed.
// If another process can lock such a folder, its owner has ended; Create removes these folders
// first.
//
// Thread safety: may be called from any thread.
//
//   auto work = WorkFolder::Create("/tmp");         // absl::StatusOr<std::unique_ptr<WorkFolder>>
//   ... a compiler works in a folder below (*work)->path() ...
//   if (ExceedsFolderLimit(folder, 1 << 30, 10'000)) ...  // Kill the compiler.
//   RemoveFolder(folder);                           // After it has ended.
#ifndef RESIDENT_RUNTIME_COMPILE_WORK_FOLDER_H_
#define RESIDENT_RUNTIME_COMPILE_WORK_FOLDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace resident {

class WorkFolder {
 public:
  // Removes this user's work folders in `parent` whose owners have ended, then makes one.
  // FAILED_PRECONDITION: nothing can be made in `parent`.
  static absl::StatusOr<std::unique_ptr<WorkFolder>> Create(const std::string& parent);
  // Removes the folder.
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  WorkFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;  // Descriptor of the folder, with the lock.
};

// Whether the contents of the folder exceed `max_bytes` of the disk or `max_entries`. Also true
// if they cannot be measured: a folder cannot be read, or folders are created and removed too fast.
bool ExceedsFolderLimit(const std::string& folder, uint64_t max_bytes, uint64_t max_entries);

// Removes the folder with its contents, whatever the modes of the folders. What cannot be removed
// stays.
void RemoveFolder(const std::string& folder);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_WORK_FOLDER_H_
