// Folders that compilers work in, whose contents are the compilers': they may be anything, and
// change at any time.
//
// A WorkFolder is one process's folder for them, "residentd-compile-XXXXXX" below a parent that it
// shares with other processes. The process holds a lock on it (flock) for as long as it lives,
// however it ends. So whoever can lock such a folder knows that its owner is gone; Create removes
// those first.
//
// Thread safety: may be called from any thread.
//
//   auto work = WorkFolder::Create("/tmp");         // absl::StatusOr<std::unique_ptr<WorkFolder>>
//   ... a compiler works in a folder below (*work)->path() ...
//   if (IsFolderOver(folder, 1 << 30, 10'000)) ...  // End the compiler.
//   RemoveFolder(folder);                           // Once it has ended.
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
  // Removes the folders of this kind and user in `parent` whose owners are gone, and makes one.
  // FAILED_PRECONDITION: nothing can be made in `parent`.
  static absl::StatusOr<std::unique_ptr<WorkFolder>> Create(const std::string& parent);
  // Removes it.
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  WorkFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;  // The folder itself, locked.
};

// Whether all that is below the folder takes more than so much of the disk. What cannot be measured
// counts as too much: folders that cannot be read, and such as come and go faster than they are
// looked at.
bool IsFolderOver(const std::string& folder, uint64_t most_bytes, uint64_t most_entries);

// With all that is below it, whatever the modes of the folders. What cannot be removed stays.
void RemoveFolder(const std::string& folder);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_WORK_FOLDER_H_
