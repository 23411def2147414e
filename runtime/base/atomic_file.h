// WriteFileAtomically and AtomicFile: replace a file so that readers see either the old or the new
// contents.
//
// The contents are written to a temporary file in the same folder, which is then renamed. On an
// error the old file is unchanged and no temporary file remains. Nothing is synced to the disk:
// after a power failure the file may be empty.
//
// Thread safety: the function may be called from any thread, and an AtomicFile used by one at a
// time. If two threads write the same path, the file has the contents of one of them.
#ifndef RESIDENT_RUNTIME_BASE_ATOMIC_FILE_H_
#define RESIDENT_RUNTIME_BASE_ATOMIC_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace resident {

struct AtomicFileOptions {
  mode_t mode = 0600;
};

// The new contents of a file, for those that do not fit into memory. Errors: UNAVAILABLE with the
// step that failed and the system's reason ("write: No space left on device"); the caller adds the
// path and the fix.
//
//   ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create("weights"));
//   RETURN_IF_ERROR(file.Append(piece));  // As often as needed.
//   RETURN_IF_ERROR(file.Commit());
class AtomicFile {
 public:
  static absl::StatusOr<AtomicFile> Create(const std::string& path,
                                           const AtomicFileOptions& options = {});
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Without Commit, the old file remains.
  ~AtomicFile();

  absl::Status Append(absl::string_view bytes);
  // Replaces the file. Nothing may be called afterwards, also if it fails.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, int fd, const AtomicFileOptions& options);

  std::string path_;
  std::string temporary_;  // Empty: it has been renamed, or moved to another object.
  int fd_ = -1;
  AtomicFileOptions options_;
};

// Writes all parts. Errors are those of AtomicFile.
absl::Status WriteFileAtomically(const std::string& path, absl::Span<const absl::string_view> parts,
                                 const AtomicFileOptions& options = {});

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_ATOMIC_FILE_H_
