// WriteFileAtomically: replaces a file so that readers see either the old or the new contents.
//
// The contents are written to a temporary file in the same folder, which is then renamed. On an
// error the old file is unchanged and no temporary file remains. Nothing is synced to the disk:
// after a power failure the file may be empty.
//
// Thread safety: may be called from any thread. If two threads write the same path, the file has
// the contents of one of them.
#ifndef RESIDENT_RUNTIME_BASE_ATOMIC_FILE_H_
#define RESIDENT_RUNTIME_BASE_ATOMIC_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace resident {

struct AtomicFileOptions {
  mode_t mode = 0600;
};

// Errors: UNAVAILABLE with the step that failed and the system's reason ("write: No space left on
// device"); the caller adds the path and the fix.
absl::Status WriteFileAtomically(const std::string& path, absl::Span<const absl::string_view> parts,
                                 const AtomicFileOptions& options = {});

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_ATOMIC_FILE_H_
