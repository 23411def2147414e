// WriteFileAtomically: replaces a file so that readers see the old contents or the new ones.
//
// The contents are written to a temporary file in the same folder, which is then renamed. An error
// leaves the old file as it was and no temporary file.
//
// Thread safety: free function; of two writers of one path, one wins.
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
  // Whether file and folder are on the disk when the call returns.
  bool durable = false;
};

// Errors: UNAVAILABLE with the step that failed and the system's reason ("write: No space left on
// device"); the caller adds the path and what to do.
absl::Status WriteFileAtomically(const std::string& path, absl::Span<const absl::string_view> parts,
                                 const AtomicFileOptions& options = {});

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_ATOMIC_FILE_H_
